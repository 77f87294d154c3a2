"""Deformable attention (Zhu et al., 2021): each query reads a few places of each map, wherever it likes.

Dimensions: B batch, Q queries, M heads, c channels of a head, L levels, P taps of all levels together, T cells of all
levels together.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor
from torch.nn import functional as F


def deformable_attention(
    values: Tensor, grids: Sequence[tuple[int, int]], taps: Sequence[int], locations: Tensor, weights: Tensor
) -> Tensor:
    """Return the weighted sum of what each query's taps read, [B, Q, M · c].

    Args:
        values: [B, T, M · c]; the cells of all levels, row by row.
        grids: (height, width) of each level.
        taps: Of each level, how many places a head reads; their sum is P.
        locations: float32 [B, Q, M, P, 2]; x and y in 0..1 of the map. Values are interpolated bilinearly between
            pixel centers, and are 0 outside.
        weights: [B, Q, M, P].
    """
    batch, queries, heads = weights.shape[:3]
    maps = values.unflatten(-1, (heads, -1)).permute(0, 2, 3, 1).flatten(0, 1).split([h * w for h, w in grids], -1)
    # Queries last: a sum over few taps in the innermost dimension took three times as long with its gradient on a CPU.
    places = (2 * locations - 1).permute(0, 2, 3, 1, 4).flatten(0, 1).split(list(taps), 1)
    shares = weights.permute(0, 2, 3, 1).flatten(0, 1)[:, None].split(list(taps), 2)
    read = [
        F.grid_sample(one.unflatten(-1, grid).float(), place.float(), "bilinear", "zeros", align_corners=False)
        for one, grid, place in zip(maps, grids, places, strict=True)
    ]
    summed = torch.stack([(one * share).sum(2) for one, share in zip(read, shares, strict=True)]).sum(0)
    return summed.view(batch, -1, queries).transpose(1, 2).to(values.dtype)


def star_directions(heads: int, taps: Sequence[int]) -> Tensor:
    """Return initial offsets float32 [M, P, 2]: head m looks along angle 2πm / M, and its taps ever farther."""
    angles = torch.arange(heads, dtype=torch.float32) * (2 * torch.pi / heads)
    directions = torch.stack([angles.cos(), angles.sin()], -1)
    directions = directions / directions.abs().amax(-1, keepdim=True)
    steps = torch.cat([torch.arange(1, count + 1, dtype=torch.float32) for count in taps])
    return directions[:, None] * steps[:, None]
