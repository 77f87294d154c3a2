"""What a run costs, whatever the machine: parameters, operations, memory."""

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
class Facts:
    """What a run costs, whatever the machine.

    Attributes:
        parameters: Numbers that are learnt.
        gflops: Multiplications and additions of convolutions and matrix products in one inference, in 10⁹ operations:
            two for each pair.
        peak_mib: The most memory that the tensors made in one run held at once.
    """

    parameters: int
    gflops: float
    peak_mib: float


def facts(network: nn.Module, run: Run, look: Run) -> Facts:
    """Count a network's parameters, the memory of one run, and the operations of one inference.

    Operations are those of the definition: with channels first no convolution takes a shorter way.

    Args:
        network: As it was built, not optimized.
    """
    peak = _peak_mib(run)
    return Facts(count_parameters(network), count_operations(network, look) / 1e9, peak)


def count_parameters(network: nn.Module) -> int:
    """Return how many numbers are learnt."""
    return sum(parameter.numel() for parameter in network.parameters())


def count_operations(network: nn.Module, look: Run) -> int:
    """Count the multiplications and additions of convolutions and matrix products, by their definition.

    Args:
        network: As it was built, not optimized.

    Returns:
        Both together: two for each pair.
    """
    with ExitStack() as hooks, FlopCounterMode(display=False) as counter:
        for module in network.modules():
            if isinstance(module, nn.Conv2d):
                hooks.enter_context(module.register_forward_pre_hook(channels_first))
        look()
    return int(counter.get_total_flops())


def channels_first(_: nn.Module, inputs: tuple[Any, ...]) -> tuple[Any, ...]:
    """Return inputs in PyTorch's usual layout, which layers then keep; a forward pre-hook."""
    return (inputs[0].contiguous(), *inputs[1:])


def _peak_mib(run: Run) -> float:
    """Return the largest sum of allocations that one run holds at a time, in MiB."""
    if torch.cuda.is_available():
        torch.cuda.reset_peak_memory_stats()
        before = torch.cuda.memory_allocated()
        run()
        if (most := torch.cuda.max_memory_allocated() - before) > 0:
            return most / 2**20
    os.environ.setdefault(
        "KINETO_LOG_LEVEL", "99"
    )  # else the profiler tells of its own steps, and of no GPU as an error
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU], profile_memory=True) as profile:
        run()
    events = profile.profiler.kineto_results.events() if profile.profiler and profile.profiler.kineto_results else []
    held = most = 0
    for event in sorted((one for one in events if one.name() == "[memory]"), key=lambda one: one.start_ns()):
        held += event.nbytes()
        most = max(most, held)
    return most / 2**20
