"""Evaluation of detectors: metrics, tables, pictures."""
