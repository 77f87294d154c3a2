"""Builders of RefineDet."""
