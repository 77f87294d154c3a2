"""Peaks of heatmaps (Objects as Points, section 3.1): local maxima, which take the place of suppression.

Dimensions: B batch, C channels, H W grid of cells, D peaks.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn import functional as F

from boxwright.ops.padding import same_padding

# A cell is a peak if the maximum around it is larger by less.
_SAME = 1e-6


@dataclass(frozen=True)
class Peaks:
    """The best peaks, best first.

    Attributes:
        scores: float [..., D]; 0 where there are too few peaks.
        channels: int64 [..., D].
        cells: int64 [..., D, 2]; rows and columns.
    """

    scores: Tensor
    channels: Tensor
    cells: Tensor


def only_peaks(heatmap: Tensor, window: int) -> Tensor:
    """Return a heatmap [B, C, H, W], 0 but where a value is the maximum of its channel within a square window."""
    if window <= 1:
        return heatmap
    # As numbers 0 and 1 in one tensor: a product of numbers with truth values takes four times as long.
    return _window_maximum(heatmap, window).sub_(heatmap).lt_(_SAME).mul_(heatmap)


def _window_maximum(values: Tensor, window: int) -> Tensor:
    """Return the maximum around each cell of [B, C, H, W], within a square window that TF would lay there."""
    if torch.compiler.is_compiling() or window % 2 == 0:
        padded = F.pad(values, same_padding(values, (window, window), 1), value=-torch.inf)
        return F.max_pool2d(padded, window, 1)
    # Row by row, then column by column: pooling took twice as long, as it does not keep channels last in memory.
    for axis in (2, 3):
        found, size = values.clone(), values.shape[axis]
        for step in range(1, min(window // 2, size - 1) + 1):
            for to, of in ((step, 0), (0, step)):
                into = found.narrow(axis, to, size - step)
                torch.maximum(into, values.narrow(axis, of, size - step), out=into)
        values = found
    return values


def best_peaks(heatmap: Tensor, count: int, window: int) -> Peaks:
    """Return the best peaks of an image across channels, [B, D]; D is `count`, or the number of cells and channels."""
    _, channels, _, width = heatmap.shape
    values = only_peaks(heatmap, window).permute(0, 2, 3, 1).flatten(1, 2)
    if torch.compiler.is_compiling():  # a graph of few operators, which every runtime has
        scores, places = largest(values.flatten(1), count)
        return Peaks(scores, places % channels, _cells(places // channels, width))
    # The best values lie in the cells whose own best are the best: these are found among far fewer numbers.
    cells, _ = values.amax(-1).topk(min(count, values.shape[1]), dim=-1).indices.sort(dim=-1)
    among = values.gather(1, cells[..., None].expand(-1, -1, channels)).flatten(1)
    scores, places = largest(among, count)
    return Peaks(scores, places % channels, _cells(cells.gather(1, places // channels), width))


def best_of_each_channel(heatmap: Tensor, count: int, window: int) -> Peaks:
    """Return the best peaks of each channel, [B, C, D]; D is `count`, or the number of cells."""
    values = only_peaks(heatmap, window).flatten(2)
    scores, places = largest(values, count)
    channels = torch.arange(values.shape[1], device=values.device)[:, None].expand_as(places)
    return Peaks(scores, channels, _cells(places, heatmap.shape[-1]))


def largest(values: Tensor, count: int) -> tuple[Tensor, Tensor]:
    """Return the largest numbers of [..., N], and their places; equal ones in the order of these, as in TF."""
    best = values.topk(min(count, values.shape[-1]), dim=-1)
    if torch.compiler.is_compiling():  # other runtimes keep that order anyway, and lack stable sorts
        return best.values, best.indices
    places, order = best.indices.sort(dim=-1)
    scores, order = best.values.gather(-1, order).sort(dim=-1, descending=True, stable=True)
    return scores, places.gather(-1, order)


def _cells(places: Tensor, width: int) -> Tensor:
    return torch.stack([places // width, places % width], dim=-1)
