"""TensorFlow's first checkpoint format: one file, a table of tensor slices by name (`model.ckpt`).

TF-Slim's classifiers use it.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np
from google.protobuf.message import DecodeError
from numpy.typing import NDArray

from boxwright.base.errors import CheckpointError
from boxwright.base.files import read_file, shown, size_of
from boxwright.base.limits import CHECKPOINT_BYTES
from boxwright.weights.tensorflow.protos import SavedTensorSlices
from boxwright.weights.tensorflow.sstable import read_table
from boxwright.weights.tensorflow.tensor_proto import array_of, check_sizes

_NUMERIC = (1, 2, 3, 9, 14, 19)


class SavedSlices(Mapping[str, "NDArray[Any]"]):
    """A checkpoint; keys are the names of all numeric tensors."""

    def __init__(self, path: str | Path) -> None:
        """Read the file.

        Raises:
            CheckpointError: If it has another format, or is damaged.
        """
        self.path = Path(path)
        where = shown(path)
        if problem := CHECKPOINT_BYTES.exceeded(size_of(path)):
            raise CheckpointError(f"{where}: {problem}")
        table = read_table(read_file(path, CheckpointError), where, CHECKPOINT_BYTES)
        try:
            meta = SavedTensorSlices.FromString(table.pop(b"", b"")).meta
        except DecodeError:
            raise CheckpointError(f"{where}: its list of tensors is damaged") from None
        self._meta = {tensor.name: tensor for tensor in meta.tensor if tensor.type in _NUMERIC}
        if not self._meta:
            raise CheckpointError(f"{where}: a table, but not a checkpoint: it lists no tensors")
        try:
            check_sizes((row.type, [dim.size for dim in row.shape.dim]) for row in self._meta.values())
        except ValueError as error:
            raise CheckpointError(f"{where}: {error}") from None
        self._slices: dict[str, list[bytes]] = {}
        # By the name in each value: a table's keys encode it as ordered code, which need not be decoded then.
        for value in table.values():
            self._slices.setdefault(_name(value, where), []).append(value)

    def __iter__(self) -> Iterator[str]:
        return iter(self._meta)

    def __len__(self) -> int:
        return len(self._meta)

    def __getitem__(self, key: str) -> NDArray[Any]:
        meta = self._meta[key]
        shape = tuple(dim.size for dim in meta.shape.dim)
        try:
            parts = [SavedTensorSlices.FromString(value).data for value in self._slices.get(key, [])]
            if not parts:
                raise ValueError("its values are missing")
            if len(parts) == 1 and _is_whole(parts[0]):
                return array_of(parts[0].data, meta.type, shape)
            return _joined(parts, meta.type, shape)
        except (DecodeError, ValueError) as error:
            raise CheckpointError(f"{shown(self.path)}: {key}: {error}") from None


def _name(value: bytes, where: str) -> str:
    try:
        return str(SavedTensorSlices.FromString(value).data.name)
    except DecodeError:
        raise CheckpointError(f"{where}: a slice is damaged") from None


def _is_whole(part: Any) -> bool:
    return all(not extent.start and extent.length in (0, -1) for extent in part.slice.extent)


def _joined(parts: list[Any], dtype: int, shape: tuple[int, ...]) -> NDArray[Any]:
    """Join slices; a ValueError says that they do not fill the shape."""
    whole: NDArray[Any] | None = None
    filled = np.zeros(shape, np.bool_) if min(shape, default=0) >= 0 else np.zeros(0, np.bool_)
    for part in parts:
        extents = [(extent.start, extent.length) for extent in part.slice.extent]
        inside = (start >= 0 and start + length <= side for (start, length), side in zip(extents, shape, strict=False))
        if len(extents) != len(shape) or not all(inside):
            raise ValueError(f"a slice lies outside shape {list(shape)}")
        # A missing length is the whole side.
        sides = tuple(length or side for (_, length), side in zip(extents, shape, strict=True))
        values = array_of(part.data, dtype, sides)
        if whole is None:
            whole = np.zeros(shape, values.dtype)
        place = tuple(slice(start, start + side) for (start, _), side in zip(extents, sides, strict=True))
        whole[place], filled[place] = values, True
    if whole is None or not filled.all():
        raise ValueError(f"its slices do not fill shape {list(shape)}")
    return whole
