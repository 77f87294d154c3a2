"""Checkpoints written while the run goes on, from a copy of its state, by a thread."""

from __future__ import annotations

import copy
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from types import TracebackType
from typing import Any

from torch import Tensor

from boxwright.base.distributed import gathered, is_sharded

Content = dict[str, Any]
_Key = tuple[Any, ...]


def copied(content: Content) -> Content:
    """Return content as it is now, in memory of the CPU; what changes later does not change it.

    Where its tensors are spread over processes, all of them call this together.
    """
    taken: Content = _copied(content, {})
    return taken


def contribute(content: Any) -> None:
    """Hand this process's rows to the one that copies content, and keep nothing."""
    if is_sharded(content):
        # A collective operation: processes meet only if all visit the same tensors in the same order, as `_copied`
        # does.
        gathered(content.detach())
    elif isinstance(content, dict | list | tuple):
        for value in content.values() if isinstance(content, dict) else content:
            contribute(value)


def _copied(value: Any, known: dict[_Key, Tensor]) -> Any:
    """Copy tensors into memory of the CPU; a tensor that appears twice, as shared weights do, is copied once."""
    if is_sharded(value):
        return gathered(value.detach()).cpu()
    if isinstance(value, Tensor):
        key = (value.device, value.data_ptr(), value.dtype, value.shape, value.stride())
        # All tensors without elements have the address 0 and would pass for one.
        if key not in known or not value.numel():
            known[key] = value.detach().to("cpu", copy=True)
        return known[key]
    if isinstance(value, dict):
        # A shallow copy keeps what a network's state has besides its items: its modules' versions.
        made = copy.copy(value)
        made.update((name, _copied(item, known)) for name, item in value.items())
        return made
    if isinstance(value, list | tuple):
        return type(value)(_copied(item, known) for item in value)
    return value


class BackgroundWriter:
    """Writes one checkpoint at a time: the next waits until the one before is on the disk.

    As a context it ends when all is written, so that the folder's lock can be released after it.
    """

    def __init__(self, say: Callable[[str], object]) -> None:
        """Start nothing yet; `say` is called with each message, in the caller's thread."""
        self._say = say
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="checkpoint")
        self._writing: Future[Path] | None = None
        self._message = ""

    def write(self, save: Callable[[Content], Path], content: Content, message: str = "") -> None:
        """Start writing.

        Args:
            save: Writes it whole or not at all, and returns its path.
            content: Tensors and plain data that no longer change, as `copied` returns.
            message: Said when it is written, `{path}` in it; empty for nothing.

        Raises:
            CheckpointError: Where the one before could not be written.
        """
        self.wait()
        self._message = message
        self._writing = self._thread.submit(save, content)

    def poll(self) -> None:
        """Say that a checkpoint is written, where it is by now; raise CheckpointError where it could not be."""
        if self._writing is not None and self._writing.done():
            self.wait()

    def wait(self) -> None:
        """As `poll`, when the checkpoint that is being written is there or has failed."""
        if self._writing is None:
            return
        # Forgotten before its result is asked for, so that a failure is raised once and not again at each poll.
        writing, self._writing = self._writing, None
        path = writing.result()
        if self._message:
            # Not `format`: the message may name a metric of a class, whose name may have braces.
            self._say(self._message.replace("{path}", str(path)))

    def __enter__(self) -> BackgroundWriter:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._thread.shutdown(wait=True)
        # An error that ends the run is the one to report; a failed checkpoint must not take its place.
        if error is None:
            self.wait()
