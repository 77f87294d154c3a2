"""Decoded pictures in a file, which all processes of a machine share: later epochs read their pixels from it.

Each picture has a slot of its size. It begins with the picture file's size and time, and the sum of its pixels as
numbers of 64 bits: a slot that was not written whole, or whose picture has changed since, counts as empty. So nothing
is locked, whatever a killed process or a run beside this one leaves there. The system keeps the file in memory while
there is room, and reads it from there as fast as a process reads its own.

Dimensions: N pictures, H W image.
"""

from __future__ import annotations

import hashlib
import os
import shutil
import struct
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from importlib.metadata import version
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from boxwright.base.errors import ConfigError, OutputError
from boxwright.base.files import cache_folder, cause, make_folder, shown

# Another file is begun when one of these changes: what slots look like, or whose decoders fill them.
_FORMAT = 1
_DECODERS = ("simplejpeg", "pillow")
# The picture file's size, its time in nanoseconds, and the sum.
_HEAD = struct.Struct("<qqQ")
_WORD = 8


@dataclass(frozen=True)
class PixelCache:
    """The slots of pictures in a file.

    Attributes:
        path: The file.
        shapes: int64 [N, 2]; height and width of each picture, 0 for one that has no slot.
        starts: int64 [N]; where slots begin.
        size: Bytes of the file.
    """

    path: Path
    shapes: NDArray[np.int64]
    starts: NDArray[np.int64]
    size: int

    def check_room(self) -> None:
        """Raise an OutputError if the disk has no room for what the file does not have yet."""
        held = 512 * self.path.stat().st_blocks if self.path.exists() else 0
        free = shutil.disk_usage(self.path.parent).free
        if self.size - held > free:
            raise OutputError(
                f"{shown(self.path.parent)}: {free / 1e9:.1f} GB are free, and the decoded pictures take "
                f"{self.size / 1e9:.1f} GB; train without the cache, or name another folder with BOXWRIGHT_CACHE"
            )

    def reserve(self) -> str:
        """Make the file, or complete it, with its room on the disk, and return a line that says so.

        Raises:
            OutputError: If that fails.
        """
        with _open(self.path, os.O_CREAT) as descriptor:
            state = os.fstat(descriptor)
            if not hasattr(os, "posix_fallocate"):
                os.truncate(descriptor, max(self.size, state.st_size))
            elif 512 * state.st_blocks < self.size:
                os.posix_fallocate(descriptor, 0, self.size)
        memory = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
        slow = "" if self.size < memory else ", more than this machine's memory: epochs read them from the disk"
        return f"decoded pictures are kept in {shown(self.path)}: {self.size / 1e9:.1f} GB{slow}"

    def read(self, index: int, picture: Path, decode: Callable[[], NDArray[np.uint8]]) -> NDArray[np.uint8]:
        """Return a picture's pixels, uint8 [H, W, 3], from its slot; if that is empty they are decoded, and kept.

        Raises:
            OutputError: If the file cannot be read or written.
        """
        height, width = self.shapes[index].tolist()
        try:
            state = os.stat(picture)
        except OSError:  # decoding says why
            return decode()
        slot = np.empty(_slot_bytes(height, width), np.uint8)
        pixels = slot[_HEAD.size : _HEAD.size + height * width * 3].reshape(height, width, 3)
        picture_state = state.st_size, state.st_mtime_ns
        if self._read(slot, index, picture_state):
            return pixels
        image = decode()
        # Another shape: the picture has changed since its header was read.
        if image.shape == pixels.shape:
            slot[-_WORD:] = 0  # beyond the last pixel
            pixels[...] = image
            _HEAD.pack_into(slot.data, 0, *picture_state, _pixel_sum(slot))
            self._write(slot, index)
        return image

    def _read(self, slot: NDArray[np.uint8], index: int, picture_state: tuple[int, int]) -> bool:
        """Fill a slot from the file; return whether it is that of a whole picture, of a file's size and time."""
        start = int(self.starts[index])
        with _open(self.path) as descriptor:
            head = os.pread(descriptor, _HEAD.size, start)
            if len(head) < _HEAD.size or _HEAD.unpack(head)[:2] != picture_state:
                return False
            whole = os.preadv(descriptor, [slot.data], start) == len(slot)
            return whole and _HEAD.unpack_from(slot.data) == (*picture_state, _pixel_sum(slot))

    def _write(self, slot: NDArray[np.uint8], index: int) -> None:
        start, rest = int(self.starts[index]), slot.data
        with _open(self.path) as descriptor:
            while rest:
                written = os.pwrite(descriptor, rest, start)
                start, rest = start + written, rest[written:]


def plan_pixel_cache(pictures: Iterable[tuple[Path, tuple[int, int]] | None], read_as: str) -> PixelCache:
    """Return the slots of pictures in a file of the cache folder, for which there is room; the file is not made.

    Args:
        pictures: Of each index, the picture and its (height, width); or None, without a slot.
        read_as: What else their pixels depend on.

    Raises:
        ConfigError: On Windows.
        OutputError: If there is no room for the file.
    """
    if not hasattr(os, "preadv"):
        raise ConfigError("the cache of decoded pictures needs Linux or macOS; train without it")
    shapes, names = [], hashlib.sha256(f"{_FORMAT} {[*map(version, _DECODERS)]} {read_as}".encode())
    for item in pictures:
        path, size = item or (Path(), (0, 0))
        shapes.append(size)
        names.update(os.fsencode(f"{os.path.abspath(path)}\0{size}\0"))
    ends = np.cumsum([_slot_bytes(*shape) for shape in shapes], dtype=np.int64)
    path = make_folder(cache_folder() / "pixels") / names.hexdigest()[:24]
    starts = np.concatenate([np.zeros(1, np.int64), ends[:-1]])
    cache = PixelCache(path, np.array(shapes, np.int64).reshape(-1, 2), starts, int(ends[-1]))
    cache.check_room()
    return cache


@contextmanager
def _open(path: Path, flags: int = 0) -> Iterator[int]:
    """Open the file; errors of the system while it is used become an OutputError."""
    try:
        descriptor = os.open(path, os.O_RDWR | flags, 0o666)
        try:
            yield descriptor
        finally:
            os.close(descriptor)
    except OSError as error:
        raise OutputError(
            f"{shown(path)}: the cache of decoded pictures cannot be used: {cause(error)}; train without it"
        ) from None


def _slot_bytes(height: int, width: int) -> int:
    return _HEAD.size + -(-height * width * 3 // _WORD) * _WORD


def _pixel_sum(slot: NDArray[np.uint8]) -> int:
    """Return the sum of a slot's pixels as numbers of 64 bits, without what exceeds these."""
    return int(slot[_HEAD.size :].view(np.uint64).sum())
