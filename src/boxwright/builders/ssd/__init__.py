"""Builders of SSD."""
