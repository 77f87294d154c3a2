"""Exported detectors, opened and run without PyTorch."""
