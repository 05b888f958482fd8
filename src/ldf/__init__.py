"""Train neural networks under constraints by Lagrangian duality: train, repair, certify."""

from .batch import Batch
from .constraint import Constraint, ConstraintError, LDFWarning, equality, inequality
from .dual import Adam, Ascent, Augmented, Balanced, Dual, Fixed, NuPI
from .lagrangian import Lagrangian
from .scopes import Groups, PairBatches, Pairs, StratifiedBatches

__version__ = "0.1.0"
