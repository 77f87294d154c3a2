"""Images that NumPy stored (`numpy.save`), which may have more channels than image files: .npy, uint8 [H, W, C]."""

from __future__ import annotations

import io
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from boxwright.base.errors import DataError
from boxwright.base.files import read_file
from boxwright.base.limits import IMAGE_PIXELS

SUFFIX = ".npy"
_IMAGE = 3
_MOST_CHANNELS = 32


def read_array(path: str | Path) -> NDArray[np.uint8]:
    """Return a file's image, uint8 [H, W, C].

    Raises:
        DataError: If the file cannot be read, is truncated or holds anything else, or more pixels than
            `limits.IMAGE_PIXELS`.
    """
    file = io.BytesIO(read_file(path))
    try:
        version = np.lib.format.read_magic(file)
        is_first = version == (1, 0)
        read_header = np.lib.format.read_array_header_1_0 if is_first else np.lib.format.read_array_header_2_0
        shape, is_transposed, dtype = read_header(file)
    except (ValueError, EOFError) as error:
        raise DataError(f"{path}: no array that numpy.save wrote: {str(error)[:200]}") from None
    if dtype != np.uint8 or len(shape) != _IMAGE or min(shape) < 1 or shape[2] > _MOST_CHANNELS:
        raise DataError(f"{path}: expected an image, uint8 [height, width, channels], found {dtype} {shape}")
    if problem := IMAGE_PIXELS.exceeded(shape[0] * shape[1]):
        raise DataError(f"{path}: {shape[1]}×{shape[0]}: {problem}")
    count = shape[0] * shape[1] * shape[2]
    values = np.frombuffer(file.read(count), np.uint8)
    if len(values) != count:
        raise DataError(f"{path}: truncated: {len(values)} of {count} bytes of pixels")
    return values.reshape(shape[::-1]).transpose().copy() if is_transposed else values.reshape(shape).copy()
