"""Opening and timing contenders by name; without PyTorch if all of them are exported."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from boxwright.base.errors import ConfigError
from boxwright.cli.benchmarking.contender import Contender, Pictures
from boxwright.cli.benchmarking.settings import BenchmarkSettings
from boxwright.runtime.formats import EXPORTS
from boxwright.runtime.measure import Timing, measure
from boxwright.weights.open_model import open_model

if TYPE_CHECKING:
    from boxwright.cli.benchmarking.facts import ModelCosts


def open_contenders(names: Sequence[str], settings: BenchmarkSettings) -> dict[str, Contender]:
    """Return contenders by name; the names of compiled and of bfloat16 ones show it.

    Args:
        names: Runs' folders, checkpoints, exported files, configurations, and torchvision's as `torchvision:NAME`.

    Raises:
        BoxwrightError: If one cannot be opened, or cannot be trained.
    """
    contenders: dict[str, Contender] = {}
    for name in names:
        if Path(name).suffix in EXPORTS:
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
        calls = {name: one.prepare(given) for name, one in contenders.items()}
        timings += measure(calls, size, rounds)
        for name, one in contenders.items():
            if one.network is not None and name not in counted:
                from boxwright.cli.benchmarking.facts import facts

                counted[name] = facts(one.network, calls[name], (one.look or one.prepare)(given))
    return timings, counted


def _exported(name: str, settings: BenchmarkSettings) -> Contender:
    if settings.train:
        raise ConfigError(f"{name} is exported and cannot be trained; remove --train to measure it")
    find = open_model(name, threads=settings.threads, allow_edited=settings.allow_edited).finder()
    return Contender(lambda given: partial(find, given))
