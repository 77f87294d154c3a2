"""TensorFlow's checkpoint bundles, read and written without TensorFlow.

A bundle is `PREFIX.index`, a table of contents, and the data in `PREFIX.data-00000-of-00001` and so on. A SavedModel's
`variables/variables` is a bundle too.
"""

from __future__ import annotations

import math
import os
import re
import struct
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import Any

import google_crc32c
import numpy as np
from google.protobuf.message import DecodeError
from numpy.typing import NDArray

from boxwright.base.crc import mask_crc, masked_crc
from boxwright.base.errors import CheckpointError
from boxwright.base.files import (
    cause,
    diagnose_wrong_file,
    is_file,
    is_folder,
    make_folder,
    open_regular,
    read_file,
    shown,
    write_whole,
)
from boxwright.base.varint import read_varint, write_varint
from boxwright.nn.tensorflow_names.checkpoint_keys import ATTRIBUTE
from boxwright.weights.tensorflow.object_graph import (
    GRAPH_KEY,
    BundleEntry,
    BundleHeader,
    ObjectGraph,
    ObjectGraphProto,
    build_graph,
)
from boxwright.weights.tensorflow.sstable import read_table, write_table

# Type numbers of types.proto; bfloat16 has no NumPy type, and is read as float32 without loss.
# 11, 12, 13, 15 and 16 are quantized types, read as the integers that they are stored as.
DTYPES: dict[int, str] = {
    1: "float32",
    2: "float64",
    3: "int32",
    4: "uint8",
    5: "int16",
    6: "int8",
    7: "string",
    8: "complex64",
    9: "int64",
    10: "bool",
    11: "int8",
    12: "uint8",
    13: "int32",
    14: "bfloat16",
    15: "int16",
    16: "uint16",
    17: "uint16",
    18: "complex128",
    19: "float16",
    22: "uint32",
    23: "uint64",
}
# The names of data files have five digits.
_MOST_SHARDS = 100_000
# Smaller files may be error pages or Git LFS pointers.
_SMALLEST = 100_000
_VARIABLES = Path("variables", "variables.index")  # of a SavedModel
_STATE = re.compile(r'^\s*model_checkpoint_path:\s*"(.*)"', re.MULTILINE)


@dataclass(frozen=True)
class TensorEntry:
    """The index entry of one tensor.

    Attributes:
        dtype: A value of `DTYPES`.
        slices: If it is stored in slices, the (start, length) of each dimension of each slice; a length of -1 is the
            whole dimension.
        offset: Its first byte in that file.
        size: Its bytes.
        crc: Masked CRC-32C of the bytes.
    """

    dtype: str
    shape: tuple[int, ...]
    slices: tuple[tuple[tuple[int, int], ...], ...] = ()
    shard: int = 0
    offset: int = 0
    size: int = 0
    crc: int = 0


class Bundle(Mapping[str, "NDArray[Any]"]):
    """A checkpoint on disk; each tensor is read on access, and its checksum verified.

    Keys are those of all numeric tensors, in order.
    """

    def __init__(self, path: str | Path) -> None:
        """Read the index.

        Args:
            path: As for `find_bundle`.

        Raises:
            CheckpointError: If there is no bundle, its index is damaged, or a data file is missing.
        """
        self.prefix = find_bundle(path)
        index = self.prefix.with_name(f"{self.prefix.name}.index")
        num_shards, self._raw = read_index(index)
        self._shards = [
            self.prefix.with_name(f"{self.prefix.name}.data-{number:05d}-of-{num_shards:05d}")
            for number in range(num_shards)
        ]
        missing = [shard.name for shard in self._shards if not is_file(shard)]
        if missing:
            raise CheckpointError(
                f"{self.prefix}: {len(missing)} of {num_shards} data files missing: {', '.join(missing[:3])}"
            )
        # Keys of slices start with a byte that no name has.
        try:
            self._names = {key.decode(): key for key in self._raw if not key.startswith(b"\0")}
        except UnicodeDecodeError as error:
            raise CheckpointError(f"{index}: a name is not text: {error}") from None
        self.entries = {name: self._raw[key] for name, key in self._names.items()}

    def __iter__(self) -> Iterator[str]:
        return (name for name, entry in self.entries.items() if entry.dtype != "string")

    def __len__(self) -> int:
        return sum(1 for _ in self)

    def __getitem__(self, key: str) -> NDArray[Any]:
        if key not in self.entries or self.entries[key].dtype == "string":
            raise KeyError(key)
        entry = self.entries[key]
        if not entry.slices:
            return self._array(key, entry)
        names = [slice_key(key, extent) for extent in entry.slices]
        missing = [extent for name, extent in zip(names, entry.slices, strict=True) if name not in self._raw]
        if missing:
            raise CheckpointError(f"{self.prefix}: {key}: the slice {missing[0]} is missing")
        # Counted before the whole is allocated, whose shape may be damaged.
        elements = sum(math.prod(self._raw[name].shape) for name in names)
        if min(entry.shape, default=0) < 0 or elements != math.prod(entry.shape):
            raise CheckpointError(f"{self.prefix}: {key}: its slices do not fill shape {list(entry.shape)}")
        parts = [self._array(key, self._raw[name]) for name in names]
        whole = np.zeros(entry.shape, _numpy_dtype(entry.dtype))
        for part, extent in zip(parts, entry.slices, strict=True):
            place = tuple(slice(start, None if length < 0 else start + length) for start, length in extent)
            if len(extent) != whole.ndim or any(start < 0 for start, _ in extent) or whole[place].shape != part.shape:
                raise CheckpointError(f"{self.prefix}: {key}: the slice {extent} has shape {list(part.shape)}")
            whole[place] = part
        return whole

    @property
    def is_object_based(self) -> bool:
        """Whether TF2 wrote it; TF1's checkpoints have no object graph."""
        return GRAPH_KEY in self.entries

    def graph(self) -> ObjectGraph:
        """Return the object graph.

        Raises:
            CheckpointError: If there is none, as in TF1's checkpoints, or it is damaged.
        """
        if not self.is_object_based:
            raise CheckpointError(f"{self.prefix}: has no graph of objects")
        parts = self.strings(GRAPH_KEY)
        try:
            (data,) = parts
            return ObjectGraph(ObjectGraphProto.FromString(data))
        except (DecodeError, ValueError):
            raise CheckpointError(f"{self.prefix}: its graph of objects is damaged") from None

    def strings(self, key: str) -> list[bytes]:
        """Return a tensor of strings.

        Raises:
            CheckpointError: If the bytes are damaged.
        """
        entry = self.entries[key]
        data = self._bytes(key, entry)
        try:
            lengths, position, crc = [], 0, 0
            count = math.prod(entry.shape)
            if not 0 <= count <= len(data):  # each takes at least a byte for its length
                raise ValueError(f"{count} strings in {len(data)} bytes")
            for _ in range(count):
                length, position = read_varint(data, position)
                if length > len(data):
                    raise ValueError("a string is longer than all of them")
                lengths.append(length)
                crc = google_crc32c.extend(crc, struct.pack("<I" if length < 1 << 32 else "<Q", length))
        except ValueError as error:
            raise CheckpointError(f"{self.prefix}: {key}: {error}") from None
        # The checksum of strings covers their lengths as numbers of fixed width, the checksum of those, and the bytes.
        checksum, body = data[position : position + 4], data[position + 4 :]
        whole = google_crc32c.extend(google_crc32c.extend(crc, checksum), body)
        if checksum != struct.pack("<I", mask_crc(crc)) or mask_crc(whole) != entry.crc or len(body) != sum(lengths):
            raise CheckpointError(f"{self.prefix}: {key}: damaged: its checksum does not hold")
        ends = np.cumsum([0, *lengths]).tolist()
        return [body[start:end] for start, end in pairwise(ends)]

    def verify(self) -> list[str]:
        """Return the errors of all tensors; empty for an intact checkpoint."""
        problems = []
        for key, entry in self.entries.items():
            try:
                _ = self.strings(key) if entry.dtype == "string" else self[key]
            except CheckpointError as error:
                problems.append(str(error))
        return problems

    def _array(self, key: str, entry: TensorEntry) -> NDArray[Any]:
        data = self._bytes(key, entry)
        if mask_crc(int(google_crc32c.value(data))) != entry.crc:
            raise CheckpointError(f"{self.prefix}: {key}: damaged: its checksum does not hold")
        dtype = _numpy_dtype(entry.dtype)
        if min(entry.shape, default=0) < 0 or len(data) != math.prod(entry.shape) * (
            2 if entry.dtype == "bfloat16" else dtype.itemsize
        ):
            raise CheckpointError(f"{self.prefix}: {key}: {len(data)} bytes do not fit shape {list(entry.shape)}")
        if entry.dtype == "bfloat16":
            halves = np.frombuffer(data, np.dtype("<u2"))
            return (halves.astype(np.uint32) << 16).view(np.float32).reshape(entry.shape)
        return np.frombuffer(data, dtype).reshape(entry.shape).astype(dtype.newbyteorder("="))

    def _bytes(self, key: str, entry: TensorEntry) -> bytes:
        if not 0 <= entry.shard < len(self._shards):
            raise CheckpointError(f"{self.prefix}: {key} lies in data file {entry.shard} of {len(self._shards)}")
        path = self._shards[entry.shard]
        try:
            # Opened for each tensor, so that a bundle keeps no file open.
            with open_regular(path) as file:
                size = os.fstat(file.fileno()).st_size
                if instead := diagnose_wrong_file(path) if size < _SMALLEST else "":
                    raise CheckpointError(f"{path}: {instead}")
                if entry.offset < 0 or entry.size < 0 or entry.offset + entry.size > size:
                    raise CheckpointError(
                        f"{path}: cut off: {key} ends at byte {entry.offset + entry.size}, the file at {size}"
                    )
                file.seek(entry.offset)
                return file.read(entry.size)
        except OSError as error:
            raise CheckpointError(f"{path}: {cause(error)}") from None


def read_index(path: Path) -> tuple[int, dict[bytes, TensorEntry]]:
    """Return the number of data files, and the index entries by key; keys of slices start with a zero byte.

    Raises:
        CheckpointError: If the index is damaged or malformed.
    """
    table = read_table(read_file(path, CheckpointError), str(path))
    try:
        header = BundleHeader.FromString(table.pop(b"", b""))
        entries = {key: _entry(value) for key, value in table.items()}
    except (DecodeError, KeyError) as error:
        raise CheckpointError(f"{path}: an entry is not as TensorFlow writes it: {error!r}") from None
    if not 1 <= header.num_shards <= _MOST_SHARDS:
        raise CheckpointError(f"{path}: not the index of a checkpoint: its header names {header.num_shards} data files")
    if header.endianness != 0:
        # The flag has no checksum: a damaged one would swap the bytes of every number.
        raise CheckpointError(f"{path}: says it was written on a big-endian machine, whose files are not read")
    return header.num_shards, entries


def _numpy_dtype(name: str) -> np.dtype[Any]:
    return np.dtype("float32" if name == "bfloat16" else name).newbyteorder("<")


def _entry(data: bytes) -> TensorEntry:
    proto = BundleEntry.FromString(data)
    return TensorEntry(
        dtype=DTYPES[proto.dtype],
        shape=tuple(dim.size for dim in proto.shape.dim),
        # An extent without a length is the whole dimension.
        slices=tuple(tuple((extent.start, extent.length or -1) for extent in part.extent) for part in proto.slices),
        shard=proto.shard_id,
        offset=proto.offset,
        size=proto.size,
        crc=proto.crc32c,
    )


def slice_key(name: str, extent: tuple[tuple[int, int], ...]) -> bytes:
    """Return the key of a stored slice of a tensor (TensorFlow's ordered code).

    Args:
        extent: (start, length) of each dimension; -1 is the whole dimension.
    """
    escaped = name.encode().replace(b"\0", b"\0\xff").replace(b"\xff", b"\xff\0")
    parts = [_ordered_unsigned(0), escaped, b"\0\x01", _ordered_unsigned(len(extent))]
    parts += [_ordered_signed(value) for pair in extent for value in pair]
    return b"".join(parts)


def _ordered_unsigned(value: int) -> bytes:
    body = value.to_bytes((value.bit_length() + 7) // 8, "big")
    return bytes([len(body)]) + body


def _ordered_signed(value: int) -> bytes:
    """Encode a number so that bytes sort as numbers do: its length in leading ones, then its bits."""
    magnitude = value if value >= 0 else ~value
    length = magnitude.bit_length() // 7 + 1
    # The first `length` bits encode the length, and the next one the sign.
    header = ((1 << length) - 1) << (8 * length - length)
    positive = header | magnitude
    code = positive if value >= 0 else positive ^ ((1 << (8 * length)) - 1)
    return code.to_bytes(length, "big")


def find_bundle(path: str | Path) -> Path:
    """Return the prefix of the checkpoint at a path.

    Args:
        path: A prefix (`…/ckpt-0`), its `.index` file, a folder of checkpoints (from which the one in its `checkpoint`
            file, or else the newest, is selected), a SavedModel's folder, or the folder of an exported model, which
            holds both.

    Raises:
        CheckpointError: If there is none; with nearby files.
    """
    path = Path(path)
    if path.name.endswith(".index"):
        path = path.with_name(path.name.removesuffix(".index"))
    if is_folder(path):
        return _in_folder(path)
    if not is_file(f"{path}.index"):
        near = sorted(path.parent.glob("*.index"))[:3] if is_folder(path.parent) else []
        hint = f"; there is {', '.join(file.name for file in near)}" if near else ""
        raise CheckpointError(f"{shown(path)}: no such checkpoint: {shown(path.name)}.index is missing{hint}")
    return path


def has_bundle(folder: Path) -> bool:
    """Return whether a folder holds something that `find_bundle` accepts."""
    return any(folder.glob("*.index")) or is_file(folder / _VARIABLES) or _exported(folder) is not None


def _exported(folder: Path) -> Path | None:
    """Return the folder of an exported model's weights: its checkpoint, or else its SavedModel."""
    return next(
        (
            inner
            for name in ("checkpoint", "saved_model")
            if is_folder(inner := folder / name) and (any(inner.glob("*.index")) or is_file(inner / _VARIABLES))
        ),
        None,
    )


def _in_folder(folder: Path) -> Path:
    if is_file(folder / _VARIABLES):
        return (folder / _VARIABLES).with_suffix("")
    if not any(folder.glob("*.index")) and (exported := _exported(folder)):
        return _in_folder(exported)
    indexes = [file.with_name(file.name.removesuffix(".index")) for file in folder.glob("*.index") if is_file(file)]
    if not indexes:
        raise CheckpointError(f"{folder}: no TensorFlow checkpoint (*.index) in this folder")
    return find_newest(folder, indexes)


def find_newest(folder: Path, checkpoints: Sequence[Path]) -> Path:
    """Return which checkpoint of a folder its `checkpoint` file names, or else the one of the largest step."""
    state = folder / "checkpoint"
    named = _STATE.search(read_file(state, CheckpointError).decode(errors="replace")) if is_file(state) else None
    # In a folder that was moved, only the last part of an absolute path is still valid.
    for candidate in (folder / named[1], folder / Path(named[1]).name) if named else ():
        if candidate in checkpoints:
            return candidate
    # By numbers: as text, ckpt-9 would come after ckpt-10.
    return max(checkpoints, key=lambda path: [*map(int, re.findall("[0-9]{1,18}", path.name))])


_STRING = 7


def write_bundle(prefix: str | Path, tensors: Mapping[str, NDArray[Any]], aliases: Mapping[str, str] | None) -> Path:
    """Write a checkpoint of one shard, and the `checkpoint` file that names it.

    Files appear under their names only when complete; the index is written last.

    Args:
        prefix: Such as `folder/ckpt-1`.
        tensors: Keys to arrays; TF2's end in `/.ATTRIBUTES/VARIABLE_VALUE`, TF1's are names.
        aliases: Additional paths of objects to their primary paths; None for a TF1 checkpoint, which has no object
            graph.

    Raises:
        CheckpointError: If a key or a type cannot be written.
        OutputError: If the disk is full or the folder is not writable.
    """
    prefix = Path(prefix)
    wrong = next((key for key in tensors if not key.endswith(ATTRIBUTE)), None)
    if aliases is not None and wrong is not None:
        raise CheckpointError(f"{prefix}: {wrong} is not the key of a variable")
    data = bytearray()
    header = BundleHeader(num_shards=1)
    # TensorFlow's kTensorBundleVersion.
    header.version.producer = 1
    table = {b"": bytes(header.SerializeToString())}
    # Reversed, so that the plain integer types win over the quantized ones of the same NumPy type.
    numbers = {
        np.dtype(name): number for number, name in sorted(DTYPES.items(), reverse=True) if name not in _NOT_NUMPY
    }
    for key in sorted(tensors):
        array: NDArray[Any] = np.asarray(tensors[key])
        if array.dtype not in numbers:
            raise CheckpointError(f"{prefix}: {key}: type {array.dtype} cannot be written")
        body = array.tobytes()
        entry = BundleEntry(dtype=numbers[array.dtype], offset=len(data), size=len(body), crc32c=masked_crc(body))
        for side in array.shape:
            entry.shape.dim.add(size=side)
        # A scalar's shape is empty, and protobuf would leave it out.
        entry.shape.SetInParent()
        table[key.encode()] = entry.SerializeToString()
        data += body
    if aliases is not None:
        graph = build_graph(sorted(tensors), aliases).SerializeToString()
        table[GRAPH_KEY.encode()] = _append_string(data, graph)
    make_folder(prefix.parent)
    write_whole(prefix.with_name(f"{prefix.name}.data-00000-of-00001"), bytes(data))
    write_whole(prefix.with_name(f"{prefix.name}.index"), write_table(table))
    state = f'model_checkpoint_path: "{prefix.name}"\nall_model_checkpoint_paths: "{prefix.name}"\n'
    write_whole(prefix.with_name("checkpoint"), state)
    return prefix


_NOT_NUMPY = ("string", "bfloat16")


def _append_string(data: bytearray, text: bytes) -> bytes:
    """Append a scalar string: its length, a checksum of that, its bytes; return the entry."""
    crc = google_crc32c.value(struct.pack("<I", len(text)))
    checksum = struct.pack("<I", mask_crc(crc))
    body = write_varint(len(text)) + checksum + text
    whole = google_crc32c.extend(google_crc32c.extend(crc, checksum), text)
    entry = BundleEntry(dtype=_STRING, offset=len(data), size=len(body), crc32c=mask_crc(whole))
    entry.shape.SetInParent()
    data += body
    return bytes(entry.SerializeToString())
