"""Cropping regions out of feature maps and groundtruth masks: TensorFlow's crop-and-resize, and RoIAlign.

Every method gives, for each cell of a crop and each axis, the rows (or columns) of the map to read and their weights.
So all are one weighted gather, which reads only a region's own map.

Dimensions: B batch, R D regions of an image, N = B·R, C channels, H W feature map, h w crop, L levels, t taps per cell.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import product
from typing import Literal

import torch
from torch import Tensor
from torch.nn import functional as F

from boxwright.base.device import constants
from boxwright.nn.ops.boxes import normalized
from boxwright.types.masks import InstanceMasks

Size = tuple[int, int]
# The value of a sample outside the map: 0; the border faded to 0 within a pixel; or the border within a pixel.
Border = Literal["drop", "fade", "hold"]


@dataclass(frozen=True)
class Taps:
    """The taps of each cell along one axis.

    Attributes:
        places: int64 [N, n, t]; rows or columns of the map.
        weights: float32 [N, n, t].
    """

    places: Tensor
    weights: Tensor

    def every(self, first: int, step: int, count: int) -> Taps:
        """Return the taps of `count` cells from `first` on, `step` apart."""
        cells = slice(first, first + step * (count - 1) + 1, step)
        return Taps(self.places[:, cells], self.weights[:, cells])


@dataclass(frozen=True)
class Pool:
    """Max pooling of a crop, without padding.

    Attributes:
        every: The step between the pooled cells to compute, as for a strided 1×1 convolution that reads the crop.
    """

    kernel: int = 1
    stride: int = 1
    every: int = 1

    def size(self, side: int) -> int:
        """Return the side of a pooled crop."""
        pooled = (side - self.kernel) // self.stride + 1
        return -(-pooled // self.every)


@dataclass(frozen=True)
class _Table:
    """Maps as rows of one table, and each region's map in it.

    Attributes:
        rows: float [M, C]; the cells of all maps.
        first: int64 [N]; the first cell of each region's map, in its own image.
        heights: int64 [N]; of each region's map.
        widths: int64 [N]; of each region's map.
    """

    rows: Tensor
    first: Tensor
    heights: Tensor
    widths: Tensor


def _table(maps: Sequence[Tensor], levels: Tensor) -> _Table:
    """Return maps, float [B, C, H, W] each, as a table for regions of levels int64 [B, R]."""
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
    """Return each region sampled at a grid spanning its corners, as `tf.image.crop_and_resize`.

    Args:
        maps: L maps, float [B, C, H, W] each.
        boxes: float32 [B, R, 4], xyxy in units of the map (0..1 spans the centers of its corner pixels).
        levels: int64 [B, R] in 0..L-1; the map of each region.
        fade: Whether samples fall to 0 within a pixel beyond the map's border, as in TF's form by matrix products,
            instead of at once, as in its native form.
        nearest: Whether a sample takes the nearest pixel's value instead of an interpolated one.
        pool: Max pooling of the crop; None for all cells.

    Returns:
        float [B, R, C, h, w]; 0 for samples outside the map.
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
    """Return the taps of the rows and columns of crops, as `crop_and_resize` lays them.

    Args:
        boxes: float32 [N, 4], xyxy in units of the map.
        extent: (H, W) of the map, the same for all.
    """
    lay, axes = (_corners_by_products if fade else corners), []
    for side, rows, cells in zip((1, 0), extent, size, strict=True):
        extents = torch.full((boxes.shape[0],), rows, device=boxes.device)
        positions = lay(boxes[:, side], boxes[:, side + 2], extents - 1, cells)
        axes.append(taps(positions, extents, border="fade" if fade else "drop"))
    return axes[0], axes[1]


def crop_each(maps: Tensor, boxes: Tensor, size: Size, owners: Tensor | None = None) -> Tensor:
    """Return the region that each box spans of its map, as `crop_and_resize`, for maps of one channel each.

    Whole rows are weighed, then whole columns; the gather of `crop_and_resize`, number by number, takes many times as
    long.

    Args:
        maps: float32 [M, H, W].
        boxes: float32 [N, 4], xyxy in units of the map.
        owners: int64 [N]; the map of each box. None where each has its own, in their order.

    Returns:
        float32 [N, h, w]; 0 for samples outside the map.
    """
    rows, columns = corner_taps(boxes, (maps.shape[-2], maps.shape[-1]), size)
    sampled = _sampled_rows(maps, rows, owners)
    return _sampled_rows(sampled.transpose(1, 2), columns).transpose(1, 2)


def _sampled_rows(maps: Tensor, cells: Taps, owners: Tensor | None = None) -> Tensor:
    """Return for N cells the weighted sums of the rows of maps [M, H, W] that they have taps on, [N, h, W]."""
    count, (height, width) = cells.places.shape[0], maps.shape[1:]
    own = torch.arange(count, device=maps.device) if owners is None else owners
    places, weights = (height * own[:, None, None] + cells.places).flatten(0, 1), cells.weights.flatten(0, 1)
    return _weighted_rows(maps.reshape(-1, width), places, weights).view(count, -1, width)


def grid_align(
    maps: Sequence[Tensor],
    boxes: Tensor,
    levels: Tensor,
    size: Size,
    *,
    samples: Size = (1, 1),
    align_corners: bool = False,
) -> Tensor:
    """Return the averages of samples of each cell of a region (TF's `multilevel_roi_align`).

    Args:
        maps: L maps, float [B, C, H, W] each.
        boxes: float32 [B, R, 4], xyxy in units of the map (0..1 spans the centers of its corner pixels).
        levels: int64 [B, R] in 0..L-1; the map of each region.
        samples: Samples per cell in y and in x.
        align_corners: Whether samples span the region's corners; if not, they lie at the centers of equal parts.

    Returns:
        float [B, R, C, h, w]; beyond the border values fall to 0 within a pixel.
    """
    flat, table = boxes.reshape(-1, 4), _table(maps, levels)
    axes, extents = [], (table.heights, table.widths)
    for side, extent, cells, count in zip((1, 0), extents, size, samples, strict=True):
        lay = _corners_by_products if align_corners else _centers
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
    """Return the averages of samples² samples of each cell of a region (Mask R-CNN, section 3), as torchvision does.

    Args:
        maps: L maps, float [B, C, H, W] each.
        boxes: float32 [B, R, 4], xyxy in pixels of the network's input.
        levels: int64 [B, R] in 0..L-1; the map of each region.
        input_size: (height, width) that the maps span together with their padding.
        samples: Samples per cell in each direction.
        aligned: Whether pixel centers are half a pixel in; if not, regions are shifted by half a cell of the map and
            are at least one cell large (Detectron's first form).

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
    """Return the weighted sums of each cell's taps, float [N, C, h, w], channels last, in the maps' type."""
    row_starts = table.first[:, None, None] + rows.places * table.widths[:, None, None]
    places = row_starts[:, :, None, :, None] + columns.places[:, None, :, None, :]
    weights = rows.weights[:, :, None, :, None] * columns.weights[:, None, :, None, :]
    count, h, w = places.shape[:3]
    if count == 0:
        return table.rows.new_zeros(0, table.rows.shape[1], h, w)
    weights = weights.reshape(count * h * w, -1).to(table.rows.dtype)
    sampled = _weighted_rows(table.rows, places.reshape(count * h * w, -1), weights)
    return sampled.view(count, h, w, -1).permute(0, 3, 1, 2)


def _weighted_rows(table: Tensor, places: Tensor, weights: Tensor) -> Tensor:
    """Return weighted sums [N, C] of rows of a table [M, C], at places int64 [N, t] with weights [N, t]."""
    if not torch.compiler.is_exporting():
        return F.embedding_bag(places, table, mode="sum", per_sample_weights=weights)
    # Other runtimes lack this operation, and would run it row by row.
    total = table[places[:, 0]] * weights[:, :1]
    for tap in range(1, places.shape[1]):
        total = total + table[places[:, tap]] * weights[:, tap : tap + 1]
    return total


def _pooled(table: _Table, rows: Taps, columns: Taps, pool: Pool) -> Tensor:
    """Return max-pooled crops by one gather for each place in a window, without holding a whole crop."""
    height, width = pool.size(rows.places.shape[1]), pool.size(columns.places.shape[1])
    step = pool.stride * pool.every
    largest: Tensor | None = None
    for y, x in product(range(pool.kernel), repeat=2):
        cells = _weighted_gather(table, rows.every(y, step, height), columns.every(x, step, width))
        largest = cells if largest is None else torch.maximum(largest, cells)
    if largest is None:
        raise ValueError("a pool needs a kernel of at least 1")
    return largest


def corners(start: Tensor, end: Tensor, last: Tensor, count: int) -> Tensor:
    """Return positions [N, count] from start to end in TF's order of operations; a single one is in the middle.

    Args:
        start: float32 [N], in 0..1 of a map.
        end: float32 [N], in 0..1 of a map.
        last: The last row or column of the map, [N] or [].
    """
    if count == 1:
        return (0.5 * (start + end) * last)[:, None]
    step = (end - start) * last / (count - 1)
    return (start * last)[:, None] + torch.arange(count, device=start.device) * step[:, None]


def _corners_by_products(start: Tensor, end: Tensor, last: Tensor, count: int) -> Tensor:
    """Return the same positions in the order of operations of TF's form by matrix products."""
    start, end = start * last, end * last
    if count == 1:
        return (0.5 * (start + end))[:, None]
    return start[:, None] + (end - start)[:, None] * torch.linspace(0, 1, count, device=start.device)


def _centers(start: Tensor, end: Tensor, last: Tensor, count: int) -> Tensor:
    """Return positions [N, count] at the centers of equal parts between start and end."""
    steps = (torch.arange(count, device=start.device) + 0.5) / count
    return (start[:, None] + (end - start)[:, None] * steps) * last[:, None]


def taps(positions: Tensor, extent: Tensor, *, border: Border, samples: int = 1, nearest: bool = False) -> Taps:
    """Return the taps of cells at positions between rows or columns of a map.

    Args:
        positions: float32 [N, n·samples], in rows or columns.
        extent: int64 [N]; rows or columns of each map.
        border: The value of positions outside the map.
        samples: Positions averaged per cell.
        nearest: Whether a position reads only the nearest row.
    """
    last = (extent - 1)[:, None]
    if border == "hold":
        inside = (positions >= -1) & (positions <= extent[:, None])
        positions = torch.minimum(positions.clamp(min=0), last.to(positions.dtype))
    # NaN and far positions read the border with weight 0.
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


def mask_targets(
    masks: InstanceMasks,
    match: Tensor,
    boxes: Tensor,
    size: tuple[int, int],
    input_size: tuple[int, int],
    *,
    fade: bool = False,
) -> Tensor:
    """Return each region's crop of its object's mask, float32 [B, D, h, w] in 0..1; 0 for regions without an object.

    Args:
        masks: The groundtruth's, in the frame of the network's input.
        match: int64 [B, D]; the object of each region, below 0 for none.
        boxes: float32 [B, D, 4], xyxy in pixels of the input.
        fade: As for `crop_and_resize`.
    """
    if not masks.windows.shape[1]:
        return boxes.new_zeros(*match.shape, *size)
    object_of = match.clamp(min=0)
    windows = masks.windows.gather(1, object_of[..., None].expand(-1, -1, 4)).flatten(0, 1)
    starts = masks.starts.gather(1, object_of).flatten()
    # A window without height and width, in which no sample lies.
    windows = windows * (match.flatten() >= 0)[:, None]
    rows, columns = corner_taps(normalized(boxes, input_size).flatten(0, 1), input_size, size, fade=fade)
    top, left, height, width = (side[:, None, None] for side in windows.unbind(1))
    row, column = rows.places - top, columns.places - left
    row_weights = rows.weights * ((row >= 0) & (row < height))
    column_weights = columns.weights * ((column >= 0) & (column < width))
    row, column = row.clamp(min=0), column.clamp(min=0)
    places = starts[:, None, None, None, None] + (row * width)[:, :, None, :, None] + column[:, None, :, None, :]
    weights = row_weights[:, :, None, :, None] * column_weights[:, None, :, None, :]
    if not len(masks.values):
        return weights.new_zeros(*match.shape, *size)
    # Samples outside the window have weight 0, so their indices are arbitrary.
    picked = masks.values[places.clamp(max=len(masks.values) - 1)]
    return (picked * weights).sum((-2, -1)).view(*match.shape, *size)


def masks_at(masks: InstanceMasks, objects: Tensor, points: Tensor) -> Tensor:
    """Return which points lie in their object's mask, float32 [B, R, P] of 0 and 1.

    Args:
        masks: The groundtruth's, in the frame of the network's input.
        objects: int64 [B, R]; of each image.
        points: float [B, R, P, 2], or [B, 1, P, 2] for those of all objects; x and y in 0..1 of the input.
    """
    windows = masks.windows.gather(1, objects[..., None].expand(-1, -1, 4))
    top, left, height, width = (side[..., None] for side in windows.unbind(-1))
    sides = constants([masks.size[1], masks.size[0]], points.device)
    columns, rows = (points * sides).long().unbind(-1)
    row, column = rows - top, columns - left
    inside = (row >= 0) & (row < height) & (column >= 0) & (column < width)
    if not len(masks.values):
        return inside.float()
    # Outside of the window the place is arbitrary.
    places = masks.starts.gather(1, objects)[..., None] + row * width + column
    return (masks.values[places.clamp(0, len(masks.values) - 1)] * inside).float()


def whole_masks(masks: InstanceMasks, size: tuple[int, int]) -> Tensor:
    """Return every mask of a batch in a frame at least as large as the input's, float32 [B, G, H, W] of 0 and 1."""
    batch, count = masks.starts.shape
    device = masks.windows.device
    top, left, height, width = (side[..., None, None] for side in masks.windows.unbind(-1))
    row = torch.arange(size[0], device=device)[:, None] - top
    column = torch.arange(size[1], device=device) - left
    inside = (row >= 0) & (row < height) & (column >= 0) & (column < width)
    if not len(masks.values):
        return torch.zeros(batch, count, *size, device=device)
    # Outside of the window the place is arbitrary.
    places = masks.starts[..., None, None] + row * width + column
    return (masks.values[places.clamp(0, len(masks.values) - 1)] * inside).float()
