"""Detectors, one file each, and the blocks they are made of."""
