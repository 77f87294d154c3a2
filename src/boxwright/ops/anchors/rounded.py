"""Anchors whose sides were rounded to whole pixels before they were scaled (py-faster-rcnn's, and SRN's)."""

from __future__ import annotations

import math


def rounded_sides(stride: float, ratio: float) -> tuple[float, float]:
    """Return whole sides of about a stride's area.

    Args:
        stride: In pixels.

    Returns:
        (height, width) in pixels; a half rounds to the even number, as NumPy's does.
    """
    width = round(math.sqrt(stride * stride / ratio))
    return float(round(width * ratio)), float(width)
