"""What a checkpoint holds, copied, so that the run can go on while it is written."""

from __future__ import annotations

import copy
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
