"""The processes of one run, and what they tell each other.

`torchrun` starts them and sets RANK, WORLD_SIZE and LOCAL_RANK; without it a run is one process, and
everything here returns at once. Tensors travel by NCCL between GPUs and by gloo between CPUs.
"""

from __future__ import annotations

import logging
import os
import time
import uuid
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import timedelta
from typing import Any, TypeVar

import torch
import torch.distributed as dist
from torch import Tensor
from torch.distributed.distributed_c10d import PrefixStore, Store
from torch.distributed.rendezvous import rendezvous
from torch.distributed.tensor import DTensor

from boxwright.base.errors import BoxwrightError, TrainingError

T = TypeVar("T")
# Long enough for an evaluation of which one process has the larger part.
_PATIENCE = timedelta(hours=2)
_POLL = 0.02  # seconds


_LOG = logging.getLogger("boxwright.run")
_UNHEARD = logging.getLogger("boxwright.run.followers")
_UNHEARD.propagate = False
_UNHEARD.addHandler(logging.NullHandler())


@dataclass(frozen=True)
class Processes:
    """This process among those of the run.

    Attributes:
        rank: Its number, from 0.
        count: How many there are.
        local_rank: Its number on this machine, which is its GPU's.
    """

    rank: int = 0
    count: int = 1
    local_rank: int = 0

    @property
    def leads(self) -> bool:
        """Whether this is the one that writes and speaks."""
        return self.rank == 0

    @property
    def log(self) -> logging.Logger:
        """Where this process says what happened; only the one that leads is heard."""
        return _LOG if self.leads else _UNHEARD

    def share(self, items: Sequence[T]) -> Sequence[T]:
        """Return every `count`-th item, from `rank` on; together the parts are all items, each once."""
        return items[self.rank :: self.count]

    def total(self, value: Tensor) -> Tensor:
        """Sum over the processes.

        Args:
            value: Of the same shape in each; no gradient flows.

        Returns:
            The sum, on the same device.
        """
        value = value.detach()
        if self.count == 1:
            return value
        value = value.clone()
        dist.all_reduce(value)
        return value

    def copy_from_leader(self, tensors: Iterable[Tensor]) -> None:
        """Overwrite tensors with the leading process's.

        Args:
            tensors: As many and of the same shapes in each process.
        """
        for tensor in tensors if self.count > 1 else ():
            dist.broadcast(tensor, src=0)

    def largest(self, value: int) -> int:
        """Find the largest number that any process has."""
        if self.count == 1:
            return value
        number = torch.tensor(value)
        dist.all_reduce(number, op=dist.ReduceOp.MAX)
        return int(number)

    def gather(self, value: T) -> list[T]:
        """Return one value a process, in their order; the same list in all."""
        if self.count == 1:
            return [value]
        values: list[Any] = [None] * self.count
        dist.all_gather_object(values, value)
        return values

    def from_leader(self, make: Callable[[], T]) -> T:
        """Let the leading process do what one is to do, and tell the others.

        Args:
            make: What to do; called by the leader alone. What it returns can be pickled.

        Returns:
            What it returned, in every process.

        Raises:
            BoxwrightError: What it raised, in every process.
        """
        if self.count == 1:
            return make()
        values: list[Any] = [None]
        if self.leads:
            try:
                values = [make()]
            except BoxwrightError as error:
                values = [error]
        dist.broadcast_object_list(values, src=0)
        if isinstance(values[0], BoxwrightError):
            raise values[0]
        result: T = values[0]
        return result


ALONE = Processes()


@contextmanager
def join_processes() -> Iterator[Processes]:
    """Join the other processes, where torchrun started this one.

    Raises:
        TrainingError: Where torchrun's settings are there, and the others cannot be reached.
    """
    count = int(os.environ.get("WORLD_SIZE", "1"))
    if count == 1:
        yield ALONE
        return
    here = Processes(int(os.environ["RANK"]), count, int(os.environ.get("LOCAL_RANK", "0")))
    if dist.is_initialized():  # the caller's own group stays the caller's
        yield here
        return
    # Plain values travel by gloo even where tensors travel by NCCL.
    backend = "cpu:gloo,cuda:nccl" if torch.cuda.is_available() else "gloo"
    try:
        store, _, _ = next(rendezvous("env://", timeout=_PATIENCE))
        store = meet(store, here, _PATIENCE)
        dist.init_process_group(backend, timeout=_PATIENCE, store=store, rank=here.rank, world_size=count)
    except (RuntimeError, ValueError) as error:
        raise TrainingError(f"process {here.rank} of {count} cannot reach the others: {error}") from None
    try:
        yield here
    finally:
        dist.destroy_process_group()


def meet(store: Store, here: Processes, patience: timedelta) -> Store:
    """Agree on a part of a store that no other start of the run has written to.

    torchrun keeps one store when it starts processes again, and the addresses of those that are gone
    are still in it. So each process shows a name that it has just made up, and the leader answers to it.

    Args:
        patience: How long to wait for the others.

    Returns:
        The part, the same in all processes.

    Raises:
        TrainingError: Where some process does not come.
    """
    name = uuid.uuid4().hex
    if not here.leads:
        store.set(f"hello {here.rank}", name)
        store.wait([f"welcome {name}"], patience)
        chosen = store.get(f"welcome {name}").decode()
        store.set(f"met {chosen} {here.rank}", "")
        return PrefixStore(chosen, store)
    missing, until = set(range(1, here.count)), time.monotonic() + patience.total_seconds()
    while missing:
        for rank in missing:
            if store.check([f"hello {rank}"]):
                store.set(f"welcome {store.get(f'hello {rank}').decode()}", name)
        missing = {rank for rank in missing if not store.check([f"met {name} {rank}"])}
        if time.monotonic() > until:
            raise TrainingError(f"processes {sorted(missing)} of {here.count} did not come within {patience}")
        time.sleep(_POLL)
    return PrefixStore(name, store)


def gathered(value: Tensor) -> Tensor:
    """Return a tensor whole; where it is spread over processes, all of them call this together."""
    return value.full_tensor() if isinstance(value, DTensor) else value


def local(value: Tensor) -> Tensor:
    """Return the rows of a tensor that this process has, in the same memory; all of them where it is not spread."""
    return value.to_local() if isinstance(value, DTensor) else value
