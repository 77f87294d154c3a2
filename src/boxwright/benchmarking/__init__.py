"""Measuring and comparing detectors."""
