"""What a page on data is made from: objects, sizes and pixels of images, collected as they are read.

Dimensions: I images, N objects, K classes.
"""

from __future__ import annotations

from collections.abc import Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Self

import numpy as np

from boxwright.base.files import make_folder
from boxwright.data.survey import odd_boxes
from boxwright.report.pictures import Photo, copy_and_measure, same_images
from boxwright.report.settings import ReportSettings
from boxwright.report.tables import Floats, Indices
from boxwright.types import Categories, Sample


@dataclass(frozen=True, eq=False)
class DataTables:
    """All images that could be read, in order, and their objects.

    Attributes:
        names: Of the images.
        sizes: int64 [I, 2]; height and width.
        files: The copy of each image, a path within the report; empty for none.
        images: int64 [N]; the image of each object.
        labels: int64 [N].
        boxes: float64 [N, 4], xyxy in pixels.
        odd: Objects whose boxes look like mistakes, with the reasons.
        groups: Indices of images that are nearly the same, of two and more.
    """

    categories: Categories
    names: Sequence[str]
    sizes: Indices
    files: Sequence[str]
    images: Indices
    labels: Indices
    boxes: Floats
    odd: Sequence[tuple[int, str]]
    groups: Sequence[Sequence[int]]

    @property
    def positions(self) -> Indices:
        """The place of each object's class among the classes, int64 [N]; K for labels that have none."""
        known = np.array([category.label for category in self.categories], np.int64)
        places = np.searchsorted(known, self.labels)
        is_known = np.append(known, -1)[places] == self.labels
        return np.where(is_known, places, len(known)).astype(np.int64)


class DataCollector:
    """Collects samples; their images are copied and measured by threads meanwhile. A context manager."""

    def __init__(self, images: int, folder: Path, settings: ReportSettings) -> None:
        """Start without samples.

        Args:
            images: How many samples the data have, of which copies are spread evenly.
            folder: The report's.
        """
        make_folder(folder / "pictures")
        self._folder, self._settings = folder, settings
        step = max(-(-images // settings.max_pictures), 1) if settings.max_pictures else 0
        self._copied = set(range(0, images, step)) if step else set[int]()
        self._pool = ThreadPoolExecutor(settings.threads)
        self._photos: list[Future[Photo]] = []
        self._samples: list[tuple[str, tuple[int, int], Indices, Floats]] = []
        self._odd: list[tuple[int, str]] = []
        self._objects = 0

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._pool.shutdown(cancel_futures=True)

    def add(self, index: int, sample: Sample) -> None:
        """Add a sample; an image with odd boxes is copied in any case."""
        odd = odd_boxes(sample)
        self._odd += [(self._objects + row, reason) for row, reason in odd]
        self._objects += len(sample.labels)
        height, width = sample.image.shape[:2]
        name = sample.filename or sample.id or str(index)
        self._samples.append((name, (height, width), sample.labels, sample.boxes.astype(np.float64)))
        wanted = self._settings.max_pictures and (odd or index in self._copied)
        file = f"pictures/{index:06d}.jpg" if wanted else ""
        # Few wait at a time, as each holds its pixels.
        if len(self._photos) >= 4 * self._settings.threads:
            self._photos[-4 * self._settings.threads].result()
        pixels = np.clip(sample.image[..., :3], 0, 255).astype(np.uint8)
        side = self._settings.picture_side
        self._photos.append(self._pool.submit(copy_and_measure, pixels, self._folder, file, side))

    def tables(self, categories: Categories) -> DataTables:
        """Return everything that was collected."""
        photos = {number: future.result() for number, future in enumerate(self._photos)}
        names = [name for name, *_ in self._samples]
        none = np.zeros(0, np.int64)
        counts = [len(labels) for *_, labels, _ in self._samples]
        return DataTables(
            categories=categories,
            names=names,
            sizes=np.array([size for _, size, *_ in self._samples], np.int64).reshape(-1, 2),
            files=[photos[number].file for number in range(len(names))],
            images=np.repeat(np.arange(len(names)), counts),
            labels=np.concatenate([none, *(labels for *_, labels, _ in self._samples)]),
            boxes=np.concatenate([np.zeros((0, 4)), *(boxes for *_, boxes in self._samples)]),
            odd=self._odd,
            groups=same_images(photos, names),
        )
