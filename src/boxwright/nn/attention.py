"""Attention of transformers: among tokens, and of queries to a few places of maps; and the small networks around it.

Dimensions: B batch, N tokens, Q queries, D width, M heads, P taps and T cells of all levels together,
c channels of a head.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from itertools import pairwise

import torch
from torch import Tensor, nn
from torch.nn import functional as F

# (height, width) of each level's map, finest first.
Grids = Sequence[tuple[int, int]]
# A hundredth of all queries is taken for an object at first, as in RetinaNet.
CLASS_BIAS = -math.log(99)


class SelfAttention(nn.Module):
    """Multi-head attention among tokens whose positions are added to queries and keys, but not to values."""

    def __init__(self, width: int, heads: int) -> None:
        """Build the layers, with PyTorch's initial values."""
        super().__init__()
        self.heads = heads
        # One tensor for queries, keys and values, as in PyTorch's own layer and the weights published for it.
        self.in_proj_weight = nn.Parameter(torch.empty(3 * width, width))
        self.in_proj_bias = nn.Parameter(torch.zeros(3 * width))
        self.out_proj = nn.Linear(width, width)
        nn.init.xavier_uniform_(self.in_proj_weight)
        nn.init.zeros_(self.out_proj.bias)

    def forward(self, tokens: Tensor, positions: Tensor, blocked: Tensor | None = None) -> Tensor:
        """Return [B, N, D].

        Args:
            tokens: [B, N, D].
            positions: Broadcasts to [B, N, D].
            blocked: bool [N, N]; True where a token (row) does not see another (column); None if all see all.
        """
        width = tokens.shape[-1]
        # Split, not sliced: the gradients of both parts are joined by one operation.
        weight, value_weight = self.in_proj_weight.split([2 * width, width])
        bias, value_bias = self.in_proj_bias.split([2 * width, width])
        with_positions = F.linear(tokens + positions, weight, bias).chunk(2, -1)
        values = F.linear(tokens, value_weight, value_bias)
        query, key, value = (
            tensor.unflatten(-1, (self.heads, -1)).transpose(1, 2) for tensor in (*with_positions, values)
        )
        seen = None if blocked is None else blocked.logical_not()
        read = F.scaled_dot_product_attention(query, key, value, attn_mask=seen)
        outputs: Tensor = self.out_proj(read.transpose(1, 2).flatten(2))
        return outputs


def flatten_maps(maps: Sequence[Tensor]) -> tuple[Tensor, Grids]:
    """Return the cells of all maps, finest first, [B, T, D], and the maps' (height, width)."""
    grids = [(features.shape[-2], features.shape[-1]) for features in maps]
    return torch.cat([features.flatten(2).transpose(1, 2) for features in maps], 1), grids


def deformable_attention(
    values: Tensor, grids: Grids, taps: Sequence[int], locations: Tensor, weights: Tensor
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
        F.grid_sample(level.unflatten(-1, grid).float(), place.float(), "bilinear", "zeros", align_corners=False)
        for level, grid, place in zip(maps, grids, places, strict=True)
    ]
    summed = torch.stack([(sampled * share).sum(2) for sampled, share in zip(read, shares, strict=True)]).sum(0)
    return summed.view(batch, -1, queries).transpose(1, 2).to(values.dtype)


def star_directions(heads: int, taps: Sequence[int]) -> Tensor:
    """Return initial offsets float32 [M, P, 2]: head m looks along angle 2πm / M, and its taps ever farther."""
    angles = torch.arange(heads, dtype=torch.float32) * (2 * torch.pi / heads)
    directions = torch.stack([angles.cos(), angles.sin()], -1)
    directions = directions / directions.abs().amax(-1, keepdim=True)
    steps = torch.cat([torch.arange(1, count + 1, dtype=torch.float32) for count in taps])
    return directions[:, None] * steps[:, None]


class Mlp(nn.Module):
    """Linear layers with an activation between them."""

    def __init__(self, widths: Sequence[int], activation: type[nn.Module], *, zero_last: bool = False) -> None:
        """Build layers from each width to the next; with `zero_last`, the last one starts at 0."""
        super().__init__()
        self.layers = nn.ModuleList(nn.Linear(a, b) for a, b in pairwise(widths))
        self.act = activation()
        if zero_last:
            last = self.layers[-1]
            nn.init.zeros_(last.get_parameter("weight"))
            nn.init.zeros_(last.get_parameter("bias"))

    def forward(self, inputs: Tensor) -> Tensor:
        """Return [..., the last width]."""
        for layer in self.layers[:-1]:
            inputs = self.act(layer(inputs))
        outputs: Tensor = self.layers[-1](inputs)
        return outputs
