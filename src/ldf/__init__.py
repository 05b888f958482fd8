"""Train neural networks under constraints by Lagrangian duality: train, repair, certify."""

from .batch import Batch
from .certificate import Certificate, certify
from .checkpoint import CheckpointError
from .constraint import Constraint, ConstraintError, equality, inequality
from .doctor import Diagnosis, doctor
from .dual import Adam, Ascent, Augmented, Balanced, Dual, Fixed, NuPI
from .history import History
from .lagrangian import Lagrangian
from .replicas import fit_many
from .report import report
from .scopes import Groups, PairBatches, Pairs, StratifiedBatches
from .training import Fit, fit

__version__ = "0.1.0"

__all__ = [
    "Adam",
    "Ascent",
    "Augmented",
    "Balanced",
    "Batch",
    "Certificate",
    "CheckpointError",
    "Constraint",
    "ConstraintError",
    "Diagnosis",
    "Dual",
    "Fit",
    "Fixed",
    "Groups",
    "History",
    "Lagrangian",
    "NuPI",
    "PairBatches",
    "Pairs",
    "StratifiedBatches",
    "certify",
    "doctor",
    "equality",
    "fit",
    "fit_many",
    "inequality",
    "report",
]
