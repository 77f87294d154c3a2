"""Distances as distributions over bins (D-FINE, Peng et al., 2024, section 4.1).

Each side of a frame moves by a distance: the mean of a softmax over bins that are dense around 0 and sparse far away.

Boxes as center x, center y, width, height in 0..1 of an image, as transformers predict them.

Dimensions: N + 1 bins. Boxes are center x, center y, width, height, in 0..1 of the input; sides are left, top, right
and bottom.
"""

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


def bin_distances(scale: Tensor, up: Tensor, count: int) -> Tensor:
    """Return the distance that each bin stands for, float32 [count + 1], rising from -2a to 2a with a = up · scale.

    Args:
        scale: float32 [1]; `reg_scale`.
        up: float32 [1].
        count: N, an even number.
    """
    largest = (up * scale).abs().float()
    powers = torch.arange(1, count // 2, dtype=torch.float32, device=scale.device)
    inner: Tensor = (largest + 1) ** (2 * powers / (count - 2)) - 1
    return torch.cat([-2 * largest, -inner.flip(0), torch.zeros_like(largest), inner, 2 * largest])


def expected_distances(logits: Tensor, bins: Tensor) -> Tensor:
    """Return the mean distance of each side, float32 [..., 4], of logits [..., 4 · (N + 1)] over bins [N + 1]."""
    shares = logits.float().unflatten(-1, (4, len(bins))).softmax(-1)
    means: Tensor = (shares * bins).sum(-1)
    return means


def boxes_of_distances(frame: Tensor, distances: Tensor, scale: Tensor) -> Tensor:
    """Return boxes [..., 4] whose sides are moved from those of a frame [..., 4].

    Args:
        distances: [..., 4], in shares 1 / scale of the frame's sides; positive ones move outwards.
        scale: [1]; `reg_scale`.
    """
    scale = scale.abs()
    moved = (0.5 * scale + distances) / scale
    low = frame[..., :2] - moved[..., :2] * frame[..., 2:]
    high = frame[..., :2] + moved[..., 2:] * frame[..., 2:]
    return torch.cat([(low + high) / 2, high - low], -1)


def distances_of_boxes(frame: Tensor, boxes: Tensor, scale: Tensor) -> Tensor:
    """Return the distances [..., 4] that move a frame's sides to those of boxes [..., 4]."""
    scale = scale.abs()
    low, high = boxes[..., :2] - boxes[..., 2:] / 2, boxes[..., :2] + boxes[..., 2:] / 2
    # A frame without extent reaches nothing, and its distances need only be finite.
    unit = (frame[..., 2:] / scale).clamp(min=1e-16)
    return torch.cat([(frame[..., :2] - low) / unit, (high - frame[..., :2]) / unit], -1) - 0.5 * scale


def neighboring_bins(distances: Tensor, bins: Tensor) -> tuple[Tensor, Tensor]:
    """Return the bin below each distance, int64 [...] in 0..N-1, and the share of the bin above it, float32 [...].

    Distances beyond the outermost bins belong to these wholly.
    """
    count = len(bins) - 1
    # The last bin at or below a distance.
    below = (torch.searchsorted(bins, distances.contiguous(), right=True) - 1).clamp(0, count - 1)
    low, high = bins[below], bins[below + 1]
    return below, ((distances - low) / (high - low)).clamp(0, 1)
