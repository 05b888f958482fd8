"""Fair classifiers, what fairness means for them, and the data that they are tried on."""
