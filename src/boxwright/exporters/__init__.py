"""Detectors for other runtimes: whole graphs, written only where they do what the detector does."""
