"""Attention among tokens.

Dimensions: B batch, N tokens, D width, M heads.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn import functional as F


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
        query, key, value = (one.unflatten(-1, (self.heads, -1)).transpose(1, 2) for one in (*with_positions, values))
        seen = None if blocked is None else blocked.logical_not()
        read = F.scaled_dot_product_attention(query, key, value, attn_mask=seen)
        found: Tensor = self.out_proj(read.transpose(1, 2).flatten(2))
        return found


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
        found: Tensor = self.norm2(tokens + self.linear2(F.gelu(self.linear1(tokens))))
        return found


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
