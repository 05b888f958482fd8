"""Figures, self-contained HTML pages, and the report of a fit."""
