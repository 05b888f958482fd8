"""Fair classifiers: classifiers with equal positive rates across groups, and a report of the remaining gaps."""

# ruff: noqa: E402  # missing packages are reported before the imports that need them
from ..extras import require

require("fairness")

from .boosting import FairBoostingClassifier
from .network import FairClassifier
from .report import Report

__all__ = ["FairBoostingClassifier", "FairClassifier", "Report"]
