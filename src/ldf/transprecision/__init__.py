"""Predict the error of reduced precision with monotone models, and find the cheapest widths within an error bound."""

from ..extras import require

require("transprecision")
