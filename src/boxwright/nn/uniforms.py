"""Random numbers that follow from keys alone, so that a run repeats and a batch in parts is the batch.

Dimensions: B batch, N numbers of an image.
"""

from __future__ import annotations

from typing import TypeVar

import torch
from torch import Tensor

_LOW = 0xFFFFFFFF
# A number of Python's, or int64.
N = TypeVar("N", int, Tensor)


def uniforms(keys: Tensor, count: int, stream: int = 0) -> Tensor:
    """Return numbers in [0, 1) that follow from keys alone, on any device, float32 [B, count].

    Args:
        keys: int64 [B].
        count: N; the first numbers do not depend on it.
        stream: Different streams of the same keys are independent.
    """
    numbers = torch.arange(count, dtype=torch.int64, device=keys.device)
    low = _mixed(_mixed(keys) ^ (keys >> 32))[:, None]
    drawn = _mixed(_mixed(low ^ _mixed(numbers)) + (numbers + _mixed(stream)))
    # 24 bits: as many as float32 has.
    return (drawn >> 8).float() * 2.0**-24


def _mixed(value: N) -> N:
    """Return MurmurHash3's finalizer (Appleby) of the low 32 bits of numbers, in int64."""
    value = value & _LOW
    value = ((value ^ (value >> 16)) * 0x85EBCA6B) & _LOW
    value = ((value ^ (value >> 13)) * 0xC2B2AE35) & _LOW
    return value ^ (value >> 16)
