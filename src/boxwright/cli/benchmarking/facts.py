"""Machine-independent costs of a run: parameters, operations, memory."""

from __future__ import annotations

import os
from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn
from torch.utils.flop_counter import FlopCounterMode

Run = Callable[[], Any]


@dataclass(frozen=True)
class ModelCosts:
    """Machine-independent costs of a run.

    Attributes:
        gflops: Multiplications and additions (counted separately) of convolutions and matrix products in one inference,
            in 10⁹.
        peak_mib: The peak memory of the tensors that one run allocates.
    """

    parameters: int
    gflops: float
    peak_mib: float


def facts(network: nn.Module, run: Run, look: Run) -> ModelCosts:
    """Return the parameters of a network, not optimized, the memory of one run, and the operations of one inference."""
    peak = _peak_mib(run)
    return ModelCosts(count_parameters(network), count_operations(network, look) / 1e9, peak)


def count_parameters(network: nn.Module) -> int:
    """Return the number of learned values."""
    return sum(parameter.numel() for parameter in network.parameters())


def count_operations(network: nn.Module, look: Run) -> int:
    """Return the number of multiplications plus additions of convolutions and matrix products, by their definition.

    The network must not be optimized; its layers run channels first, so that no convolution uses a faster algorithm.
    """
    with ExitStack() as hooks, FlopCounterMode(display=False) as counter:
        for module in network.modules():
            if isinstance(module, nn.Conv2d):
                hooks.enter_context(module.register_forward_pre_hook(channels_first))
        look()
    return int(counter.get_total_flops())


def channels_first(_: nn.Module, inputs: tuple[Any, ...]) -> tuple[Any, ...]:
    """Return inputs in PyTorch's default layout, which layers then keep; a forward pre-hook."""
    return (inputs[0].contiguous(), *inputs[1:])


def _peak_mib(run: Run) -> float:
    """Return the peak of the memory that one run allocates, in MiB."""
    if torch.cuda.is_available():
        torch.cuda.reset_peak_memory_stats()
        before = torch.cuda.memory_allocated()
        run()
        # 0 if the network runs on the CPU of a machine with a GPU.
        if (most := torch.cuda.max_memory_allocated() - before) > 0:
            return most / 2**20
    os.environ.setdefault(
        "KINETO_LOG_LEVEL", "99"
    )  # otherwise the profiler logs its steps, and a missing GPU as an error
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU], profile_memory=True) as profile:
        run()
    events = profile.profiler.kineto_results.events() if profile.profiler and profile.profiler.kineto_results else []
    held = most = 0
    for event in sorted((event for event in events if event.name() == "[memory]"), key=lambda event: event.start_ns()):
        held += event.nbytes()
        most = max(most, held)
    return most / 2**20
