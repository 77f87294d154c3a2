"""Writing checkpoints that TensorFlow 2 can restore."""

from __future__ import annotations

import struct
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import google_crc32c
import numpy as np
from numpy.typing import NDArray

from boxwright.base.crc import mask_crc, masked_crc
from boxwright.base.errors import CheckpointError
from boxwright.base.files import make_folder, write_whole
from boxwright.base.varint import write_varint
from boxwright.nn.tensorflow_names.checkpoint_keys import ATTRIBUTE
from boxwright.weights.tensorflow.bundle import DTYPES
from boxwright.weights.tensorflow.object_graph import GRAPH_KEY, BundleEntry, BundleHeader, build_graph
from boxwright.weights.tensorflow.sstable import write_table

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
    table = {b"": _header()}
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


def _header() -> bytes:
    header = BundleHeader(num_shards=1)
    # TensorFlow's kTensorBundleVersion.
    header.version.producer = 1
    return bytes(header.SerializeToString())


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
