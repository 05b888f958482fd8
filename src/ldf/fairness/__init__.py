"""Fair classifiers: decisions whose rates are held together across groups, and a report that says how well."""

from .boosting import FairBoostingClassifier
from .network import FairClassifier
from .report import Report

__all__ = ["FairBoostingClassifier", "FairClassifier", "Report"]
