"""RF-DETR's masks: each query weighs the channels of one fine map of its image.

Dimensions: B batch, Q queries, D width, H W input, h w map of masks.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from boxwright.families.rf_detr.backbone import ChannelNorm


@dataclass(frozen=True)
class MaskFactors:
    """What the masks of a set of queries are products of; only those that are needed are multiplied.

    Attributes:
        channels: [B, D, h, w].
        queries: [B, Q, D]; the weights of these channels.
        bias: [1]; of every cell.
    """

    channels: Tensor
    queries: Tensor
    bias: Tensor

    def logits(self, places: Tensor) -> Tensor:
        """Return the masks [B, R, h, w] of the queries at places int64 [B, R]."""
        chosen = self.queries.gather(1, places[..., None].expand(-1, -1, self.queries.shape[2]))
        masks: Tensor = (chosen @ self.channels.flatten(2)).unflatten(2, self.channels.shape[2:])
        return masks + self.bias


class MapBlock(nn.Module):
    """A convolution of each channel, and a layer of each cell, around which the map passes (ConvNeXt's, shortened)."""

    def __init__(self, depth: int) -> None:
        """Build the layers."""
        super().__init__()
        self.dwconv = nn.Conv2d(depth, depth, 3, padding=1, groups=depth)
        self.norm = ChannelNorm(depth)
        self.pwconv1 = nn.Linear(depth, depth)

    def forward(self, inputs: Tensor) -> Tensor:
        """Return [B, D, h, w]."""
        cells = self.norm(self.dwconv(inputs)).movedim(1, -1)
        return inputs + F.gelu(self.pwconv1(cells)).movedim(-1, 1)


class QueryBlock(nn.Module):
    """A feed-forward network of each query, normalized before it."""

    def __init__(self, depth: int) -> None:
        """Build the layers."""
        super().__init__()
        self.norm_in = nn.LayerNorm(depth)
        self.layers = nn.Sequential(nn.Linear(depth, 4 * depth), nn.GELU(), nn.Linear(4 * depth, depth))

    def forward(self, queries: Tensor) -> Tensor:
        """Return [B, Q, D]."""
        outputs: Tensor = queries + self.layers(self.norm_in(queries))
        return outputs


class MaskHead(nn.Module):
    """From the finest map, enlarged and refined by a block for each layer of the decoder, and queries to masks.

    Attributes:
        stride: Pixels of the input along a side of a mask's cell.
    """

    def __init__(self, depth: int, layers: int, stride: int = 4) -> None:
        """Build the layers."""
        super().__init__()
        self.stride = stride
        self.blocks = nn.ModuleList(MapBlock(depth) for _ in range(layers))
        self.spatial_features_proj = nn.Conv2d(depth, depth, 1)
        self.query_features_block = QueryBlock(depth)
        self.query_features_proj = nn.Linear(depth, depth)
        self.bias = nn.Parameter(torch.zeros(1))

    def forward(
        self, finest: Tensor, layers: Sequence[Tensor], encoder: Tensor | None, size: tuple[int, int]
    ) -> tuple[MaskFactors, ...]:
        """Return the factors of the last layers' masks, and after them those of the encoder.

        Args:
            finest: [B, D, …].
            layers: Features of queries [B, Q, D] of the last layers of the decoder, as many as wanted.
            encoder: Features of the chosen cells [B, Q, D]; None if their masks are not wanted.
            size: (H, W).
        """
        shape = (size[0] // self.stride, size[1] // self.stride)
        refined = enlarged = F.interpolate(finest, shape, mode="bilinear", align_corners=False)
        factors, first = [], len(self.blocks) - len(layers)
        for number, block in enumerate(self.blocks):
            refined = block(refined)
            if number >= first:
                factors.append(self._factors(refined, layers[number - first]))
        if encoder is not None:
            factors.append(self._factors(enlarged, encoder))
        return tuple(factors)

    def _factors(self, features: Tensor, queries: Tensor) -> MaskFactors:
        weights = self.query_features_proj(self.query_features_block(queries))
        return MaskFactors(self.spatial_features_proj(features), weights, self.bias)
