"""`.safetensors` files: ours have a digest in their metadata, which is verified on reading.

The format has no checksum, so a flipped bit would silently change a weight.
"""

from __future__ import annotations

import hashlib
import json
import struct
from collections.abc import Mapping
from pathlib import Path

import torch
from safetensors import SafetensorError
from safetensors.torch import load, save
from torch import Tensor

from boxwright.base.errors import CheckpointError, pass_shortage
from boxwright.base.files import read_file, shown

_KEY = "boxwright_sha256"


def pack_safetensors(tensors: Mapping[str, Tensor], **metadata: str) -> bytes:
    """Return a file's bytes, with a digest of names, types, shapes and values in its metadata, beside what is given."""
    plain = {name: value.detach().cpu().contiguous() for name, value in tensors.items()}
    return bytes(save(plain, {**metadata, _KEY: _digest(plain)}))


def read_safetensors(path: str | Path) -> dict[str, Tensor]:
    """Return the tensors in a file, with or without our digest.

    Raises:
        CheckpointError: If it cannot be read, or its digest does not match.
    """
    data = read_file(path, CheckpointError)
    try:
        tensors: dict[str, Tensor] = load(data)
        # A file starts with the length of its JSON header; the library does not return the metadata in it.
        (length,) = struct.unpack_from("<Q", data)
        wanted = json.loads(data[8 : 8 + length]).get("__metadata__", {}).get(_KEY)
    except (SafetensorError, LookupError, TypeError, ValueError, RuntimeError, struct.error) as error:
        pass_shortage(error, shown(path))
        raise CheckpointError(f"{shown(path)}: not readable as safetensors: {str(error)[:200]}") from None
    if wanted is not None and wanted != _digest(tensors):
        raise CheckpointError(f"{shown(path)}: not readable as safetensors: damaged: its digest does not hold")
    return tensors


def _digest(tensors: Mapping[str, Tensor]) -> str:
    hasher = hashlib.sha256()
    for name in sorted(tensors):
        value = tensors[name]
        hasher.update(f"{name} {value.dtype} {list(value.shape)}\n".encode())
        # As bytes: NumPy has no bfloat16.
        hasher.update(value.reshape(-1).view(torch.uint8).numpy().tobytes())
    return hasher.hexdigest()
