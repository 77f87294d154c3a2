"""An HTTP server for exported detectors, without PyTorch."""
