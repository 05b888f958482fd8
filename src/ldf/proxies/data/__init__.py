"""Labelled demands: sampled, solved, kept in files, read again."""
