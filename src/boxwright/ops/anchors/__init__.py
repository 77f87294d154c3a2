"""Anchor generators: the boxes from which a detector measures."""
