"""A server of exported detectors; without PyTorch."""
