"""Training targets, and losses against them."""
