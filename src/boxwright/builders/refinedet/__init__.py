"""RefineDet from its message."""
