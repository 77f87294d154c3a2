"""How many threads a run computes with: chosen when it begins, and kept when it is resumed.

Sums that threads share are rounded in an order that depends on their number, so that a resumed run has the bits of an
uninterrupted one only with the number that it began with.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import torch

from boxwright.base.errors import CheckpointError
from boxwright.base.threads import MOST_THREADS, usable_cpus

# A checkpoint's key.
THREADS = "threads"


@contextmanager
def run_threads(asked: int, content: Mapping[str, Any] | None, log: logging.Logger) -> Iterator[int]:
    """Let PyTorch compute with a run's number of threads; afterwards with as many as before.

    Args:
        asked: The number that the settings ask for; 0 for the run's own.
        content: The checkpoint that is resumed from; None for a new run, which begins with as many as PyTorch has.
        log: Gets a line about the number.

    Yields:
        The number.

    Raises:
        CheckpointError: If the checkpoint's number is none.
    """
    before = torch.get_num_threads()
    begun = (content or {}).get(THREADS, 0)  # those of earlier versions have none
    if not isinstance(begun, int) or not 0 <= begun <= MOST_THREADS:
        raise CheckpointError(f"not a whole checkpoint: its {THREADS!r} is {begun!r}")
    count = asked or begun or before
    log.info(_line(count, begun, before))
    torch.set_num_threads(count)
    try:
        yield count
    finally:
        torch.set_num_threads(before)


def _line(count: int, begun: int, before: int) -> str:
    line = f"threads: {count}"
    if begun and count != begun:
        line += f", and {begun} until now: results differ by rounding from those of an uninterrupted run"
    elif begun and count != before:
        line += f", as the run began; without it, {before} (--threads changes it)"
    if count > (usable := usable_cpus()):
        line += f"; more than the {usable} CPUs here, which takes longer"
    return line
