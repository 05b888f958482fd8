"""The paper's equations: constraints, violation degrees, dual rules, multipliers, the Lagrangian."""
