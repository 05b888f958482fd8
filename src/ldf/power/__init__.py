"""AC optimal power flow: networks, the solver, and the constraints that predictions must satisfy."""

from ..extras import require

require("power")
