"""Opening and timing contenders by name; without PyTorch if all of them are exported."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from boxwright.base.errors import ConfigError
from boxwright.cli.benchmarking.settings import BenchmarkSettings
from boxwright.runtime.formats import is_export
from boxwright.runtime.measure import Timing, measure
from boxwright.weights.open_model import open_model

if TYPE_CHECKING:
    from torch import nn

    from boxwright.cli.benchmarking.facts import ModelCosts


Pictures = Sequence[NDArray[np.uint8]]
# From pictures to a function that is called once per round.
Prepare = Callable[[Pictures], Callable[[], Any]]


@dataclass(frozen=True, eq=False)
class Contender:
    """Something that is measured.

    Attributes:
        prepare: Returns, for pictures, a function that is called once per round.
        network: The PyTorch network whose operations and memory are counted; None for an exported file, and for another
            way of running a counted network.
        look: Returns, for pictures, the network's inference, in which operations are counted.
    """

    prepare: Prepare
    network: nn.Module | None = None
    look: Prepare | None = None


def open_contenders(names: Sequence[str], settings: BenchmarkSettings) -> dict[str, Contender]:
    """Return contenders by name; the names of compiled and of bfloat16 ones show it.

    Args:
        names: Runs' folders, checkpoints, exported files, configurations, and torchvision's as `torchvision:NAME`.

    Raises:
        BoxwrightError: If one cannot be opened, or cannot be trained.
    """
    contenders: dict[str, Contender] = {}
    for name in names:
        if is_export(Path(name)):
            contenders[name] = _exported(name, settings)
        else:
            from boxwright.cli.benchmarking.networks import open_network

            contenders |= open_network(name, settings)
    return contenders


def time_contenders(
    contenders: dict[str, Contender], pictures: Pictures, sizes: Iterable[int], rounds: int
) -> tuple[list[Timing], dict[str, ModelCosts]]:
    """Time all contenders at all batch sizes, with one call of each per round.

    Args:
        contenders: By name; the others are compared with the first.

    Returns:
        Timings, and the costs of the first batch for countable networks, by name.
    """
    timings: list[Timing] = []
    counted: dict[str, ModelCosts] = {}
    for size in sizes:
        # Fewer pictures than a batch holds are repeated.
        given = [pictures[number % len(pictures)] for number in range(size)]
        calls = {name: contender.prepare(given) for name, contender in contenders.items()}
        timings += measure(calls, size, rounds)
        for name, contender in contenders.items():
            if contender.network is not None and name not in counted:
                from boxwright.cli.benchmarking.facts import facts

                counted[name] = facts(contender.network, calls[name], (contender.look or contender.prepare)(given))
    return timings, counted


def _exported(name: str, settings: BenchmarkSettings) -> Contender:
    if settings.train:
        raise ConfigError(f"{name} is exported and cannot be trained; remove --train to measure it")
    find = open_model(name, threads=settings.threads, allow_edited=settings.allow_edited).detect_function()
    return Contender(lambda given: partial(find, given))
