"""Anchors whose sides are rounded to whole pixels before scaling (py-faster-rcnn's, and SRN's)."""

from __future__ import annotations

import math


def rounded_sides(stride: float, ratio: float) -> tuple[float, float]:
    """Return integer (height, width) in pixels of about a stride's area, rounded half to even as in NumPy."""
    width = round(math.sqrt(stride * stride / ratio))
    return float(round(width * ratio)), float(width)
