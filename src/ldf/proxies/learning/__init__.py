"""Networks of an optimisation problem: trained on labels, scored beside baselines."""
