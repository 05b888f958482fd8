"""Train neural networks under constraints by Lagrangian duality: train, repair, certify."""

from .core.batch import Batch
from .core.certificate import Certificate, certify
from .core.constraint import Constraint, equality, inequality
from .core.doctor import Diagnosis, doctor
from .core.dual import Adam, Ascent, Augmented, Automatic, Balanced, Dual, Fixed, Levelling, NuPI
from .core.evidence import Evidence
from .core.groups import Groups
from .core.history import History
from .core.lagrangian import Lagrangian
from .core.pairs import Pairs
from .core.repair import Repaired, repair
from .core.samplers import PairBatches, StratifiedBatches
from .core.scope import ConstraintError
from .io.checkpoint import CheckpointError
from .training.fitting import Fit, fit
from .training.replicas import fit_many
from .viewing.report import report

__version__ = "0.1.0"

__all__ = [
    "Adam",
    "Ascent",
    "Augmented",
    "Automatic",
    "Balanced",
    "Batch",
    "Certificate",
    "CheckpointError",
    "Constraint",
    "ConstraintError",
    "Diagnosis",
    "Dual",
    "Evidence",
    "Fit",
    "Fixed",
    "Groups",
    "History",
    "Lagrangian",
    "Levelling",
    "NuPI",
    "PairBatches",
    "Pairs",
    "Repaired",
    "StratifiedBatches",
    "certify",
    "doctor",
    "equality",
    "fit",
    "fit_many",
    "inequality",
    "repair",
    "report",
]
