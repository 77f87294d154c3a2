"""The hybrid encoder of RT-DETR and D-FINE: attention within the coarsest map, convolutions between maps.

Modules have the names of the published weights, which thereby load by name.

Attention among tokens.

Dimensions: B batch, C channels, H W grid, N tokens, D width, M heads.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from boxwright.nn.backbones.hgnetv2 import NORM
from boxwright.nn.batch_norm import make_norm


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
        with_positions = F.linear(
            tokens + positions, self.in_proj_weight[: 2 * width], self.in_proj_bias[: 2 * width]
        ).chunk(2, -1)
        values = F.linear(tokens, self.in_proj_weight[2 * width :], self.in_proj_bias[2 * width :])
        query, key, value = (
            tensor.unflatten(-1, (self.heads, -1)).transpose(1, 2) for tensor in (*with_positions, values)
        )
        seen = None if blocked is None else blocked.logical_not()
        read = F.scaled_dot_product_attention(query, key, value, attn_mask=seen)
        outputs: Tensor = self.out_proj(read.transpose(1, 2).flatten(2))
        return outputs


class EncoderLayer(nn.Module):
    """A transformer's encoder layer, normalized after each sum, with GELU."""

    def __init__(self, width: int, heads: int, feedforward: int) -> None:
        """Build the layers."""
        super().__init__()
        self.self_attn = SelfAttention(width, heads)
        self.linear1, self.linear2 = nn.Linear(width, feedforward), nn.Linear(feedforward, width)
        self.norm1, self.norm2 = nn.LayerNorm(width), nn.LayerNorm(width)

    def forward(self, tokens: Tensor, positions: Tensor) -> Tensor:
        """Return [B, N, D]; positions broadcast to that."""
        tokens = self.norm1(tokens + self.self_attn(tokens, positions))
        outputs: Tensor = self.norm2(tokens + self.linear2(F.gelu(self.linear1(tokens))))
        return outputs


def sine_positions(height: int, width: int, channels: int, device: torch.device) -> Tensor:
    """Return positions of a grid's cells, row by row, float32 [height · width, channels].

    A quarter of the channels each has sine and cosine of the row, and sine and cosine of the column.
    """
    quarter = channels // 4
    steps = torch.arange(quarter, dtype=torch.float32, device=device) / quarter
    frequencies = 1.0 / 10000**steps
    rows, columns = (
        torch.arange(count, dtype=torch.float32, device=device)[:, None] * frequencies for count in (height, width)
    )
    of_rows = torch.cat([rows.sin(), rows.cos()], -1)[:, None].expand(-1, width, -1)
    of_columns = torch.cat([columns.sin(), columns.cos()], -1)[None].expand(height, -1, -1)
    return torch.cat([of_rows, of_columns], -1).flatten(0, 1)


@dataclass(frozen=True)
class EncoderLayout:
    """The shape of a hybrid encoder.

    Attributes:
        depth: Channels of every map that it returns.
        expansion: Width of the blocks between maps, relative to `depth`.
        repeats: Convolutions in a row within such a block.
        feedforward: Width of the attention layer's feed-forward network.
        heads: Of the attention layer.
    """

    depth: int
    expansion: float
    repeats: int
    feedforward: int
    heads: int = 8


class ConvNorm(nn.Module):
    """A convolution and batch normalization, and possibly SiLU."""

    def __init__(
        self,
        channels: int,
        out: int,
        kernel: int,
        stride: int = 1,
        *,
        activation: nn.Module | None = None,
        depthwise: bool = False,
    ) -> None:
        """Build the layers; without an activation there is none."""
        super().__init__()
        self.conv = nn.Conv2d(channels, out, kernel, stride, kernel // 2, groups=out if depthwise else 1, bias=False)
        self.norm = make_norm(out, NORM)
        self.act = activation or nn.Identity()

    def forward(self, inputs: Tensor) -> Tensor:
        """Return [B, out, H', W']."""
        outputs: Tensor = self.act(self.norm(self.conv(inputs)))
        return outputs


class RepeatedConv(nn.Module):
    """SiLU of a 3×3 and a 1×1 convolution together."""

    def __init__(self, channels: int) -> None:
        """Build the layers."""
        super().__init__()
        self.conv1, self.conv2 = ConvNorm(channels, channels, 3), ConvNorm(channels, channels, 1)

    def forward(self, inputs: Tensor) -> Tensor:
        """Return [B, C, H, W]."""
        return F.silu(self.conv1(inputs) + self.conv2(inputs))


class CrossStage(nn.Module):
    """Two paths side by side, one of them deep (CSP)."""

    def __init__(self, channels: int, out: int, repeats: int) -> None:
        """Build the layers."""
        super().__init__()
        self.conv1, self.conv2 = (ConvNorm(channels, out, 1, activation=nn.SiLU()) for _ in range(2))
        self.bottlenecks = nn.Sequential(*(RepeatedConv(out) for _ in range(repeats)))

    def forward(self, inputs: Tensor) -> Tensor:
        """Return [B, out, H, W]."""
        outputs: Tensor = self.bottlenecks(self.conv1(inputs)) + self.conv2(inputs)
        return outputs


class FusionBlock(nn.Module):
    """Two maps on top of each other into one (RepNCSPELAN4)."""

    def __init__(self, depth: int, hidden: int, repeats: int) -> None:
        """Build the layers for an input of twice the depth."""
        super().__init__()
        self.cv1 = ConvNorm(2 * depth, 2 * depth, 1, activation=nn.SiLU())
        self.cv2, self.cv3 = (
            nn.Sequential(CrossStage(into, hidden, repeats), ConvNorm(hidden, hidden, 3, activation=nn.SiLU()))
            for into in (depth, hidden)
        )
        self.cv4 = ConvNorm(2 * depth + 2 * hidden, depth, 1, activation=nn.SiLU())

    def forward(self, inputs: Tensor) -> Tensor:
        """Return [B, depth, H, W]."""
        halves = self.cv1(inputs).chunk(2, 1)
        third = self.cv2(halves[1])
        outputs: Tensor = self.cv4(torch.cat([*halves, third, self.cv3(third)], 1))
        return outputs


class AttentionStack(nn.Module):
    """The attention within one map; a stack of one layer, as in the published weights' names."""

    def __init__(self, layout: EncoderLayout) -> None:
        """Build the layer."""
        super().__init__()
        self.layers = nn.ModuleList([EncoderLayer(layout.depth, layout.heads, layout.feedforward)])

    def forward(self, inputs: Tensor) -> Tensor:
        """Return [B, C, H, W]."""
        channels, height, width = inputs.shape[1:]
        tokens: Tensor = inputs.flatten(2).transpose(1, 2)
        positions = sine_positions(height, width, channels, inputs.device)
        for layer in self.layers:
            tokens = layer(tokens, positions)
        outputs: Tensor = tokens.transpose(1, 2).unflatten(2, (height, width))
        return outputs


class Downsampling(nn.Sequential):
    """A pointwise and a depthwise convolution that halve a map, both without an activation."""

    def __init__(self, depth: int) -> None:
        """Build the layers."""
        super().__init__()
        self.add_module("cv1", ConvNorm(depth, depth, 1))
        self.add_module("cv2", ConvNorm(depth, depth, 3, 2, depthwise=True))


class HybridEncoder(nn.Module):
    """Maps of a backbone to as many of one depth: attention in the coarsest, then down and up again."""

    def __init__(self, channels: Sequence[int], layout: EncoderLayout) -> None:
        """Build the layers for maps of so many channels, finest first."""
        super().__init__()
        depth, between = layout.depth, len(channels) - 1
        hidden = round(layout.expansion * depth // 2)
        self.input_proj = nn.ModuleList(ConvNorm(count, depth, 1) for count in channels)
        self.encoder = nn.ModuleList([AttentionStack(layout)])
        self.lateral_convs = nn.ModuleList(ConvNorm(depth, depth, 1) for _ in range(between))
        self.downsample_convs = nn.ModuleList(nn.Sequential(Downsampling(depth)) for _ in range(between))
        self.fpn_blocks, self.pan_blocks = (
            nn.ModuleList(FusionBlock(depth, hidden, layout.repeats) for _ in range(between)) for _ in range(2)
        )

    def forward(self, maps: Sequence[Tensor]) -> list[Tensor]:
        """Return one map [B, depth, H, W] for each, finest first."""
        projected = [project(features) for project, features in zip(self.input_proj, maps, strict=True)]
        coarsest = self.encoder[0](projected[-1])
        down: list[Tensor] = []  # coarsest first
        for finer, lateral, block in zip(projected[-2::-1], self.lateral_convs, self.fpn_blocks, strict=True):
            # What goes on upwards is the lateral map itself, not what it was made of.
            coarsest = lateral(coarsest)
            down.append(coarsest)
            coarsest = block(torch.cat([F.interpolate(coarsest, finer.shape[-2:], mode="nearest"), finer], 1))
        up = [coarsest]
        for coarser, halve, block in zip(reversed(down), self.downsample_convs, self.pan_blocks, strict=True):
            up.append(block(torch.cat([halve(up[-1]), coarser], 1)))
        return up
