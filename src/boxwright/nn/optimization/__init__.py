"""Optimizers, learning-rate schedules and weight averages, with TensorFlow's arithmetic."""
