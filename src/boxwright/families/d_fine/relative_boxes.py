"""Boxes as center x, center y, width, height in 0..1 of an image, as transformers predict them."""

from __future__ import annotations

import torch
from torch import Tensor

_LEAST = 1e-5


def to_corners(boxes: Tensor) -> Tensor:
    """Return xyxy [..., 4]; a negative width or height counts as 0."""
    half = boxes[..., 2:].clamp(min=0) / 2
    return torch.cat([boxes[..., :2] - half, boxes[..., :2] + half], -1)


def from_corners(corners: Tensor) -> Tensor:
    """Return center x, center y, width, height [..., 4] of xyxy."""
    low, high = corners[..., :2], corners[..., 2:]
    return torch.cat([(low + high) / 2, high - low], -1)


def logit(shares: Tensor) -> Tensor:
    """Return the inverse of the sigmoid, between ±11.5: shares and their complements count as at least 1e-5."""
    shares = shares.clamp(0, 1)
    return shares.clamp(min=_LEAST).log() - (1 - shares).clamp(min=_LEAST).log()
