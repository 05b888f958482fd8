"""Reproduce the tables and figures of the paper, and report them beside its own."""
