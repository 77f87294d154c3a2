"""The processes of one run and their communication.

`torchrun` starts them and sets RANK, WORLD_SIZE and LOCAL_RANK; without it a run is one process, and everything here
returns at once. Tensors travel by NCCL between GPUs and by gloo between CPUs.
"""

from __future__ import annotations

import logging
import os
import sys
import threading
import time
import traceback
import uuid
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass, field, replace
from datetime import timedelta
from pathlib import Path
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
_NAMED_AFTER = 45.0  # seconds
_PACKAGE = str(Path(__file__).parents[1])

_LOG = logging.getLogger("boxwright.run")
_SILENT = logging.getLogger("boxwright.run.followers")
_SILENT.propagate = False
_SILENT.addHandler(logging.NullHandler())


class RollCall:
    """Tells which processes the others have long waited for, and what each of these is doing.

    A thread publishes how many meetings this process came to, so that a step costs nothing, and looks now and then
    whether this process waits for others, or they for it.
    """

    def __init__(self, store: Store, rank: int, count: int, patience: float = _NAMED_AFTER, poll: float = 5.0) -> None:
        """Begin.

        Args:
            store: Where the processes of this start of the run publish.
            patience: Seconds of waiting after which a process is named.
            poll: Seconds between looks.
        """
        self._store, self._rank, self._count, self._patience, self._poll = store, rank, count, patience, poll
        self._main = threading.get_ident()
        # How many meetings this process came to, when it came to the last or left it, and whether it waits there.
        self._state = (0, time.monotonic(), False)
        self._named = (-1, False)
        self._ended = threading.Event()
        self._watcher = threading.Thread(target=self._watch, name="roll call", daemon=True)
        self._watcher.start()

    @contextmanager
    def meeting(self) -> Iterator[None]:
        """Count as having come, and as waiting while this lasts."""
        number = self._state[0] + 1
        self._state = number, time.monotonic(), True
        try:
            yield
        finally:
            self._state = number, time.monotonic(), False

    def end(self) -> None:
        """Stop watching; the store may be closed after this."""
        self._ended.set()
        self._watcher.join()

    def _watch(self) -> None:
        try:
            while not self._ended.wait(self._poll):
                self._look()
        except RuntimeError as error:  # the store's process has ended, and with it the run
            _LOG.debug("the roll call has ended: %s", error)

    def _look(self) -> None:
        number, since, waits = self._state
        self._store.set(f"came {self._rank}", str(number))
        seconds = time.monotonic() - since
        if seconds < self._patience or self._named == (number, waits):
            return
        known = {rank: f"came {rank}" for rank in range(self._count)}
        came = {rank: int(self._store.get(key)) if self._store.check([key]) else 0 for rank, key in known.items()}
        absent = [rank for rank in came if came[rank] < number]
        if waits and absent and self._rank == min(rank for rank in came if came[rank] >= number):
            self._named = (number, waits)
            numbers = ", ".join(map(str, absent))
            _LOG.warning("waiting for process %s of %d for %.0f s: it may hang", numbers, self._count, seconds)
        elif not waits and max(came.values()) > number:
            self._named = (number, waits)
            place = self._place()
            _LOG.warning("process %d: the others wait for it; for %.0f s it has been at %s", self._rank, seconds, place)

    def _place(self) -> str:
        """Return where the main thread is: its innermost line, and the innermost of ours."""
        frame = sys._current_frames().get(self._main)
        stack = traceback.extract_stack(frame) if frame is not None else []
        ours = [line for line in stack if line.filename.startswith(_PACKAGE)]
        lines = dict.fromkeys(f"{line.filename}:{line.lineno} ({line.name})" for line in (*ours[-1:], *stack[-1:]))
        return ", in ".join(reversed(lines)) or "an unknown place"


@dataclass(frozen=True)
class Processes:
    """This process among those of the run.

    Attributes:
        rank: Its number, from 0.
        local_rank: Its number on this machine, which is also its GPU's.
        roll_call: Names processes that the others wait for, where they are this run's own.
    """

    rank: int = 0
    count: int = 1
    local_rank: int = 0
    roll_call: RollCall | None = field(default=None, compare=False, repr=False)

    def _meeting(self) -> AbstractContextManager[None]:
        return nullcontext() if self.roll_call is None else self.roll_call.meeting()

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
        with self._meeting():
            dist.all_reduce(largest, op=dist.ReduceOp.MAX)
        return int(largest)

    def gather(self, value: T) -> list[T]:
        """Return every process's value, ordered by rank; the same list in all."""
        if self.count == 1:
            return [value]
        values: list[Any] = [None] * self.count
        with self._meeting():
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
        with self._meeting():
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
    if "RANK" not in os.environ:
        raise TrainingError(
            f"WORLD_SIZE is {count}, but RANK, this process's number, is not set: start {count} processes by torchrun, "
            "or unset WORLD_SIZE for one"
        )
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
    roll_call = RollCall(PrefixStore("roll call", store), here.rank, count)
    try:
        yield replace(here, roll_call=roll_call)
    finally:
        roll_call.end()
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
