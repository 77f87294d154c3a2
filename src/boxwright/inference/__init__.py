"""Using a trained detector."""
