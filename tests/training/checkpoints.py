"""What runs leave, compared."""

from __future__ import annotations

from typing import Any

import torch


def same(one: Any, other: Any) -> bool:
    """Say whether two contents, or parts of them, are the same to the last bit."""
    if isinstance(one, torch.Tensor):
        return torch.equal(one, other)
    if isinstance(one, dict):
        return one.keys() == other.keys() and all(same(one[name], other[name]) for name in one)
    if isinstance(one, list | tuple):
        return len(one) == len(other) and all(map(same, one, other))
    return bool(one == other)


def near(one: Any, other: Any, share: float) -> bool:
    """Say whether two contents are the same but for a share of the largest number of each tensor."""
    if isinstance(one, torch.Tensor) and one.is_floating_point():
        return one.shape == other.shape and bool(((one - other).abs() <= share * one.abs().max()).all())
    if isinstance(one, dict):
        return one.keys() == other.keys() and all(near(one[name], other[name], share) for name in one)
    if isinstance(one, list | tuple):
        return len(one) == len(other) and all(near(a, b, share) for a, b in zip(one, other, strict=True))
    return same(one, other)
