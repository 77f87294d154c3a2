"""Data augmentation: transforms of samples, deterministic given the random generator."""
