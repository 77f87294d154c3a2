"""Changes of tensors that are undone: by a flag on the device, for which the program does not wait, or by an error."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager

import torch
from torch import Tensor

# How much of the tensors changes at a time: twice as much is kept beside them.
_AT_ONCE = 128 * 2**20  # bytes


class Snapshot:
    """What some tensors held, so that changes of them can be undone."""

    def __init__(self, tensors: Sequence[Tensor]) -> None:
        """Copy them.

        Args:
            tensors: Of one type and device, each dense in memory.
        """
        self._flat = _flattened(tensors)
        self._before = torch.cat(self._flat) if self._flat else torch.empty(0)

    def restore(self, unless: Tensor | None = None) -> None:
        """Bring the tensors back to what they held.

        Args:
            unless: A bool scalar on their device; where it is true they stay as they are. The program does not wait
                to know.
        """
        if self._flat:
            wanted = self._before if unless is None else torch.where(unless, torch.cat(self._flat), self._before)
            torch._foreach_copy_(self._flat, torch.split(wanted, [len(flat) for flat in self._flat]))


@contextmanager
def undone_unless(flag: Tensor | None, tensors: Sequence[Tensor]) -> Iterator[None]:
    """Bring tensors back to what they were before the block where a flag says so after it.

    Args:
        flag: A bool scalar on the tensors' device; None lets every change stay.
        tensors: What the block changes in place, as for `Snapshot`.
    """
    if flag is None:
        yield
        return
    before = Snapshot(tensors)
    yield
    before.restore(unless=flag)


@contextmanager
def undone_on_error(tensors: Sequence[Tensor]) -> Iterator[Snapshot]:
    """Bring tensors back to what they were before the block where it ends with an error, an interrupt among them.

    Args:
        tensors: What the block changes in place, as for `Snapshot`.
    """
    before = Snapshot(tensors)
    try:
        yield before
    except BaseException:
        before.restore()
        raise


def _flattened(tensors: Sequence[Tensor]) -> list[Tensor]:
    """Return one-dimensional views, in the order in which numbers lie in memory; RuntimeError where that has gaps."""
    return [tensor.permute(sorted(range(tensor.ndim), key=tensor.stride, reverse=True)).view(-1) for tensor in tensors]


def in_parts(tensors: Sequence[Tensor], others_of_each: int) -> Iterator[slice]:
    """Yield parts of a list whose tensors, and as many others as large as each, take little memory together."""
    begin = size = 0
    for number, tensor in enumerate(tensors):
        wanted = tensor.numel() * tensor.element_size() * (1 + others_of_each)
        if size and size + wanted > _AT_ONCE:
            yield slice(begin, number)
            begin, size = number, 0
        size += wanted
    if begin < len(tensors):
        yield slice(begin, len(tensors))
