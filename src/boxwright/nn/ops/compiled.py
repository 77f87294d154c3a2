"""Calls of the compiled kernels in C beside the modules that use them."""

from __future__ import annotations

import ctypes
from functools import cache
from pathlib import Path

import torch
from torch import Tensor, nn

from boxwright.base.c_compiler import CompilerError, compiled_library


@cache
def compiled(source: Path) -> ctypes.CDLL | CompilerError:
    """Return a source's functions, or why there are none; compiles at the first call where the cache lacks them."""
    try:
        return compiled_library(source)
    except CompilerError as error:
        return error


def is_readable(tensor: Tensor) -> bool:
    """Return whether kernels can read a tensor: float32 on the CPU, not one that only has a shape or counts memory."""
    return type(tensor) in (Tensor, nn.Parameter) and tensor.is_cpu and tensor.dtype == torch.float32


def new_numbers(*size: int, dtype: torch.dtype = torch.float32) -> Tensor:
    """Return memory on the CPU that kernels fill, whatever PyTorch's default device and dtype are."""
    return torch.empty(size, dtype=dtype, device="cpu")


def new_maps(*size: int) -> Tensor:
    """Return memory for maps float32 [B, C, H, W], channels last, as `new_numbers`."""
    return torch.empty(size, dtype=torch.float32, device="cpu", memory_format=torch.channels_last)


def call(library: ctypes.CDLL | CompilerError, name: str, shape: ctypes.Structure, *tensors: Tensor | None) -> None:
    """Call a function with its settings and the addresses of tensors, as dense as it expects; None is null.

    Raises:
        CompilerError: If there are no functions.
    """
    if isinstance(library, CompilerError):
        raise library
    addresses = (None if tensor is None else ctypes.c_void_p(tensor.data_ptr()) for tensor in tensors)
    getattr(library, name)(ctypes.byref(shape), *addresses)
