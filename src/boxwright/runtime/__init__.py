"""Opening and running exported detectors, without PyTorch."""
