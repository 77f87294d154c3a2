"""What is measured, by name; without PyTorch where all of it is exported."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from boxwright.base.errors import ConfigError
from boxwright.benchmarking.contender import Contender, Pictures
from boxwright.benchmarking.settings import BenchmarkSettings
from boxwright.loading.open_model import open_model
from boxwright.runtime.formats import EXPORTS
from boxwright.runtime.measure import Timing, measure

if TYPE_CHECKING:
    from boxwright.benchmarking.facts import Facts


def open_contenders(names: Sequence[str], settings: BenchmarkSettings) -> dict[str, Contender]:
    """Open models, and make of each what is measured.

    Args:
        names: Runs' folders, checkpoints, exported files, configurations, and torchvision's as `torchvision:NAME`.

    Returns:
        Contenders by name; compiled ones, and those in bfloat16, have that in theirs.

    Raises:
        BoxwrightError: Where one cannot be opened, or not be trained.
    """
    found: dict[str, Contender] = {}
    for name in names:
        if Path(name).suffix in EXPORTS:
            found[name] = _exported(name, settings)
        else:
            from boxwright.benchmarking.networks import open_network

            found |= open_network(name, settings)
    return found


def time_contenders(
    contenders: dict[str, Contender], pictures: Pictures, sizes: Iterable[int], rounds: int
) -> tuple[list[Timing], dict[str, Facts]]:
    """Time all contenders at all batch sizes, one call of each a round.

    Args:
        contenders: By name; the first is what others are compared with.
        pictures: Are repeated where a batch has more.

    Returns:
        Timings, and what the first batch costs of networks that can be counted, by name.
    """
    timings: list[Timing] = []
    counted: dict[str, Facts] = {}
    for size in sizes:
        given = [pictures[number % len(pictures)] for number in range(size)]
        calls = {name: one.prepare(given) for name, one in contenders.items()}
        timings += measure(calls, size, rounds)
        for name, one in contenders.items():
            if one.network is not None and name not in counted:
                from boxwright.benchmarking.facts import facts

                counted[name] = facts(one.network, calls[name], (one.look or one.prepare)(given))
    return timings, counted


def _exported(name: str, settings: BenchmarkSettings) -> Contender:
    if settings.train:
        raise ConfigError(f"{name} is exported, and cannot be trained; without --train it is measured")
    find = open_model(name, threads=settings.threads, allow_edited=settings.allow_edited).finder()
    return Contender(lambda given: partial(find, given))
