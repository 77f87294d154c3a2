"""Peaks of heatmaps (Objects as Points, section 3.1): local maxima, which take the place of suppression.

Dimensions: B batch, C channels, H W grid of cells, D peaks.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn import functional as F

from boxwright.nn.layers import same_padding

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
        maxima, size = values.clone(), values.shape[axis]
        for step in range(1, min(window // 2, size - 1) + 1):
            for to, of in ((step, 0), (0, step)):
                into = maxima.narrow(axis, to, size - step)
                torch.maximum(into, values.narrow(axis, of, size - step), out=into)
        values = maxima
    return values


def best_peaks(heatmap: Tensor, count: int, window: int, inside: Tensor | None = None) -> Peaks:
    """Return the best peaks of an image across channels, [B, D]; D is `count`, or the number of cells and channels.

    Args:
        heatmap: float [B, C, H, W], not negative.
        count: D.
        window: The side of the window in which a peak is the maximum, in cells.
        inside: bool [B, 1, H, W]; cells that count, others are 0. None for all.
    """
    channels, width = heatmap.shape[1], heatmap.shape[-1]
    if torch.compiler.is_compiling():  # a graph of few operators, which every runtime has
        scores, places = largest(_as_rows(only_peaks(_within(heatmap, inside), window)).flatten(1), count)
        return Peaks(scores, places % channels, _cells(places // channels, width))
    if few := _find_peaks_among_few_cells(heatmap, count, window, inside):
        cells, values = few
        # All of so few are sorted, so that of equal ones the first are taken.
        scores, places = values.flatten(1).sort(dim=-1, descending=True, stable=True)
        scores, places = scores[:, :count], places[:, :count]
    else:
        cells, values = _find_peaks_in_best_cells(_within(heatmap, inside), count, window)
        scores, places = largest(values.flatten(1), count)
    return Peaks(scores, places % channels, _cells(cells.gather(1, places // channels), width))


def _within(heatmap: Tensor, inside: Tensor | None) -> Tensor:
    return heatmap if inside is None else heatmap * inside


def _find_peaks_in_best_cells(heatmap: Tensor, count: int, window: int) -> tuple[Tensor, Tensor]:
    """Return the cells [B, n] that hold the best peaks, and their values [B, n, C], 0 but for peaks."""
    values = _as_rows(only_peaks(heatmap, window))
    # The best values lie in the cells whose own best are the best: these are found among far fewer numbers.
    cells, _ = values.amax(-1).topk(min(count, values.shape[1]), dim=-1).indices.sort(dim=-1)
    return cells, values.gather(1, cells[..., None].expand(-1, -1, values.shape[-1]))


def _find_peaks_among_few_cells(
    heatmap: Tensor, count: int, window: int, inside: Tensor | None
) -> tuple[Tensor, Tensor] | None:
    """Return the same in a quarter of the time; None where too many cells are left to compare.

    A cell whose best value is the maximum of all channels around it is a peak for certain. So there are `count` peaks
    no worse than the last of the `count` best such cells, and cells without a value as good hold none of the best.
    Their number depends on the data, so reading it would make a GPU wait.
    """
    batch, channels, height, width = heatmap.shape
    if heatmap.device.type != "cpu" or window <= 1 or window % 2 == 0 or count > height * width:
        return None
    rows = _as_rows(heatmap)
    best = rows.amax(-1)
    if inside is not None:
        best = best * inside.flatten(1)
    certain = only_peaks(best.view(batch, 1, height, width), window).flatten(1)
    least = certain.topk(count, dim=-1, sorted=False).values.amin(-1, keepdim=True)
    few = max(int((best >= least).sum(-1).amax()), count)
    if few * window * window > height * width:
        return None
    cells, _ = best.topk(few, dim=-1).indices.sort(dim=-1)
    reach = torch.arange(-(window // 2), window // 2 + 1)
    y = (cells[..., None] // width + reach).clamp(0, height - 1)
    x = (cells[..., None] % width + reach).clamp(0, width - 1)
    around = (y[..., :, None] * width + x[..., None, :]).flatten(1)
    near = rows.gather(1, around[..., None].expand(-1, -1, channels))
    if inside is not None:
        near = near * inside.flatten(1).gather(1, around)[..., None]
    near = near.view(batch, few, window * window, channels)
    values = near[:, :, window * window // 2]
    return cells, near.amax(2).sub_(values).lt_(_SAME).mul_(values)


def _as_rows(heatmap: Tensor) -> Tensor:
    """Return a heatmap [B, C, H, W] with a row of channels for each cell, [B, H · W, C]."""
    return heatmap.permute(0, 2, 3, 1).flatten(1, 2)


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
