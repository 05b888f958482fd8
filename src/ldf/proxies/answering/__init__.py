"""Answers to demands: predicted, repaired, certified."""
