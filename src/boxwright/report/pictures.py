"""Copies of images for a report, and what is measured on their pixels.

Dimensions: I images.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

import cv2
import imagehash
import numpy as np
from numpy.typing import NDArray
from PIL import Image

from boxwright.base.errors import DataError
from boxwright.base.files import make_folder
from boxwright.data.dataset import Dataset
from boxwright.data.image_io import encode_jpeg
from boxwright.report.settings import ReportSettings
from boxwright.report.tables import Floats, Indices, Tables
from boxwright.training.preflight.images import Fingerprints, near_groups

Progress = Callable[[Iterable[int], str], Iterable[int]]
# Sharpness is measured at this longer side, so that it does not depend on the image's size.
_MEASURED = 512
_QUALITY = 80
# The side of perceptual hashes, as in preflight.
_SIDE = 16


@dataclass(frozen=True, eq=False)
class Photos:
    """What is known of the images' pixels.

    Attributes:
        files: The copy of each image, a path within the report; empty for none.
        brightness: float64 [I]; mean luma, 0 to 255; NaN for an image that could not be read, here and below.
        sharpness: float64 [I]; the variance of the Laplacian of the luma at a longer side of 512 pixels.
        groups: Indices of images that are nearly the same, of two and more.
        problems: A line for each image that could not be read.
    """

    files: Sequence[str]
    brightness: Floats
    sharpness: Floats
    groups: Sequence[Sequence[int]]
    problems: Sequence[str]


@dataclass(frozen=True, eq=False)
class Photo:
    """What is known of one image's pixels; `file` is its copy, empty for none."""

    file: str
    brightness: float
    sharpness: float
    exact: bytes
    hashes: dict[str, NDArray[np.uint8]]


def without_photos(images: int) -> Photos:
    """Return what is known without pixels."""
    unknown = np.full(images, np.nan)
    return Photos([""] * images, unknown, unknown, [], [])


def copy_photos(
    dataset: Dataset | None,
    tables: Tables,
    chosen: Indices,
    folder: Path,
    settings: ReportSettings,
    progress: Progress,
) -> Photos:
    """Read all images, copy some into `pictures` of the folder, and measure all.

    Args:
        dataset: The data that have the images; None if they cannot be read.
        chosen: The indices of images to copy.
    """
    if dataset is None:
        return without_photos(len(tables.ids))
    copied = set(chosen.tolist())
    make_folder(folder / "pictures")
    count = len(tables.ids)

    def read(index: int) -> Photo | str:
        place = int(tables.places[index])
        try:
            image = dataset[place].image if place < len(dataset) else None
        except DataError as error:
            return str(error)
        if image is None or image.shape[:2] != tuple(tables.sizes[index]):
            size = "none" if image is None else f"{image.shape[1]}×{image.shape[0]}"
            return f"{tables.names[index]}: expected the image that was evaluated, found {size}: the data have changed"
        name = f"pictures/{index:06d}.jpg" if index in copied else ""
        return copy_and_measure(image, folder, name, settings.picture_side)

    with ThreadPoolExecutor(settings.threads) as pool:
        results = list(zip(progress(range(count), "read images"), pool.map(read, range(count)), strict=True))
    known = {index: photo for index, photo in results if isinstance(photo, Photo)}
    nothing = without_photos(count)
    brightness, sharpness, files = nothing.brightness.copy(), nothing.sharpness.copy(), list(nothing.files)
    for index, photo in known.items():
        files[index], brightness[index], sharpness[index] = photo.file, photo.brightness, photo.sharpness
    problems = [photo for _, photo in results if isinstance(photo, str)]
    return Photos(files, brightness, sharpness, same_images(known, tables.names), problems)


def copy_and_measure(image: NDArray[np.uint8], folder: Path, name: str, side: int) -> Photo:
    """Measure an image, and write its copy if it has a name.

    Args:
        name: A path within the folder; empty for no copy.
        side: The longest side of the copy.
    """
    picture = Image.fromarray(image[..., 0] if image.shape[2] == 1 else image)
    gray = picture.convert("L")
    gray.thumbnail((_MEASURED, _MEASURED))
    luma = np.asarray(gray)
    if name:
        picture = picture.convert("RGB")
        picture.thumbnail((side, side))
        # Not flushed to disk one by one, which would take minutes for thousands.
        (folder / name).write_bytes(encode_jpeg(np.asarray(picture), _QUALITY))
    hashes = {"dhash": imagehash.dhash(gray, _SIDE), "phash": imagehash.phash(gray, _SIDE)}
    return Photo(
        name,
        float(luma.mean()),
        float(cv2.Laplacian(luma, cv2.CV_64F).var()),
        hashlib.blake2b(image.tobytes(), digest_size=16).digest(),
        {kind: np.packbits(value.hash.reshape(-1)) for kind, value in hashes.items()},
    )


def same_images(photos: Mapping[int, Photo], names: Sequence[str]) -> list[list[int]]:
    """Return groups of indices of images that are nearly the same, of two and more.

    Args:
        names: Of all images, by index.
    """
    indices = sorted(photos)
    if not indices:
        return []
    prints = Fingerprints(
        names=tuple(names[index] for index in indices),
        exact=tuple(photos[index].exact for index in indices),
        hashes={
            kind: np.stack([photos[index].hashes[kind] for index in indices]) for kind in photos[indices[0]].hashes
        },
        turned=(),
        unreadable=(),
    )
    return [[indices[row] for row in group] for group in near_groups(prints) if len(group) > 1]
