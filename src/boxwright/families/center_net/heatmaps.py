"""Target heatmaps: a Gaussian around each point (CornerNet, section 3.2; Objects as Points, section 3).

Dimensions: B batch, G objects (padded), K classes, H W grid of cells.
"""

from __future__ import annotations

import torch
from torch import Tensor

from boxwright.families.center_net.cells import Grid


def gaussians(points: Tensor, deviations: Tensor, grid: Grid) -> Tensor:
    """Return a Gaussian around the cell that holds each point, in 0..1.

    Args:
        points: float [..., 2]; y, x in cells.
        deviations: float [...]; standard deviations in cells.

    Returns:
        float [..., H, W].
    """
    middle = points.floor()
    rows, columns = (
        torch.exp(-(torch.arange(count, device=points.device) - middle[..., i, None]).square() / _twice(deviations))
        for i, count in enumerate(grid)
    )
    return rows[..., :, None] * columns[..., None, :]


def _twice(deviations: Tensor) -> Tensor:
    return 2 * deviations.square()[..., None]


def deviations_of(sizes: Tensor, min_iou: float) -> Tensor:
    """Return the standard deviations of the Gaussians around boxes' centers: a sixth of their diameters.

    Args:
        sizes: float [..., 2]; height and width in cells.
        min_iou: The overlap that a box keeps whose corners move by the radius.

    Returns:
        float [...].
    """
    radius = radius_for_overlap(sizes[..., 0], sizes[..., 1], min_iou)
    return (2 * radius.floor().clamp(min=0) + 1) / 6


def radius_for_overlap(height: Tensor, width: Tensor, min_iou: float) -> Tensor:
    """Return how far the corners of boxes can move in both directions while an overlap is kept, in cells.

    Of three equations, for both corners moved alike, inward and outward, the least solution is taken. It is not that of
    CornerNet's released code but CenterNet's, which divides by 2 rather than by 2a and adds the root, as TF does.
    """
    area, around = height * width, height + width
    solutions = (
        _root(1.0, -around, area * ((1 - min_iou) / (1 + min_iou))),
        _root(4.0, -2 * around, (1 - min_iou) * area),
        _root(4 * min_iou, 2 * min_iou * around, (min_iou - 1) * area),
    )
    return torch.stack(solutions).amin(0)


def _root(a: float, b: Tensor, c: Tensor) -> Tensor:
    return (-b + torch.sqrt(b * b - 4 * a * c)) / 2


def brightest(values: Tensor, dim: int) -> Tensor:
    """Return the maximum over the objects of a dimension, or 0."""
    if not values.shape[dim]:
        return values.sum(dim)
    return values.amax(dim).clamp(min=0)


def brightest_of_class(values: Tensor, labels: Tensor, num_classes: int) -> Tensor:
    """Return the maximum over the objects of each class, or 0.

    Args:
        values: float [B, G, H, W].
        labels: int64 [B, G].

    Returns:
        float [B, K, H, W], channels last, as losses read a row of classes for each cell.
    """
    batch, _, height, width = values.shape
    found = values.new_zeros(batch, height * width, num_classes)
    places = labels[:, None].expand(-1, height * width, -1)
    found = found.scatter_reduce(2, places, values.flatten(2).transpose(1, 2), "amax")
    return found.transpose(1, 2).view(batch, num_classes, height, width)
