"""Points and boxes in cells: the frame of CenterNet's maps, in which vectors are y, x.

Target heatmaps have a Gaussian around each point (CornerNet, section 3.2; Objects as Points, section 3).

Dimensions: B batch, G objects (padded), N points of an image, C channels, H W grid of cells, K classes.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from boxwright.base.device import constants
from boxwright.families.center_net.predictions import STRIDE

Grid = tuple[int, int]
"""The numbers of rows and columns of cells."""


@dataclass(frozen=True)
class CellBoxes:
    """Boxes in cells.

    Attributes:
        low: float [..., 2]; y, x of the upper left corner.
        high: float [..., 2]; y, x of the lower right corner.
    """

    low: Tensor
    high: Tensor

    @classmethod
    def of_pixels(cls, boxes: Tensor) -> CellBoxes:
        """Return boxes [..., 4], xyxy in pixels, in cells."""
        return cls(boxes[..., :2].flip(-1) / STRIDE, boxes[..., 2:].flip(-1) / STRIDE)

    @property
    def sizes(self) -> Tensor:
        """Height and width, float [..., 2]."""
        return self.high - self.low

    @property
    def centers(self) -> Tensor:
        """The middles, float [..., 2], rounded as in TF: the last bit decides the cell that holds one."""
        return self.low + self.sizes / 2

    def scaled(self, factor: float) -> CellBoxes:
        """Return boxes of the same centers, and another size."""
        centers, half = self.centers, self.sizes * factor / 2
        return CellBoxes(centers - half, centers + half)

    def hold(self, grid: Grid) -> Tensor:
        """Return which cells each box holds, but for those on its lower and right border: bool [..., H, W]."""
        axes = [torch.arange(count, device=self.low.device) for count in grid]
        low, high = self.low[..., None], self.high[..., None]
        rows, columns = ((axis >= low[..., i, :]) & (axis < high[..., i, :]) for i, axis in enumerate(axes))
        return rows[..., :, None] & columns[..., None, :]


def points_in_cells(points: Tensor) -> Tensor:
    """Return points [..., 2], x, y in pixels, as y, x in cells."""
    return points.flip(-1) / STRIDE


def cells_around(points: Tensor, radius: int, grid: Grid) -> tuple[Tensor, Tensor]:
    """Return the cells within a radius of those that hold points, and which of them lie on the grid.

    Args:
        points: float [..., 2]; y, x in cells.
        radius: In cells; 0 for the cell itself alone.

    Returns:
        float [..., n, 2], whole numbers, 0 for cells beyond the grid; and bool [..., n].
    """
    reach = range(-radius, radius + 1)
    near = [(y, x) for y in reach for x in reach if y * y + x * x <= radius * radius]
    steps = torch.stack([constants([step[axis] for step in near], points.device) for axis in (0, 1)], dim=-1)
    cells = points.floor()[..., None, :] + steps
    inside = ((cells >= 0) & (cells < constants(grid, points.device))).all(-1)
    return cells.where(inside[..., None], 0), inside


def read(maps: Tensor, cells: Tensor) -> Tensor:
    """Return the values of maps at cells.

    Args:
        maps: float [B, C, H, W].
        cells: [B, N, 2]; row and column, whole numbers on the grid.

    Returns:
        float [B, N, C].
    """
    places = (cells[..., 0] * maps.shape[-1] + cells[..., 1]).long()
    return maps.flatten(2).gather(2, places[:, None].expand(-1, maps.shape[1], -1)).transpose(1, 2).contiguous()


def read_each(maps: Tensor, cells: Tensor, channels: int) -> Tensor:
    """Return the values at cells of P maps, or of one map that stands for all: float [B, P, N, C].

    Args:
        maps: float [B, P · C, H, W] or [B, C, H, W].
        cells: [B, P, N, 2]; rows and columns, whole numbers on the grid.
        channels: C.
    """
    batch, count = cells.shape[:2]
    if maps.shape[1] == channels:
        shared = read(maps, cells.flatten(1, 2))
        return shared.view(batch, count, -1, channels)
    object_maps = maps.reshape(batch * count, channels, *maps.shape[2:])
    return read(object_maps, cells.flatten(0, 1)).view(batch, count, -1, channels)


def center_cells(centers: Tensor, grid: Grid) -> Tensor:
    """Return the cells that hold centers [..., 2]: whole numbers on the grid, also for centers on its far border."""
    return centers.floor().clamp(min=0).minimum(constants(grid, centers.device) - 1)


def valid_cells(true_sizes: Tensor, grid: Grid) -> Tensor:
    """Return bool [B, H, W]: the cells that images of (height, width) int64 [B, 2] reach into, which learn."""
    covered = torch.ceil(true_sizes / STRIDE)
    rows, columns = (
        torch.arange(count, device=true_sizes.device) < covered[:, i, None] for i, count in enumerate(grid)
    )
    return rows[:, :, None] & columns[:, None, :]


def grid_shape(maps: Tensor) -> Grid:
    """Return the numbers of rows and columns of maps [..., H, W]."""
    return maps.shape[-2], maps.shape[-1]


def as_rows_of_cells(maps: Tensor) -> Tensor:
    """Return maps [B, C, H, W] with a row per cell: [B, H · W, C]."""
    return maps.flatten(2).transpose(1, 2)


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


def gaussian_deviations(sizes: Tensor, min_iou: float) -> Tensor:
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
    maxima = values.new_zeros(batch, height * width, num_classes)
    places = labels[:, None].expand(-1, height * width, -1)
    maxima = maxima.scatter_reduce(2, places, values.flatten(2).transpose(1, 2), "amax")
    return maxima.transpose(1, 2).view(batch, num_classes, height, width)
