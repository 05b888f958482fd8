"""Predict what reduced precision costs, monotonically, and find the cheapest precision that is good enough."""

import sys

from ..extras import require

# The command line lists this package's commands with typer alone; `__main__.py` says what one of them lacks.
if "ldf.cli" not in sys.modules:
    require("transprecision")
