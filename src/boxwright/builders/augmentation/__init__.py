"""Builders of augmentation."""
