"""Augmentation from its messages."""
