"""Builders of Faster and Mask R-CNN."""
