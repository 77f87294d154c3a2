"""TensorFlow's `TensorProto`: an array inside a message."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from boxwright.base.limits import CHECKPOINT_BYTES

# Number of a type in types.proto → NumPy's name, and the field of its values.
_TYPES = {
    1: ("float32", "floats"),
    2: ("float64", "doubles"),
    3: ("int32", "ints"),
    9: ("int64", "longs"),
    14: ("bfloat16", "halves"),
    19: ("float16", "halves"),
}


def check_sizes(tensors: Iterable[tuple[int, Sequence[int]]]) -> None:
    """Raise a ValueError if tensors, by type number and shape, exceed the memory limit.

    A few bytes may stand for a large constant tensor.
    """
    shapes = [shape for dtype, shape in tensors if dtype in _TYPES and min(shape, default=0) >= 0]
    # 8 bytes, the widest of the types, bound each number.
    total = sum(8 * math.prod(shape) for shape in shapes)
    if problem := CHECKPOINT_BYTES.exceeded(total):
        raise ValueError(problem)


def array_of(proto: Any, dtype: int, shape: tuple[int, ...]) -> NDArray[Any]:
    """Return a tensor as an array; bfloat16 as float32.

    Raises:
        ValueError: If type, shape and values are inconsistent, or a limit is exceeded.
    """
    if dtype not in _TYPES:
        raise ValueError(f"tensors of type {dtype} are not supported")
    name, field = _TYPES[dtype]
    stored = np.dtype("uint16") if field == "halves" else np.dtype(name)
    if min(shape, default=0) < 0:
        raise ValueError(f"shape {list(shape)}")
    count = math.prod(shape)
    if problem := CHECKPOINT_BYTES.exceeded(count * stored.itemsize):
        raise ValueError(problem)
    if proto.content:
        if len(proto.content) != count * stored.itemsize:
            raise ValueError(f"{len(proto.content)} bytes do not fit shape {list(shape)}")
        values = np.frombuffer(proto.content, stored.newbyteorder("<"))
    else:
        listed = getattr(proto, field)
        # TensorFlow truncates repeated values: the last one stands for all that are missing.
        if len(listed) > count or (count and not listed):
            raise ValueError(f"{len(listed)} values do not fit shape {list(shape)}")
        values = np.array(listed, np.uint32).astype(np.uint16) if field == "halves" else np.array(listed, stored)
        if len(values) < count:
            values = np.concatenate([values, np.full(count - len(values), values[-1], values.dtype)])
    if name == "bfloat16":
        values = (values.astype(np.uint32) << 16).view(np.float32)
    elif name == "float16":
        values = values.view(np.float16)
    return values.astype(values.dtype.newbyteorder("="), copy=False).reshape(shape)
