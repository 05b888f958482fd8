"""Gas networks: compressor settings that maintain pressure with minimum effort."""

from ..extras import require

require("gas")
