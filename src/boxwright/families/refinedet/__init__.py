"""RefineDet."""
