"""Fair classifiers: decisions whose rates are held together across groups, and a report that says how well."""

# ruff: noqa: E402  # what is missing is said before anything is imported that needs it
from ..extras import require

require("fairness")

from .boosting import FairBoostingClassifier
from .network import FairClassifier
from .report import Report

__all__ = ["FairBoostingClassifier", "FairClassifier", "Report"]
