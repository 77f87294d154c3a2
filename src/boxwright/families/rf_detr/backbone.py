"""RF-DETR's backbone: DINOv2's vision transformer, whose blocks mostly attend within windows, and the projector.

Vision transformer: Dosovitskiy et al., 2021; DINOv2: Oquab et al., 2024; windows: LW-DETR (Chen et al., 2024).

Dimensions: B batch, C width, H W input, h w grid of patches, S windows of an image, N tokens of a window, D channels of
the projected maps.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from boxwright.nn.drop_path import StochasticDepth
from boxwright.nn.network import Backbone

_EPSILON = 1e-6


@dataclass(frozen=True)
class VitLayout:
    """The shape of a vision transformer with windows.

    Attributes:
        patch: Side of a patch in pixels.
        windows: Windows along each side of an image.
        grid: Side of the grid of patches that positions are stored for.
        taken: After how many blocks a map is taken, rising. The same numbers, counted from 0, are the blocks that
            attend to the whole image, as are blocks beyond the last of them; the others attend within windows.
        drop_path: The share of windows for which training skips the last block; blocks before it are skipped less.
    """

    width: int
    depth: int
    heads: int
    patch: int
    windows: int
    grid: int
    taken: tuple[int, ...]
    drop_path: float = 0.0
    expansion: int = 4

    def is_global(self, block: int) -> bool:
        """Return whether a block, counted from 0, attends to the whole image."""
        return block in self.taken or block > self.taken[-1]


class Attention(nn.Module):
    """Multi-head attention among tokens."""

    def __init__(self, width: int, heads: int) -> None:
        """Build the layers."""
        super().__init__()
        self.heads = heads
        self.query, self.key, self.value, self.output = (nn.Linear(width, width) for _ in range(4))

    def forward(self, tokens: Tensor) -> Tensor:
        """Return [B, N, C]."""
        query, key, value = (
            layer(tokens).unflatten(-1, (self.heads, -1)).transpose(1, 2)
            for layer in (self.query, self.key, self.value)
        )
        outputs: Tensor = self.output(F.scaled_dot_product_attention(query, key, value).transpose(1, 2).flatten(2))
        return outputs


class Block(nn.Module):
    """Attention and a feed-forward network, normalized before each, and scaled by channel after each."""

    def __init__(self, layout: VitLayout, number: int) -> None:
        """Build the layers of the block of a number, counted from 0."""
        super().__init__()
        width, hidden = layout.width, layout.expansion * layout.width
        self.norm1, self.norm2 = nn.LayerNorm(width, _EPSILON), nn.LayerNorm(width, _EPSILON)
        self.attention = Attention(width, layout.heads)
        self.fc1, self.fc2 = nn.Linear(width, hidden), nn.Linear(hidden, width)
        self.scale1, self.scale2 = nn.Parameter(torch.ones(width)), nn.Parameter(torch.ones(width))
        self.drop = StochasticDepth(layout.drop_path * number / max(layout.depth - 1, 1))

    def forward(self, tokens: Tensor, windows: int) -> Tensor:
        """Return [B · S, N, C]; of so many windows the attention is common."""
        normed = self.norm1(tokens)
        joined = normed.view(-1, windows * normed.shape[1], normed.shape[2])
        tokens = tokens + self.drop(self.scale1 * self.attention(joined).view_as(tokens))
        fed: Tensor = self.fc2(F.gelu(self.fc1(self.norm2(tokens))))
        outputs: Tensor = tokens + self.drop(self.scale2 * fed)
        return outputs


class WindowedVit(Backbone):
    """A vision transformer whose windows are sequences of their own, each with the class token."""

    def __init__(self, layout: VitLayout, channels: int = 3) -> None:
        """Build the layers for images of so many channels."""
        super().__init__()
        self.layout, width = layout, layout.width
        self.channels = (width,) * len(layout.taken)
        self.patches = nn.Conv2d(channels, width, layout.patch, layout.patch)
        self.class_token = nn.Parameter(torch.zeros(1, 1, width))
        self.positions = nn.Parameter(torch.empty(1, 1 + layout.grid**2, width))
        self.blocks = nn.ModuleList(Block(layout, number) for number in range(layout.depth))
        self.norm = nn.LayerNorm(width, _EPSILON)
        nn.init.trunc_normal_(self.positions, std=0.02)
        for module in self.modules():
            if isinstance(module, nn.Linear | nn.Conv2d):
                nn.init.trunc_normal_(module.weight, std=0.02)
                if module.bias is not None:
                    nn.init.zeros_(module.bias)

    def forward(self, inputs: Tensor) -> list[Tensor]:
        """Return the maps [B, C, h, w] after the layout's blocks; sides of inputs divide by patches and windows."""
        side = self.layout.windows
        windows = side * side
        patches = self.patches(inputs).movedim(1, -1)
        grid = (patches.shape[1], patches.shape[2])
        placed = patches + self._grid_positions(grid, square=inputs.shape[2] == inputs.shape[3])
        tokens = _split(placed, side).flatten(1, 2)
        first = (self.class_token + self.positions[:, :1]).to(tokens).expand(tokens.shape[0], -1, -1)
        tokens = torch.cat([first, tokens], 1)
        maps = []
        for number, block in enumerate(self.blocks):
            tokens = block(tokens, windows if self.layout.is_global(number) else 1)
            if number + 1 in self.layout.taken:
                window = (grid[0] // side, grid[1] // side)
                maps.append(_join(self.norm(tokens)[:, 1:].unflatten(1, window), side).movedim(-1, 1))
        return maps

    def _grid_positions(self, grid: tuple[int, int], *, square: bool) -> Tensor:
        """Return the positions of a grid's patches [1, h, w, C]: those stored, or resized in float32."""
        side, positions = self.layout.grid, self.positions[:, 1:]
        stored: Tensor = positions.unflatten(1, (side, side))
        # Square inputs of as many patches have the stored grid itself.
        if square and grid[0] * grid[1] == side * side:
            return stored
        return resize_positions(stored, grid)


def resize_positions(stored: Tensor, grid: tuple[int, int]) -> Tensor:
    """Return positions [1, h, w, C] of another grid, interpolated bicubically, with antialiasing, in float32."""
    resized = F.interpolate(
        stored.movedim(-1, 1).float(), grid, mode="bicubic", antialias=True, align_corners=False
    ).movedim(1, -1)
    return resized.to(stored.dtype)


def _split(cells: Tensor, side: int) -> Tensor:
    """Return the windows [B · side², h / side, w / side, C] of maps [B, h, w, C], row by row."""
    windows: Tensor = cells.unflatten(2, (side, -1)).unflatten(1, (side, -1)).transpose(2, 3).flatten(0, 2)
    return windows


def _join(windows: Tensor, side: int) -> Tensor:
    """Return the maps [B, h, w, C] of windows [B · side², h / side, w / side, C]."""
    cells: Tensor = windows.unflatten(0, (-1, side, side)).transpose(2, 3).flatten(3, 4).flatten(1, 2)
    return cells


class ChannelNorm(nn.LayerNorm):
    """Layer normalization of each cell's channels, for maps [B, C, h, w]."""

    def __init__(self, channels: int) -> None:
        """Build the layer."""
        super().__init__(channels, _EPSILON)

    def forward(self, inputs: Tensor) -> Tensor:
        """Return [B, C, h, w]."""
        return super().forward(inputs.movedim(1, -1)).movedim(-1, 1)


class ConvNorm(nn.Module):
    """A convolution, normalization of channels, and an activation."""

    def __init__(
        self, channels: int, out: int, kernel: int, stride: int = 1, activation: type[nn.Module] = nn.SiLU
    ) -> None:
        """Build the layers."""
        super().__init__()
        self.conv = nn.Conv2d(channels, out, kernel, stride, kernel // 2, bias=False)
        self.bn = ChannelNorm(out)
        self.act = activation()

    def forward(self, inputs: Tensor) -> Tensor:
        """Return [B, out, h', w']."""
        outputs: Tensor = self.act(self.bn(self.conv(inputs)))
        return outputs


class Bottleneck(nn.Module):
    """Two 3×3 convolutions, without a shortcut around them."""

    def __init__(self, channels: int) -> None:
        """Build the layers."""
        super().__init__()
        self.cv1, self.cv2 = ConvNorm(channels, channels, 3), ConvNorm(channels, channels, 3)

    def forward(self, inputs: Tensor) -> Tensor:
        """Return [B, C, h, w]."""
        outputs: Tensor = self.cv2(self.cv1(inputs))
        return outputs


class SplitBottlenecks(nn.Module):
    """Bottlenecks in a row on half of the channels; all that is between them joins (C2f of YOLOv8)."""

    def __init__(self, channels: int, out: int, count: int = 3) -> None:
        """Build the layers."""
        super().__init__()
        hidden = out // 2
        self.cv1, self.cv2 = ConvNorm(channels, 2 * hidden, 1), ConvNorm((2 + count) * hidden, out, 1)
        self.m = nn.ModuleList(Bottleneck(hidden) for _ in range(count))

    def forward(self, inputs: Tensor) -> Tensor:
        """Return [B, out, h, w]."""
        parts = list(self.cv1(inputs).chunk(2, 1))
        for bottleneck in self.m:
            parts.append(bottleneck(parts[-1]))
        outputs: Tensor = self.cv2(torch.cat(parts, 1))
        return outputs


# A transformer's own maps count as those of level 4; a level is half as fine as the one before.
_OWN_LEVEL = 4


def _resampling(level: int, channels: int) -> tuple[nn.Sequential, int]:
    """Return the layer that brings a transformer's map to a level, and the channels that it returns."""
    if level < _OWN_LEVEL:
        return nn.Sequential(nn.ConvTranspose2d(channels, channels // 2, 2, 2)), channels // 2
    if level == _OWN_LEVEL:
        return nn.Sequential(), channels
    return nn.Sequential(ConvNorm(channels, channels, 3, 2, nn.ReLU)), channels


class Projector(nn.Module):
    """Maps of a transformer, all of one size, to a map for each level."""

    def __init__(self, channels: Sequence[int], levels: Sequence[int], depth: int) -> None:
        """Build the layers.

        Args:
            channels: Of each map of the transformer.
            levels: Of the maps that it returns, rising: 3 for twice the resolution of the patches, 4 for theirs, 5 for
                half of it.
            depth: Channels of these.
        """
        super().__init__()
        self.stages_sampling, self.stages = nn.ModuleList(), nn.ModuleList()
        for level in levels:
            resampled = [_resampling(level, count) for count in channels]
            self.stages_sampling.append(nn.ModuleList(layer for layer, _ in resampled))
            joined = sum(count for _, count in resampled)
            self.stages.append(nn.Sequential(SplitBottlenecks(joined, depth), ChannelNorm(depth)))

    def forward(self, maps: Sequence[Tensor]) -> list[Tensor]:
        """Return one map [B, D, h', w'] for each level, finest first."""
        outputs = []
        for stage, layers in zip(self.stages, self.stages_sampling, strict=True):
            resampled = [layer(features) for layer, features in zip(layers.children(), maps, strict=True)]
            outputs.append(stage(torch.cat(resampled, 1)))
        return outputs
