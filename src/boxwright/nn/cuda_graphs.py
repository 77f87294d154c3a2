"""CUDA graphs of detection: the operations of a batch are captured once, and replayed as one launch."""

from __future__ import annotations

import logging
from collections.abc import Callable
from dataclasses import dataclass
from typing import Generic, TypeVar

import torch
from torch import Tensor

from boxwright.base.errors import ConfigError, first_line

R = TypeVar("R")
_LOG = logging.getLogger("boxwright")
# Each shape of inputs has memory of its own for as long as the detector lives.
_MOST_SHAPES = 4
# Libraries choose algorithms and reserve memory in the first runs, which no graph may.
_WARM_UPS = 3

# Takes a function without arguments; returns a function that repeats its work in the same memory, and the result there.
Capture = Callable[[Callable[[], R]], tuple[Callable[[], None], R]]


@dataclass(frozen=True)
class _Graph(Generic[R]):
    """What is captured for batches of one shape.

    Attributes:
        pixels: Where the pixels are put before a replay, like true_sizes.
        result: What a replay overwrites.
    """

    pixels: Tensor
    true_sizes: Tensor
    replay: Callable[[], None]
    result: R


class DetectionGraphs(Generic[R]):
    """A function of pixels and true sizes as a graph for each of the first four shapes and types of pixels.

    Pixels of further shapes are computed operation by operation, as without graphs. A result is overwritten by the
    next call, and must have been read by then: calls may not overlap.
    """

    def __init__(self, compute: Callable[[Tensor, Tensor], R], capture: Capture[R]) -> None:
        """Capture nothing yet.

        Args:
            compute: From pixels [B, C, H, W] and true sizes int64 [B, 2], on the GPU, to a result there. It
                does not wait for the GPU.
            capture: `capture_on_cuda`, for a GPU.
        """
        self._compute, self._capture = compute, capture
        self._graphs: dict[tuple[torch.Size, torch.dtype], _Graph[R]] = {}

    def __call__(self, pixels: Tensor, true_sizes: Tensor) -> R:
        """Return the function's result; the first call with a shape and type captures it.

        Raises:
            ConfigError: If the function cannot be captured.
        """
        kind = pixels.shape, pixels.dtype
        graph = self._graphs.get(kind)
        if graph is None:
            if len(self._graphs) == _MOST_SHAPES:
                return self._compute(pixels, true_sizes)
            graph = self._graphs[kind] = self._captured(pixels.clone(), true_sizes.clone())
        graph.pixels.copy_(pixels)
        graph.true_sizes.copy_(true_sizes)
        graph.replay()
        return graph.result

    def _captured(self, pixels: Tensor, true_sizes: Tensor) -> _Graph[R]:
        replay, result = self._capture(lambda: self._compute(pixels, true_sizes))
        return _Graph(pixels, true_sizes, replay, result)


def capture_on_cuda(compute: Callable[[], R], device: torch.device) -> tuple[Callable[[], None], R]:
    """Return the replay of a function's work on a GPU as one graph, and the result that it overwrites.

    Raises:
        ConfigError: If the function waits for the GPU, or does what a graph cannot hold.
    """
    # Streams are of a thread's current GPU; a graph of another one's would hold nothing.
    with torch.cuda.device(device):
        return _capture_on_current(compute)


def _capture_on_current(compute: Callable[[], R]) -> tuple[Callable[[], None], R]:
    before = torch.cuda.memory_reserved()
    graph, side = torch.cuda.CUDAGraph(), torch.cuda.Stream()
    mode = torch.cuda.get_sync_debug_mode()
    try:
        side.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(side):
            compute()  # what is kept from the first call on, such as anchors, may be copied from the CPU
            torch.cuda.set_sync_debug_mode("error")
            for _ in range(_WARM_UPS):
                compute()
            torch.cuda.set_sync_debug_mode(mode)
        torch.cuda.current_stream().wait_stream(side)
        # Other threads may allocate memory meanwhile, which the default refuses.
        with torch.cuda.graph(graph, capture_error_mode="thread_local"):
            result = compute()
    except RuntimeError as error:
        raise ConfigError(f"--cuda_graphs: this detector cannot be one graph: {first_line(error)}") from error
    finally:
        torch.cuda.set_sync_debug_mode(mode)
    _LOG.info("a CUDA graph was captured: %.0f MiB", (torch.cuda.memory_reserved() - before) / 2**20)
    return graph.replay, result
