"""Cropping regions out of feature maps: TensorFlow's crop-and-resize, and RoIAlign.

Every way of cropping says, for each cell of a crop and each axis, which rows (or columns) of the map it reads and how
much each counts. So all are one weighted gather, which looks at no map but a region's own.

Dimensions: B batch, R regions of an image, N = B·R, C channels, H W feature map, h w crop, L levels, t taps of a cell.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import product
from typing import Literal

import torch
from torch import Tensor
from torch.nn import functional as F

from boxwright.ops.constants import constants

Size = tuple[int, int]
# What a sample outside the map is: 0; the border as far as it still reaches there; or the border within a pixel.
Border = Literal["drop", "fade", "hold"]


@dataclass(frozen=True)
class Taps:
    """What each cell reads along one axis.

    Attributes:
        places: int64 [N, n, t]; rows or columns of the map.
        weights: float32 [N, n, t].
    """

    places: Tensor
    weights: Tensor

    def every(self, first: int, step: int, count: int) -> Taps:
        """Return the taps of some cells: the first, and each so many further."""
        cells = slice(first, first + step * (count - 1) + 1, step)
        return Taps(self.places[:, cells], self.weights[:, cells])


@dataclass(frozen=True)
class Pool:
    """A pool that keeps the largest value of each window of a crop, without padding.

    Attributes:
        kernel: The side of a window.
        stride: Its step.
        every: Of the pooled cells only each so many are wanted, as where a strided 1×1 convolution reads the crop.
    """

    kernel: int = 1
    stride: int = 1
    every: int = 1

    def size(self, side: int) -> int:
        """Return the side of what is left of a crop."""
        pooled = (side - self.kernel) // self.stride + 1
        return -(-pooled // self.every)


@dataclass(frozen=True)
class _Table:
    """Maps as rows of one table, and where in it each region reads.

    Attributes:
        rows: float [M, C]; the cells of all maps.
        first: int64 [N]; the first cell of a region's map, of its own image.
        heights: int64 [N]; of its map.
        widths: int64 [N]; alike.
    """

    rows: Tensor
    first: Tensor
    heights: Tensor
    widths: Tensor


def _table(maps: Sequence[Tensor], levels: Tensor) -> _Table:
    """Lay maps out, float [B, C, H, W] each, for regions of levels int64 [B, R]."""
    rows = [level.permute(0, 2, 3, 1).flatten(0, 2) for level in maps]
    numbers = [*(level.shape[-2] for level in maps), *(level.shape[-1] for level in maps)]
    cells = [level.shape[-2] * level.shape[-1] for level in maps]
    heights, widths, areas = constants([*numbers, *cells], levels.device, torch.int64).view(3, -1)
    images = torch.arange(levels.shape[0], device=levels.device).repeat_interleave(levels.shape[1])
    flat = levels.flatten()
    batch = torch.full((), maps[0].shape[0], device=levels.device)
    height, width = heights[flat], widths[flat]
    first = (areas.cumsum(0) - areas)[flat] * batch + images * height * width
    return _Table(torch.cat(rows) if len(rows) > 1 else rows[0], first, height, width)


def crop_and_resize(
    maps: Sequence[Tensor],
    boxes: Tensor,
    levels: Tensor,
    size: Size,
    *,
    fade: bool = False,
    nearest: bool = False,
    pool: Pool | None = None,
) -> Tensor:
    """Sample each region at a grid whose corners are the region's, as `tf.image.crop_and_resize`.

    Args:
        maps: L maps, float [B, C, H, W] each.
        boxes: float32 [B, R, 4], xyxy in units of the map (0..1 spans the centres of its corner pixels).
        levels: int64 [B, R] in 0..L-1; the map of each region.
        fade: Beyond the map's border TF's native form is 0 at once; its form by matrix products, which this asks
            for, falls to 0 within a pixel.
        nearest: Whether a sample is its nearest pixel's value, rather than one between its neighbours'.
        pool: Keeps the largest of each window; None for all cells.

    Returns:
        float [B, R, C, h, w]; 0 where a sample lies outside the map.
    """
    flat = boxes.reshape(-1, 4)
    border: Border = "fade" if fade else "drop"
    table = _table(maps, levels)
    lay = _corners_by_products if fade else corners
    axes = [
        taps(lay(flat[:, side], flat[:, side + 2], extent - 1, cells), extent, border=border, nearest=nearest)
        for side, extent, cells in zip((1, 0), (table.heights, table.widths), size, strict=True)
    ]
    crops = _pooled(table, axes[0], axes[1], pool or Pool())
    return crops.view(*boxes.shape[:2], *crops.shape[1:])


def corner_taps(boxes: Tensor, extent: Size, size: Size, *, fade: bool = False) -> tuple[Taps, Taps]:
    """Return what the rows and the columns of crops read, laid as `crop_and_resize` lays them.

    Args:
        boxes: float32 [N, 4], xyxy in units of the map.
        extent: (H, W) of the map, the same for all.

    Returns:
        The taps of the rows, and of the columns.
    """
    lay, axes = (_corners_by_products if fade else corners), []
    for side, rows, cells in zip((1, 0), extent, size, strict=True):
        extents = torch.full((boxes.shape[0],), rows, device=boxes.device)
        positions = lay(boxes[:, side], boxes[:, side + 2], extents - 1, cells)
        axes.append(taps(positions, extents, border="fade" if fade else "drop"))
    return axes[0], axes[1]


def grid_align(
    maps: Sequence[Tensor],
    boxes: Tensor,
    levels: Tensor,
    size: Size,
    *,
    samples: Size = (1, 1),
    align_corners: bool = False,
) -> Tensor:
    """Average samples of each cell of a region (TF's `multilevel_roi_align`).

    Args:
        maps: L maps, float [B, C, H, W] each.
        boxes: float32 [B, R, 4], xyxy in units of the map (0..1 spans the centres of its corner pixels).
        levels: int64 [B, R] in 0..L-1; the map of each region.
        samples: Samples of a cell in y and in x.
        align_corners: Whether the samples' corners are the region's; if not, samples lie at the centres of equal parts.

    Returns:
        float [B, R, C, h, w]; beyond the border values fall to 0 within a pixel.
    """
    flat, table = boxes.reshape(-1, 4), _table(maps, levels)
    axes, extents = [], (table.heights, table.widths)
    for side, extent, cells, count in zip((1, 0), extents, size, samples, strict=True):
        lay = _corners_by_products if align_corners else _centres
        positions = lay(flat[:, side], flat[:, side + 2], extent - 1, cells * count)
        axes.append(taps(positions, extent, samples=count, border="fade"))
    crops = _weighted_gather(table, axes[0], axes[1])
    return crops.view(*boxes.shape[:2], *crops.shape[1:])


def roi_align(
    maps: Sequence[Tensor],
    boxes: Tensor,
    levels: Tensor,
    size: Size,
    *,
    input_size: Size,
    samples: int = 2,
    aligned: bool = True,
) -> Tensor:
    """Average samples² samples of each cell of a region (Mask R-CNN, section 3), as torchvision does.

    Args:
        maps: L maps, float [B, C, H, W] each.
        boxes: float32 [B, R, 4], xyxy in pixels of the network's input.
        levels: int64 [B, R] in 0..L-1; the map of each region.
        input_size: (height, width) that the maps span together with their padding.
        samples: Samples of a cell in either direction.
        aligned: Whether pixels have their centres half a pixel in; if not, regions are shifted by half a cell of the
            map, and no smaller than one (Detectron's first form).

    Returns:
        float [B, R, C, h, w].
    """
    flat, table = boxes.reshape(-1, 4), _table(maps, levels)
    axes, extents = [], (table.heights, table.widths)
    for side, extent, whole, cells in zip((1, 0), extents, input_size, size, strict=True):
        scale = extent / whole
        start, end = flat[:, side] * scale, flat[:, side + 2] * scale
        length = end - start if aligned else (end - start).clamp(min=1)
        start = start - 0.5 if aligned else start
        steps = (torch.arange(cells * samples, device=boxes.device) + 0.5) / (cells * samples)
        axes.append(taps(start[:, None] + length[:, None] * steps, extent, samples=samples, border="hold"))
    crops = _weighted_gather(table, axes[0], axes[1])
    return crops.view(*boxes.shape[:2], *crops.shape[1:])


def _weighted_gather(table: _Table, rows: Taps, columns: Taps) -> Tensor:
    """Sum what each cell reads: float [N, C, h, w], channels last in memory; in the maps' type.

    Args:
        rows: What the h rows of cells read.
        columns: What the w columns of cells read.
    """
    row_starts = table.first[:, None, None] + rows.places * table.widths[:, None, None]
    places = row_starts[:, :, None, :, None] + columns.places[:, None, :, None, :]
    weights = rows.weights[:, :, None, :, None] * columns.weights[:, None, :, None, :]
    count, h, w = places.shape[:3]
    if count == 0:
        return table.rows.new_zeros(0, table.rows.shape[1], h, w)
    weights = weights.reshape(count * h * w, -1).to(table.rows.dtype)
    found = _weighted_rows(table.rows, places.reshape(count * h * w, -1), weights)
    return found.view(count, h, w, -1).permute(0, 3, 1, 2)


def _weighted_rows(table: Tensor, places: Tensor, weights: Tensor) -> Tensor:
    """Sum rows of a table [M, C], at places int64 [N, t], by weights [N, t]; [N, C]."""
    if not torch.compiler.is_exporting():
        return F.embedding_bag(places, table, mode="sum", per_sample_weights=weights)
    # Other runtimes have no such operation; they would do it row by row.
    found = table[places[:, 0]] * weights[:, :1]
    for tap in range(1, places.shape[1]):
        found = found + table[places[:, tap]] * weights[:, tap : tap + 1]
    return found


def _pooled(table: _Table, rows: Taps, columns: Taps, pool: Pool) -> Tensor:
    """Crop, and keep the largest of each window: one gather for each place in a window, so no crop is held whole."""
    height, width = pool.size(rows.places.shape[1]), pool.size(columns.places.shape[1])
    step = pool.stride * pool.every
    largest: Tensor | None = None
    for y, x in product(range(pool.kernel), repeat=2):
        cells = _weighted_gather(table, rows.every(y, step, height), columns.every(x, step, width))
        largest = cells if largest is None else torch.maximum(largest, cells)
    if largest is None:
        raise ValueError("a pool has a kernel of at least 1")
    return largest


def corners(start: Tensor, end: Tensor, last: Tensor, count: int) -> Tensor:
    """Lay positions from start to end, in TF's order of operations; one position lies in the middle.

    Args:
        start: float32 [N], in 0..1 of a map.
        end: float32 [N], alike.
        last: The last row or column of the map, [N] or [].

    Returns:
        float32 [N, count], in rows or columns of the map.
    """
    if count == 1:
        return (0.5 * (start + end) * last)[:, None]
    step = (end - start) * last / (count - 1)
    return (start * last)[:, None] + torch.arange(count, device=start.device) * step[:, None]


def _corners_by_products(start: Tensor, end: Tensor, last: Tensor, count: int) -> Tensor:
    """Lay the same positions in the order of operations of TF's form by matrix products."""
    start, end = start * last, end * last
    if count == 1:
        return (0.5 * (start + end))[:, None]
    return start[:, None] + (end - start)[:, None] * torch.linspace(0, 1, count, device=start.device)


def _centres(start: Tensor, end: Tensor, last: Tensor, count: int) -> Tensor:
    """Lay [N, count] positions at the centres of equal parts between start and end."""
    steps = (torch.arange(count, device=start.device) + 0.5) / count
    return (start[:, None] + (end - start)[:, None] * steps) * last[:, None]


def taps(positions: Tensor, extent: Tensor, *, border: Border, samples: int = 1, nearest: bool = False) -> Taps:
    """Return what cells read at positions between rows or columns of a map.

    Args:
        positions: float32 [N, n·samples], in rows or columns.
        extent: int64 [N]; rows or columns of each map.
        border: What a position outside the map is.
        samples: Positions of a cell, which averages them.
        nearest: Whether a position reads the nearest row alone.
    """
    last = (extent - 1)[:, None]
    if border == "hold":
        inside = (positions >= -1) & (positions <= extent[:, None])
        positions = torch.minimum(positions.clamp(min=0), last.to(positions.dtype))
    # What is not a number, or far away, reads the border and counts nothing.
    low = positions.nan_to_num(nan=-2.0).clamp(-2.0, 1e6).floor()
    share = positions - low
    if nearest:
        share = (share >= 0.5).to(share.dtype)
    places = torch.stack([low, low + 1], dim=-1).long()
    exists = (places >= 0) & (places <= last[..., None])
    weights = torch.stack([1 - share, share], dim=-1)
    if border == "drop":
        inside = (positions >= 0) & (positions <= last)
    if border != "fade":
        exists = exists & inside[..., None]
    weights = torch.where(exists, weights, 0.0) / samples
    places = torch.minimum(places.clamp(min=0), last[..., None])
    count = positions.shape[1] // samples
    shape = (positions.shape[0], count, 2 * samples)
    return Taps(places.view(shape), weights.view(shape))
