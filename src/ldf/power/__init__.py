"""AC optimal power flow: networks, the solver, the laws that predictions must keep."""

from ..extras import require

require("power")
