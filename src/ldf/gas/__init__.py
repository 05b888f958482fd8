"""Gas networks: the compressors that keep the pressure up at the least effort."""

from ..extras import require

require("gas")
