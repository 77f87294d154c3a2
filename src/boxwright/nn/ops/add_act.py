"""The activated sum of two maps in one pass, by a kernel in C that is compiled where it runs.

After a convolution it takes less time than oneDNN's sum within the convolution, and PyTorch's own takes two passes
(`benchmarks/layers.py`).
"""

from __future__ import annotations

import ctypes
from pathlib import Path

import torch
from torch import Tensor

from boxwright.base.c_compiler import CompilerError
from boxwright.nn.ops.compiled import call, compiled
from boxwright.nn.ops.norm_act import Pointwise, kind_of

_SOURCE = Path(__file__).with_suffix(".c")


class _Shape(ctypes.Structure):
    _fields_ = (
        ("count", ctypes.c_long),
        ("threads", ctypes.c_int),
        ("kind", ctypes.c_int),
        ("low", ctypes.c_float),
        ("high", ctypes.c_float),
    )


def kernels() -> ctypes.CDLL | CompilerError:
    """Return the compiled function, or why there is none."""
    return compiled(_SOURCE)


def add_act_(maps: Tensor, other: Tensor, activation: Pointwise) -> Tensor:
    """Add another map in place, activate, and return the map.

    Args:
        maps: float32 on the CPU, dense in memory.
        other: The same, of the same shape and layout.

    Raises:
        CompilerError: If there is no kernel here.
    """
    shape = _Shape(maps.numel(), torch.get_num_threads(), kind_of(activation), activation.low, activation.high)
    call(kernels(), "add_act", shape, other, maps)
    return maps
