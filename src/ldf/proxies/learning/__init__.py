"""Networks for an optimisation problem: trained on labels, compared with baselines."""
