"""Measuring detectors beside each other."""
