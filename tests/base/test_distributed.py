"""How processes find each other."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from datetime import timedelta

import pytest
import torch.distributed as dist

import boxwright as bw
from boxwright.base.distributed import Processes, meet

SOON = timedelta(seconds=20)


def test_processes_of_each_start_meet_apart() -> None:
    """What an earlier start left in the store is not taken for this one's."""
    store = dist.HashStore()
    with ThreadPoolExecutor(3) as pool:
        for start in range(3):
            parts = list(pool.map(lambda rank: meet(store, Processes(rank, 3), SOON), range(3)))
            assert not parts[2].check(["address"])
            parts[0].set("address", str(start))
            assert [part.get("address") for part in parts] == [str(start).encode()] * 3


def test_one_that_does_not_come() -> None:
    store = dist.HashStore()
    store.set("hello 1", "gone")  # as a process left it that was killed
    with pytest.raises(bw.TrainingError, match=r"processes \[1\] of 2 did not come"):
        meet(store, Processes(0, 2), timedelta(seconds=0.2))
