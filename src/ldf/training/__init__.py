"""The loop: what is trained on, what is trained, what is saved; `fit` and `fit_many`."""
