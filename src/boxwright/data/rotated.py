"""Boxes around turned shapes: annotation tools have rotated boxes and ellipses, detectors upright boxes."""

from __future__ import annotations

import math

Box = tuple[float, float, float, float]


def box_around_rectangle(center: tuple[float, float], size: tuple[float, float], degrees: float) -> Box:
    """Return the upright box x_min, y_min, x_max, y_max around a rectangle that is turned about its center."""
    cos, sin = abs(math.cos(math.radians(degrees))), abs(math.sin(math.radians(degrees)))
    width, height = size[0] * cos + size[1] * sin, size[0] * sin + size[1] * cos
    return _centered(center, width, height)


def box_around_ellipse(center: tuple[float, float], radii: tuple[float, float], degrees: float) -> Box:
    """Return the upright box around an ellipse that is turned about its center."""
    cos, sin = math.cos(math.radians(degrees)), math.sin(math.radians(degrees))
    width = 2 * math.hypot(radii[0] * cos, radii[1] * sin)
    height = 2 * math.hypot(radii[0] * sin, radii[1] * cos)
    return _centered(center, width, height)


def center_turned_about_corner(
    corner: tuple[float, float], size: tuple[float, float], degrees: float
) -> tuple[float, float]:
    """Return the center of a rectangle that is turned clockwise about its corner, as its first x and y are."""
    cos, sin = math.cos(math.radians(degrees)), math.sin(math.radians(degrees))
    half = size[0] / 2, size[1] / 2
    return corner[0] + half[0] * cos - half[1] * sin, corner[1] + half[0] * sin + half[1] * cos


def box_around_points(points: list[float]) -> Box:
    """Return the upright box around points x, y, x, y and so on."""
    return min(points[::2]), min(points[1::2]), max(points[::2]), max(points[1::2])


def _centered(center: tuple[float, float], width: float, height: float) -> Box:
    return center[0] - width / 2, center[1] - height / 2, center[0] + width / 2, center[1] + height / 2
