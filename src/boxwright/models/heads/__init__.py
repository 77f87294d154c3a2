"""Blocks of detectors: heads."""
