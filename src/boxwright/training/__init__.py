"""Training: the loop, its state, its log."""
