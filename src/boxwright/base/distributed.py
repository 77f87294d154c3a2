"""The processes of one run and their communication.

`torchrun` starts them and sets RANK, WORLD_SIZE and LOCAL_RANK; without it a run is one process, and everything here
returns at once. Tensors travel by NCCL between GPUs and by gloo between CPUs.
"""

from __future__ import annotations

import logging
import os
import sys
import time
import uuid
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import timedelta
from typing import TYPE_CHECKING, Any, TypeVar

import torch
import torch.distributed as dist
from torch import Tensor
from torch.distributed.distributed_c10d import PrefixStore, Store
from torch.distributed.rendezvous import rendezvous

from boxwright.base.errors import BoxwrightError, TrainingError

if TYPE_CHECKING:
    from torch.distributed.fsdp import FSDPModule
    from torch.distributed.tensor import DTensor
    from typing_extensions import TypeIs

T = TypeVar("T")
# Long enough for an evaluation that is spread unevenly over the processes.
_PATIENCE = timedelta(hours=2)
_POLL = 0.02  # seconds

_LOG = logging.getLogger("boxwright.run")
_SILENT = logging.getLogger("boxwright.run.followers")
_SILENT.propagate = False
_SILENT.addHandler(logging.NullHandler())


@dataclass(frozen=True)
class Processes:
    """This process among those of the run.

    Attributes:
        rank: Its number, from 0.
        local_rank: Its number on this machine, which is also its GPU's.
    """

    rank: int = 0
    count: int = 1
    local_rank: int = 0

    @property
    def leads(self) -> bool:
        """Whether this process writes files and logs."""
        return self.rank == 0

    @property
    def log(self) -> logging.Logger:
        """This process's logger; only the leading process's messages are shown."""
        return _LOG if self.leads else _SILENT

    def share(self, items: Sequence[T]) -> Sequence[T]:
        """Return every `count`-th item, starting at `rank`; the processes' parts together are all items, each once."""
        return items[self.rank :: self.count]

    def total(self, value: Tensor) -> Tensor:
        """Return the sum of a tensor over the processes, on the same device, without gradient."""
        value = value.detach()
        if self.count == 1:
            return value
        value = value.clone()
        dist.all_reduce(value)
        return value

    def copy_from_leader(self, tensors: Iterable[Tensor]) -> None:
        """Overwrite tensors, of the same shapes in each process, with the leading process's."""
        for tensor in tensors if self.count > 1 else ():
            dist.broadcast(tensor, src=0)

    def largest(self, value: int) -> int:
        """Return the largest value of all processes."""
        if self.count == 1:
            return value
        # gloo reduces it on the CPU, so that nothing waits for a GPU.
        largest = torch.tensor(value)
        dist.all_reduce(largest, op=dist.ReduceOp.MAX)
        return int(largest)

    def gather(self, value: T) -> list[T]:
        """Return every process's value, ordered by rank; the same list in all."""
        if self.count == 1:
            return [value]
        values: list[Any] = [None] * self.count
        dist.all_gather_object(values, value)
        return values

    def from_leader(self, make: Callable[[], T]) -> T:
        """Call a function in the leading process alone, and return its (picklable) result in every process.

        Raises:
            BoxwrightError: In every process, if the function raised it.
        """
        if self.count == 1:
            return make()
        values: list[Any] = [None]
        if self.leads:
            try:
                values = [make()]
            except BoxwrightError as error:
                # Sent to all, or the others would wait for a result that never comes.
                values = [error]
        dist.broadcast_object_list(values, src=0)
        if isinstance(values[0], BoxwrightError):
            raise values[0]
        result: T = values[0]
        return result


ALONE = Processes()


@contextmanager
def join_processes() -> Iterator[Processes]:
    """Join the process group if torchrun started this process; raise TrainingError if the others are unreachable."""
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
    """Return a part of a store that no earlier start of the run has written to, the same in all processes.

    torchrun keeps one store when it restarts processes, and it still has the addresses of the dead ones. So each
    process publishes a newly generated name, and the leader answers to it.

    Raises:
        TrainingError: If a process does not arrive within `patience`.
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
    """Return a tensor whole; if it is sharded over processes, all of them must call this together."""
    return value.full_tensor() if is_sharded(value) else value


def local(value: Tensor) -> Tensor:
    """Return this process's rows of a tensor, sharing memory; all rows if it is not sharded."""
    return value.to_local() if is_sharded(value) else value


def is_sharded(value: object) -> TypeIs[DTensor]:
    """Return whether something is a tensor that is sharded over processes."""
    # Importing these modules takes most of a second: where nobody has done so, nothing is sharded.
    module = sys.modules.get("torch.distributed.tensor")
    return module is not None and isinstance(value, module.DTensor)


def is_sharded_module(module: object) -> TypeIs[FSDPModule]:
    """Return whether a module's weights are sharded over processes."""
    fsdp = sys.modules.get("torch.distributed.fsdp")
    return fsdp is not None and isinstance(module, fsdp.FSDPModule)
