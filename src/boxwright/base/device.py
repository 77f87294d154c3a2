"""The device that computes, how GPUs round float32 products, and handling of exhausted memory."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from typing import TYPE_CHECKING, TypeVar

import torch
from torch import Tensor

from boxwright.base.errors import BoxwrightError, ConfigError, first_line, is_shortage
from boxwright.base.settings import device_name

if TYPE_CHECKING:
    from boxwright.base.settings import AnyDevice

T = TypeVar("T")
_LOG = logging.getLogger("boxwright")
# PyTorch supports others, on which Boxwright is untested; on Apple's GPUs it is proven as far as other machines can.
_DEVICES = ("cpu", "cuda", "mps")
# Only PyTorch's GPU allocator raises OutOfMemoryError. The driver ("CUDA error: out of memory"), cuBLAS, cuDNN (which
# finds no algorithm if its workspace does not fit) and the CPU's allocators raise plain RuntimeError.
_OUT_OF_MEMORY = (
    "cublas_status_alloc_failed",
    "cudnn_status_alloc_failed",
    "cudnn_status_internal_error_device_allocation_failed",
    "unable to find an engine",
)


def usable_device(device: AnyDevice) -> torch.device:
    """Return a device, after testing it.

    Args:
        device: "cpu", "cuda", a GPU by number such as "cuda:1" or 1, "mps" for Apple's, "auto" for one of NVIDIA's if
            there is one, or a torch.device.

    Returns:
        The device; a GPU always with its number.

    Raises:
        ConfigError: If the device does not exist or its kind is not supported.
    """
    name = device_name(device)
    if name == "auto":
        name = "cuda" if torch.cuda.is_available() else "cpu"
    try:
        device = torch.device(name)
    except (RuntimeError, TypeError) as error:
        raise _unusable(name, error) from None
    if device.type not in _DEVICES:
        raise ConfigError(f"device {name!r} is not supported: expected cpu, cuda, a GPU such as cuda:1, mps, or auto")
    try:
        if device.type == "cuda" and device.index is None:
            device = torch.device("cuda", torch.cuda.current_device())
        torch.empty(0, device=device)
    except (RuntimeError, AssertionError, ValueError) as error:
        raise _unusable(name, error) from None
    if device.type == "mps":
        _LOG.warning("device mps: Boxwright was never run on one of Apple's GPUs; compare with --device cpu")
    return device


def _unusable(name: str, error: Exception) -> ConfigError:
    return ConfigError(f"device {name!r} cannot be used: {first_line(error)}")


# The first generation that has units for it, Ampere; older GPUs emulate it, slowly.
_BFLOAT16_SINCE = (8, 0)


def has_bfloat16(device: torch.device) -> bool:
    """Return whether a GPU of NVIDIA's computes in bfloat16."""
    return device.type == "cuda" and torch.cuda.get_device_capability(device) >= _BFLOAT16_SINCE


def set_tf32(*, products: bool) -> None:
    """Let GPUs round factors of float32 convolutions to TF32's 10 bits, and where asked those of matrix products.

    For processes of our own, commands and their workers, so that an evaluation rounds like the training run. Without
    `products` it is PyTorch's default.
    """
    # `set_float32_matmul_precision` would allow it on CPUs too.
    torch.backends.cuda.matmul.allow_tf32 = products
    torch.backends.cudnn.allow_tf32 = True


@contextmanager
def tf32_allowed() -> Iterator[None]:
    """Let GPUs round to TF32 as long as this lasts, as a caller of the library asked; then as before."""
    matmul, convolutions = torch.backends.cuda.matmul.allow_tf32, torch.backends.cudnn.allow_tf32
    set_tf32(products=True)
    try:
        yield
    finally:
        torch.backends.cuda.matmul.allow_tf32 = matmul
        torch.backends.cudnn.allow_tf32 = convolutions


@contextmanager
def usual_modes() -> Iterator[None]:
    """Let gradients be computed and new tensors be on the CPU as long as this lasts, whatever modes the caller is in.

    A program that has called `torch.set_default_device("cuda")`, or that trains below `torch.no_grad()`, changes what
    every line of ours means.
    """
    with ExitStack() as modes:
        modes.enter_context(torch.inference_mode(mode=False))
        modes.enter_context(torch.enable_grad())
        if torch.get_default_device().type != "cpu":
            modes.enter_context(torch.device("cpu"))
        yield


def random_devices(device: torch.device) -> list[torch.device]:
    """Return the devices whose random state `torch.random.fork_rng` must save; its default is every GPU."""
    return [device] if device.type == "cuda" else []


def without_wait(value: Tensor, device: torch.device) -> Tensor:
    """Return a tensor on a device; copying from CPU to GPU is asynchronous, ordered after all earlier GPU work."""
    if device.type != "cuda" or value.device.type != "cpu":
        return value.to(device)
    return value.pin_memory().to(device, non_blocking=True)  # a copy from pageable memory would wait for that work


def is_out_of_memory(error: BaseException) -> bool:
    """Return whether an error means that the GPU or the machine ran out of memory."""
    if isinstance(error, BoxwrightError) or not isinstance(error, RuntimeError):
        return False
    return is_shortage(error) or any(known in str(error).lower() for known in _OUT_OF_MEMORY)


def free_cached_memory() -> None:
    """Return PyTorch's cached GPU memory to the system, if there is a GPU."""
    if torch.cuda.is_available():
        torch.cuda.empty_cache()
    elif torch.backends.mps.is_available():
        torch.mps.empty_cache()


def in_halves(compute: Callable[[int, int], T], count: int, most: int | None = None) -> Iterator[tuple[int, T]]:
    """Compute results for `count` items in chunks, halving the chunk size whenever memory runs out.

    Args:
        compute: From start and stop to the result of those items.
        most: The largest chunk to try; None for all items.

    Yields:
        In order: the current chunk size, and the result of the next chunk. Each halving is logged.

    Raises:
        BoxwrightError: If memory is too small for a single item.
    """
    start, most = 0, min(most or count, count)
    while start < count:
        stop = min(start + most, count)
        try:
            result = compute(start, stop)
        except RuntimeError as error:
            if not is_out_of_memory(error):
                raise
            problem = first_line(error)
        else:
            yield most, result
            start = stop
            continue
        # Outside the handler, whose traceback keeps the tensors alive.
        if stop - start == 1:
            raise BoxwrightError(f"not enough memory for one image ({problem}); a smaller image_resizer needs less")
        free_cached_memory()
        most = (stop - start + 1) // 2
        _LOG.warning("not enough memory for %d images at once: taking %d at a time", stop - start, most)


def constants(numbers: Sequence[float], device: torch.device, dtype: torch.dtype = torch.float32) -> Tensor:
    """Return numbers as a tensor [n], filled on the GPU itself.

    `torch.tensor` would copy from the CPU, and the copy waits for all work queued before.
    """
    return torch.stack([torch.full((), number, dtype=dtype, device=device) for number in numbers])


def in_float64(tensor: Tensor) -> Tensor:
    """Return a tensor in float64: on its device, or on the CPU where that is one of Apple's, which lack the type."""
    return (tensor.cpu() if tensor.device.type == "mps" else tensor).double()


def is_plain(tensor: Tensor) -> bool:
    """Return whether an operator's function can be called itself: the tensor is on the CPU and in no graph.

    PyTorch imports its compiler at the first call of an operator written in Python, which takes two seconds.
    """
    return not torch.compiler.is_compiling() and type(tensor) is Tensor and tensor.device.type == "cpu"
