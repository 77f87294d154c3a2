"""Detectors, a folder a family; `table.py` alone knows all of them."""
