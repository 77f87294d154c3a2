"""Exporting detectors to other runtimes as whole graphs, written only if they match the detector."""
