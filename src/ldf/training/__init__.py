"""Training: data, engines, checkpoints and the loop behind `fit` and `fit_many`."""
