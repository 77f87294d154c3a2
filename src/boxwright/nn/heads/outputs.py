"""The outputs of heads for each anchor, and their layout.

Dimensions: B batch, A anchors, S anchors a location, H W grid.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor, nn


def _unchanged(tensor: Tensor) -> Tensor:
    return tensor


@dataclass(frozen=True)
class HeadOutput:
    """The outputs for one anchor.

    Attributes:
        clip_codes: (low, high) to which box codes are clipped, or None.
        convert_logits: Applied to class logits; an identity except for old configurations with a sigmoid in the head.
    """

    columns: int
    code_size: int = 4
    class_bias: float = 0.0
    clip_codes: tuple[float, float] | None = None
    convert_logits: Callable[[Tensor], Tensor] = _unchanged

    def finish(self, codes: Tensor, logits: Tensor) -> tuple[Tensor, Tensor]:
        """Return clipped codes and converted logits.

        Args:
            codes: [B, A, code size].
            logits: [B, A, columns].
        """
        if self.clip_codes is not None:
            codes = codes.clamp(*self.clip_codes)
        return codes, self.convert_logits(logits)


class AnchorHead(nn.Module):
    """Predicts box codes and class logits for every anchor; `boxes` and `classes` are its last layers."""

    output: HeadOutput

    @property
    def class_layers(self) -> tuple[str, ...]:
        """Names within the head of the convolutions, and their normalization, that give class logits."""
        raise NotImplementedError

    def forward(self, features: list[Tensor]) -> tuple[Tensor, Tensor]:
        """Return box codes [B, A, code size] and class logits [B, A, C], level by level, row by row."""
        raise NotImplementedError


def flatten_anchors(levels: Sequence[Tensor], size: int) -> Tensor:
    """Return the outputs of all levels with one row per anchor.

    Args:
        levels: [B, S × size, H, W] each.

    Returns:
        [B, A, size], ordered by level, row, column, and anchor.
    """
    rows = [level.permute(0, 2, 3, 1).reshape(level.shape[0], -1, size) for level in levels]
    return torch.cat(rows, dim=1)


def start_bias(predictor: nn.Sequential, value: float) -> None:
    """Set the bias of a predictor's last layer.

    Args:
        predictor: Layers that end in a convolution with bias, or its normalization.
    """
    last = predictor[-1]
    # A normalized predictor has no bias of its own; its normalization's is the last.
    if isinstance(last, nn.Conv2d | nn.BatchNorm2d) and last.bias is not None:
        nn.init.constant_(last.bias, value)
