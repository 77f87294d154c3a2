"""What ruins runs, found before one: checks of a configuration and its data, each with a verdict and a remedy."""
