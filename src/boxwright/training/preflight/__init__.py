"""Checks of a configuration and its data before a run, each with a verdict and a remedy."""
