"""The Python API: models that take pictures, results, training and evaluation in one call."""
