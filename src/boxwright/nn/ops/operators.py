"""Operators written in Python: one step of a graph, a plain call outside of one."""

from __future__ import annotations

import torch
from torch import Tensor


def is_plain(tensor: Tensor) -> bool:
    """Return whether an operator's function can be called itself: the tensor is on the CPU and in no graph.

    PyTorch imports its compiler at the first call of an operator written in Python, which takes two seconds.
    """
    return not torch.compiler.is_compiling() and type(tensor) is Tensor and tensor.device.type == "cpu"
