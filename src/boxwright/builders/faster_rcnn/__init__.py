"""Faster and Mask R-CNN from their message."""
