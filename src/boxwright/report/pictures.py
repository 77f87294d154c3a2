"""Copies of images for a report, and what is measured on their pixels.

Dimensions: I images.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from pathlib import Path

import cv2
import numpy as np
from numpy.typing import NDArray
from PIL import Image

from boxwright.base.errors import DataError, OutputError
from boxwright.base.files import cause, make_folder, shown
from boxwright.data.dataset import Dataset
from boxwright.data.image_io import encode_jpeg
from boxwright.report.settings import ReportSettings
from boxwright.report.tables import Floats, Indices, Tables
from boxwright.training.preflight.images import (
    Duplicates,
    Fingerprint,
    find_duplicates,
    join_fingerprints,
    read_fingerprint,
)

Progress = Callable[[Iterable[int], str], Iterable[int]]
# Sharpness is measured at this longer side, so that it does not depend on the image's size.
_MEASURED = 512
_QUALITY = 80


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
    """What is known of one image's pixels; `file` is its copy, empty for none.

    An image without a fingerprint is compared with no other.
    """

    file: str
    brightness: float
    sharpness: float
    fingerprint: Fingerprint | None


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
        return copy_and_measure(dataset, place, image, folder, name, settings.picture_side)

    with ThreadPoolExecutor(settings.threads) as pool:
        results = list(zip(progress(range(count), "read images"), pool.map(read, range(count)), strict=True))
    known = {index: photo for index, photo in results if isinstance(photo, Photo)}
    nothing = without_photos(count)
    brightness, sharpness, files = nothing.brightness.copy(), nothing.sharpness.copy(), list(nothing.files)
    for index, photo in known.items():
        files[index], brightness[index], sharpness[index] = photo.file, photo.brightness, photo.sharpness
    problems = [photo for _, photo in results if isinstance(photo, str)]
    return Photos(files, brightness, sharpness, find_same_images(known).groups, problems)


def copy_and_measure(
    dataset: Dataset, index: int, image: NDArray[np.uint8], folder: Path, name: str, side: int
) -> Photo:
    """Measure an image, and write its copy if it has a name.

    Args:
        dataset: The data that have the image, whose file is compared with others.
        index: The image's index there.
        image: uint8 [H, W, 1 or 3].
        folder: The page's.
        name: A path within the folder; empty for no copy.
        side: The longest side of the copy.

    Returns:
        What is known of the pixels.
    """
    picture = Image.fromarray(image[..., 0] if image.shape[2] == 1 else image)
    gray = picture.convert("L")
    gray.thumbnail((_MEASURED, _MEASURED))
    luma = np.asarray(gray)
    if name:
        picture = picture.convert("RGB")
        picture.thumbnail((side, side))
        content = encode_jpeg(np.asarray(picture), _QUALITY)
        try:
            # Not flushed to disk one by one, which would take minutes for thousands.
            (folder / name).write_bytes(content)
        except OSError as error:
            raise OutputError(f"{shown(folder / name)}: could not be written: {cause(error)}") from None
    sharpness = float(cv2.Laplacian(luma, cv2.CV_64F).var())
    return Photo(name, float(luma.mean()), sharpness, _fingerprint(dataset, index))


def _fingerprint(dataset: Dataset, index: int) -> Fingerprint | None:
    """Return an image's fingerprint; None where its pixels can be had, but not from a file that Pillow reads."""
    try:
        return read_fingerprint(dataset, index)
    except DataError:
        return None


def find_same_images(photos: Mapping[int, Photo]) -> Duplicates:
    """Return which images are nearly the same; groups and pairs are of the photos' keys, not of rows."""
    prints = [(index, photo.fingerprint) for index, photo in sorted(photos.items()) if photo.fingerprint is not None]
    indices = [index for index, _ in prints]
    duplicates = find_duplicates(join_fingerprints([fingerprint for _, fingerprint in prints]))
    return replace(
        duplicates,
        pairs=[(indices[first], indices[second]) for first, second in duplicates.pairs],
        groups=[[indices[row] for row in group] for group in duplicates.groups],
    )
