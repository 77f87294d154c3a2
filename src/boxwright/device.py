"""The device that a command computes on, how it rounds there, and what it says where its memory is too small."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator
from typing import TypeVar

import torch
from torch import Tensor

from boxwright.base.errors import BoxwrightError, ConfigError, first_line

T = TypeVar("T")
_LOG = logging.getLogger("boxwright")
# PyTorch knows others; nobody has tried ours on them.
_DEVICES = ("cpu", "cuda")
# The allocator of GPUs raises a type of its own. What lies below it does not: the driver ("CUDA error: out of
# memory"), cuBLAS and cuDNN, which without room for its workspace has no algorithm left; nor do the CPU's allocators.
_OUT_OF_MEMORY = (
    "out of memory",
    "cublas_status_alloc_failed",
    "cudnn_status_alloc_failed",
    "cudnn_status_internal_error_device_allocation_failed",
    "unable to find an engine",
    "can't allocate memory",
    "not enough memory: you tried to allocate",
)


def usable_device(name: str) -> torch.device:
    """Return the device of a name, after trying it.

    Args:
        name: "cpu", "cuda", a GPU by its number as "cuda:1", or "auto" for a GPU where there is one.

    Returns:
        The device; a GPU always with its number.

    Raises:
        ConfigError: Where there is none of that name, or it is of a kind that is not supported.
    """
    if name == "auto":
        name = "cuda" if torch.cuda.is_available() else "cpu"
    try:
        device = torch.device(name)
    except (RuntimeError, TypeError) as error:
        raise _unusable(name, error) from None
    if device.type not in _DEVICES:
        raise ConfigError(f"device {name!r} is not supported: expected cpu, cuda, a GPU such as cuda:1, or auto")
    try:
        if device.type == "cuda" and device.index is None:
            device = torch.device("cuda", torch.cuda.current_device())
        torch.empty(0, device=device)
    except (RuntimeError, AssertionError, ValueError) as error:
        raise _unusable(name, error) from None
    return device


def _unusable(name: str, error: Exception) -> ConfigError:
    return ConfigError(f"device {name!r} cannot be used: {first_line(error)}")


def open_device(name: str, *, tf32: bool = False) -> torch.device:
    """Return a device after making it the process's own, and set how float32 is multiplied on GPUs.

    Every command opens its device here, so that an evaluation rounds as the run that it judges. PyTorch's own default
    differs between operations: convolutions round to TF32, matrix products do not.

    Args:
        name: As for `usable_device`.
        tf32: Whether factors of float32 products are rounded to 10 bits, which is faster on GPUs since Ampere.

    Raises:
        ConfigError: As `usable_device`.
    """
    device = usable_device(name)
    rounds = tf32 and device.type == "cuda"
    torch.set_float32_matmul_precision("high" if rounds else "highest")
    torch.backends.cudnn.allow_tf32 = rounds
    if device.type == "cuda":
        torch.cuda.set_device(device)
    return device


def random_devices(device: torch.device) -> list[torch.device]:
    """Return what `torch.random.fork_rng` has to save for a computation on a device: without, it visits every GPU."""
    return [device] if device.type == "cuda" else []


def without_wait(value: Tensor, device: torch.device) -> Tensor:
    """Return a tensor on a device; the program goes on while a GPU copies it from the CPU, after all work before."""
    if device.type != "cuda" or value.device.type != "cpu":
        return value.to(device)
    return value.pin_memory().to(device, non_blocking=True)  # from other memory it would wait for that work


def is_out_of_memory(error: BaseException) -> bool:
    """Return whether an error says that memory was too small, a GPU's or the machine's."""
    if isinstance(error, BoxwrightError) or not isinstance(error, RuntimeError):
        return False
    text = str(error).lower()
    return isinstance(error, torch.OutOfMemoryError) or any(known in text for known in _OUT_OF_MEMORY)


def free_cached_memory() -> None:
    """Give memory that PyTorch keeps for later back to the GPU, where there is one."""
    if torch.cuda.is_available():
        torch.cuda.empty_cache()


def in_halves(compute: Callable[[int, int], T], count: int, most: int | None = None) -> Iterator[tuple[int, T]]:
    """Compute something of a number of items, of fewer at a time where the memory is too small for all of them.

    Args:
        compute: Computes it of the items from one number to before another.
        most: The most at a time that is tried; None for all.

    Yields:
        In order: the most items at a time by now, and what came of the next of them. A log line says what did not fit.

    Raises:
        BoxwrightError: Where the memory is too small for one item.
    """
    start, most = 0, min(most or count, count)
    while start < count:
        stop = min(start + most, count)
        try:
            found = compute(start, stop)
        except RuntimeError as error:
            if not is_out_of_memory(error):
                raise
            problem = first_line(error)
        else:
            yield most, found
            start = stop
            continue
        # Outside of the handler, as the traceback there holds on to the tensors.
        if stop - start == 1:
            raise BoxwrightError(f"not enough memory for one image ({problem}); a smaller image_resizer needs less")
        free_cached_memory()
        most = (stop - start + 1) // 2
        _LOG.warning("not enough memory for %d images at once: taking %d at a time", stop - start, most)
