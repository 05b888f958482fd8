"""AC optimal power flow: networks, the solver, the laws that predictions must keep."""
