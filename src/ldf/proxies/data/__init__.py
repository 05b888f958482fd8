"""Labelled demands: sampled, solved, written to files and read."""
