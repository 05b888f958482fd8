"""Predict what reduced precision costs, monotonically, and find the cheapest precision that is good enough."""

from ..extras import require

require("transprecision")
