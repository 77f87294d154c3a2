"""Many tensors at once: transformed together, or copied to the CPU as one block."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import fields, is_dataclass, replace
from typing import TypeVar

import torch
from torch import Tensor

T = TypeVar("T")


def fetched(tensors: Sequence[Tensor]) -> list[Tensor]:
    """Return tensors on the CPU; those of a GPU with one synchronized copy."""
    if all(tensor.device.type == "cpu" for tensor in tensors):
        return list(tensors)
    return unpacked(packed(tensors).cpu(), tensors)


def packed(tensors: Sequence[Tensor]) -> Tensor:
    """Return the concatenated bytes of tensors of one device: uint8 [N]."""
    as_they_lie = (tensors[number].permute(_places(tensors[number])) for number in _order(tensors))
    return torch.cat([tensor.reshape(-1).view(torch.uint8) for tensor in as_they_lie])


def unpacked(block: Tensor, like: Sequence[Tensor]) -> list[Tensor]:
    """Return views of a packed block, with the shapes and types of other tensors."""
    order = _order(like)
    parts = torch.split(block, [like[number].numel() * like[number].element_size() for number in order])
    tensors: dict[int, Tensor] = {}
    for number, part in zip(order, parts, strict=True):
        places = _places(like[number])
        as_it_lay = part.view(like[number].dtype).view([like[number].shape[place] for place in places])
        tensors[number] = as_it_lay.permute([places.index(place) for place in range(len(places))])
    return [tensors[number] for number in range(len(like))]


def _places(tensor: Tensor) -> list[int]:
    """Return a tensor's dimensions in memory order, so that packing does not transpose."""
    return sorted(range(tensor.ndim), key=tensor.stride, reverse=True)


def _order(tensors: Sequence[Tensor]) -> list[int]:
    """Return the indices of tensors, wide types first, which keeps all of them aligned."""
    return sorted(range(len(tensors)), key=lambda number: tensors[number].element_size(), reverse=True)


def collect_tensors(value: object) -> list[Tensor]:
    """Return every tensor in a value, in the order of `each_tensor`."""
    tensors: list[Tensor] = []

    def seen(tensor: Tensor) -> Tensor:
        tensors.append(tensor)
        return tensor

    each_tensor(value, seen)
    return tensors


def each_tensor(value: T, change: Callable[[Tensor], Tensor]) -> T:
    """Return a value with a function applied to every tensor, in nested tuples, lists and dataclasses."""
    if isinstance(value, Tensor):
        return change(value)  # type: ignore[return-value]
    if isinstance(value, tuple | list):
        return type(value)([each_tensor(item, change) for item in value])  # type: ignore[return-value]
    if is_dataclass(value) and not isinstance(value, type):
        return replace(
            value, **{field.name: each_tensor(getattr(value, field.name), change) for field in fields(value)}
        )
    return value
