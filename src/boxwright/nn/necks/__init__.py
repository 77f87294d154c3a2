"""Blocks of detectors: necks."""
