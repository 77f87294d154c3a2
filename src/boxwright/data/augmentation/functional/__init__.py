"""Deterministic augmentation of whole samples; random transforms draw the parameters and call it."""
