"""Builders of CenterNet."""
