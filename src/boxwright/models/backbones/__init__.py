"""Blocks of detectors: backbones."""
