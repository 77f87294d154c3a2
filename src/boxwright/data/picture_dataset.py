"""Data sets whose pictures are files.

Pictures are found when the data are opened; a missing one is an error when it is read.
"""

from __future__ import annotations

import os
from abc import ABC, abstractmethod
from collections import Counter
from collections.abc import Mapping, Sequence
from functools import partial
from pathlib import Path
from types import MappingProxyType
from typing import Literal
from urllib.parse import quote

import numpy as np
from numpy.typing import NDArray

from boxwright.base.errors import DataError
from boxwright.base.files import read_file, shown
from boxwright.base.remote import address_in, is_listable, list_remote, remote_file
from boxwright.base.text import without_secrets
from boxwright.data.image_io import ImageHeader, read_header, read_image
from boxwright.data.packed import PackedBytes
from boxwright.data.picture_files import PictureFiles
from boxwright.data.pixel_cache import PixelCache
from boxwright.data.reading import Notices, reading
from boxwright.types import Categories, Sample

BoxesAre = Literal["xywh", "xyxy", "normalized_xywh", "normalized_xyxy", "sizes"]
Size = tuple[int, int]


class PictureDataset(ABC):
    """Samples whose pictures are files; a subclass finds these, and reads the annotations.

    Attributes:
        notices: What was assumed, and what was left out, when the data were opened.
        ignore_exif: Whether pixels stay as stored where nothing shows that labels refer to the upright picture.
        white_level: The value that is white in pictures of more than 8 bits; 0 for that of 16 bits.
        boxes_are: What the numbers of boxes are, for a reader that can be told; else None.
        rescale: Whether boxes are moved from the size that annotations declare to that of the picture.
        repairs: What `--labels_are` says in place of what the numbers are, for a reader whose own are corners.
        at_address: Whether pictures are fetched from an address as they are read.
        pixels: Keeps decoded pictures; None if each is decoded whenever it is read.
    """

    name: str
    categories: Categories
    notices: Notices
    ignore_exif: bool
    white_level: float = 0.0
    boxes_are: BoxesAre | None = None
    rescale: bool = False
    repairs: Mapping[BoxesAre, str] = MappingProxyType({})
    at_address: bool = False
    pixels: PixelCache | None = None

    @abstractmethod
    def __len__(self) -> int:
        """Return the number of samples."""

    @abstractmethod
    def _where(self, index: int) -> str:
        """Return a sample's place, for errors."""

    @abstractmethod
    def _path(self, index: int) -> Path:
        """Return a sample's picture; a DataError if the sample cannot be read."""

    @abstractmethod
    def _sample(self, index: int, image: NDArray[np.uint8]) -> Sample:
        """Return a sample of an image, which may have no channels."""

    def declared_size(self, index: int) -> Size | None:
        """Return the (height, width) that an annotation states, if any."""
        del index
        return None

    def _size_meant(self, index: int, path: Path) -> Size | None:
        """Return the size that tells which way up a picture is, if any."""
        del path
        return self.declared_size(index)

    def __getitem__(self, index: int) -> Sample:
        """Return one sample."""
        with reading(self._where(index)):
            path = self._path(index)
            decode = partial(self._decode, index, path)
            return self._sample(index, decode() if self.pixels is None else self.pixels.read(index, path, decode))

    def _decode(self, index: int, path: Path) -> NDArray[np.uint8]:
        declared = self._size_meant(index, path)
        return read_image(path, upright=not self.ignore_exif, declared=declared, white_level=self.white_level)

    @property
    def read_as(self) -> str:
        """What pixels depend on besides their file."""
        return f"ignore_exif {self.ignore_exif}, white_level {self.white_level}"

    def picture(self, index: int) -> tuple[Path, Size]:
        """Return a sample's picture file, and the (height, width) of its image, by the file's header.

        Raises:
            DataError: If the picture is missing or none.
        """
        with reading(self._where(index)):
            path = self._path(index)
            return path, read_header(path).size_for(self._size_meant(index, path), upright=not self.ignore_exif)

    def without_pixels(self, index: int) -> Sample:
        """Return one sample with an image [H, W, 0], as `sample_and_header`."""
        return self.sample_and_header(index)[0]

    def sample_and_header(self, index: int) -> tuple[Sample, ImageHeader]:
        """Return one sample with an image [H, W, 0], and its picture's header, which alone is read of the file.

        Raises:
            DataError: If the picture is missing or none, or an annotation is malformed.
        """
        with reading(self._where(index)):
            path = self._path(index)
            header = read_header(path)
            size = header.size_for(self._size_meant(index, path), upright=not self.ignore_exif)
            return self._sample(index, np.zeros((*size, 0), np.uint8)), header

    def encoded(self, index: int) -> tuple[bytes, str]:
        """Return the image file's bytes and its name."""
        path = self._path(index)
        return read_file(path), path.name


class LocatedPictures:
    """The picture of each sample of a data set, by index."""

    def __init__(
        self,
        files: PictureFiles,
        names: Sequence[tuple[str, str]],
        notices: Notices,
    ) -> None:
        """Find the pictures.

        Args:
            files: Those of the folder that names are relative to.
            names: Each picture's name, and its annotation for errors.
            notices: Where to count what was assumed.
        """
        self.folder = files.folder
        paths = _assign_pictures([_find(files, name, where) for name, where in names], names, notices)
        self._problems = {index: path for index, path in enumerate(paths) if isinstance(path, str)}
        self._names = _PackedPaths(self.folder, paths)

    def path(self, index: int) -> Path:
        """Return a picture's path.

        Raises:
            DataError: If there is no such picture.
        """
        if index in self._problems:
            raise DataError(self._problems[index])
        return self._names.path(index)

    def paths(self) -> list[Path]:
        """Return the paths of the pictures that there are."""
        return [self._names.path(index) for index in range(len(self._names)) if index not in self._problems]

    def name(self, index: int, given: str) -> str:
        """Return the name that an annotation gives; or, if the picture was found otherwise, its place in the folder."""
        if index in self._problems or (path := self._names.path(index)) == self.folder / given:
            return given
        return path.relative_to(self.folder).as_posix()


class _PackedPaths:
    """Paths of pictures, without the folder before them."""

    def __init__(self, folder: Path, paths: Sequence[Path | str]) -> None:
        """Keep the paths; a text stands for one that is missing."""
        self._folder, start = folder, f"{folder}{os.sep}"
        self._names = PackedBytes.of(
            os.fsencode(str(path).removeprefix(start)) if isinstance(path, Path) else b"" for path in paths
        )
        # One that the folder does not lead to is found from the current folder.
        self._outside = {
            n for n, path in enumerate(paths) if isinstance(path, Path) and not str(path).startswith(start)
        }

    def __len__(self) -> int:
        return len(self._names)

    def path(self, index: int) -> Path:
        """Return a path."""
        name = os.fsdecode(self._names[index])
        return Path(name) if index in self._outside else self._folder / name


class RemotePictures:
    """The picture of each sample of a data set, by index, at an address: each is fetched as it is read, and kept."""

    def __init__(self, folder: str, names: Sequence[tuple[str, str]]) -> None:
        """List the pictures, where the server can.

        Args:
            folder: The address that names are relative to, or that of the folder above `images`.
            names: Each picture's name, and its annotation for errors.

        Raises:
            DataError: If the server cannot be reached.
        """
        self.folder = folder.rstrip("/")
        self._names = names
        # Of a web server's files each is asked for once, as it is read first.
        self._files = list_remote(self.folder) if is_listable(folder) else {}

    def path(self, index: int) -> Path:
        """Return a picture's path in the cache.

        Raises:
            DataError: If there is no such picture, or it cannot be fetched.
        """
        name, where = self._names[index]
        file = self._files.get(name) or self._files.get(f"images/{name}")
        if file is None and not is_listable(self.folder):
            file = self._files[name] = remote_file(address_in(self.folder, quote(name)))
        if file is None:
            raise DataError(f"{where}: no picture {shown(name)!r} in {shown(without_secrets(self.folder))}")
        return file.local_copy()

    def name(self, index: int, given: str) -> str:
        """Return the name that an annotation gives."""
        del index
        return given


def _find(files: PictureFiles, name: str, where: str) -> tuple[Path | str, str]:
    """Return a picture's path, or why there is none; and what was assumed."""
    if not name:
        return f"{where}: the picture has no name", ""
    try:
        return files.find(name, where)
    except DataError as error:
        return str(error), ""


def _assign_pictures(
    located: Sequence[tuple[Path | str, str]], named: Sequence[tuple[str, str]], notices: Notices
) -> list[Path | str]:
    """Return the pictures' paths; a picture that several names mean is that of the one which names it exactly.

    The others' pictures are missing: taken for the last part of their name alone, they would get another's.
    """
    users = Counter(path for path, _ in located if isinstance(path, Path))
    paths: list[Path | str] = []
    for (path, assumed), (name, where) in zip(located, named, strict=True):
        if isinstance(path, Path) and assumed and users[path] > 1:
            paths.append(f"{where}: no picture {shown(name)!r}; {shown(path)} is that of another annotation")
            continue
        if isinstance(path, Path) and users[path] > 1:
            notices.assumed.add("pictures that several annotations name", name)
        elif assumed:
            notices.assumed.add(assumed, name)
        paths.append(path)
    return paths
