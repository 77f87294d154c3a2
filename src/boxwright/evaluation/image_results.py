"""Detections and ground truth of an evaluation in COCO's files, written image by image."""

from __future__ import annotations

import json
import shutil
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from types import TracebackType
from typing import IO, Any

from boxwright.base.errors import OutputError
from boxwright.base.files import cause, make_folder, open_whole, shown
from boxwright.data.coco import coco_annotation, coco_category
from boxwright.data.coco_content import searched_lists
from boxwright.evaluation.images import EvaluatedImage
from boxwright.evaluation.results import detection_rows, image_identity
from boxwright.types import Categories, Category

# Takes the images of an evaluation in the data's order, and the classes that are counted.
Keep = Callable[[EvaluatedImage, Categories], None]


def keep_nothing(_: EvaluatedImage, __: Categories) -> None:
    """Keep nothing of an image."""


def rows_of(image: EvaluatedImage, categories: Categories) -> list[dict[str, Any]]:
    """Return an image's detections as rows of COCO's results file."""
    segmentations = None if image.masks is None else image.masks.found
    return detection_rows(image.detections, image.sample.id, categories, segmentations)


class ImageResults:
    """Detections and ground truth of images, kept on disk: memory holds those of one image.

    Their files have no names until `write` copies them, so that nothing is left of an evaluation that ends early,
    not even by SIGKILL.
    """

    def __init__(self, folder: str | Path) -> None:
        """Keep nothing yet.

        Args:
            folder: Where the files without names are; it is created.

        Raises:
            OutputError: If the folder cannot be written.
        """
        self._folder = make_folder(folder)
        self._used: dict[int, Category] = {}
        self._annotations = 0
        with ExitStack() as stack, _writing(self._folder):
            files = [stack.enter_context(tempfile.TemporaryFile(dir=self._folder)) for _ in range(3)]
            self._closing = stack.pop_all()
        self._found, self._images, self._objects = (_Rows(file) for file in files)

    def __enter__(self) -> ImageResults:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self._closing.close()

    def add(self, image: EvaluatedImage, categories: Categories) -> None:
        """Keep the detections and the objects of the next image.

        Raises:
            OutputError: If the disk is full.
        """
        for category in categories if not self._used else ():
            self._used[category.label] = category
        with _writing(self._folder):
            self._found.add(rows_of(image, categories))
            self._images.add([_image_row(image, categories)])
            self._objects.add(self._annotation_rows(image, categories))

    def write(self, folder: str | Path) -> None:
        """Write detections.json, a list, and truth.json, a data set whose images have `index`, their place in the data.

        Raises:
            OutputError: If the folder cannot be written.
        """
        with open_whole(Path(folder) / "detections.json") as file:
            self._found.copy_to(file)
            file.write(b"\n")
        categories = [coco_category(self._used[label]) for label in sorted(self._used)]
        with open_whole(Path(folder) / "truth.json") as file:
            for name, rows in (("images", self._images), ("annotations", self._objects)):
                file.write(b'{"images": ' if name == "images" else b', "annotations": ')
                rows.copy_to(file)
            file.write(b', "categories": ' + json.dumps(categories).encode() + b"}\n")

    def _annotation_rows(self, image: EvaluatedImage, categories: Categories) -> list[dict[str, Any]]:
        sample = image.sample
        codes = image.masks.truth if image.masks is not None else []
        rows = []
        for number, label in enumerate(sample.labels.tolist()):
            # Labels of objects that the label map lacks.
            category = self._used.setdefault(label, categories.by_label(label))
            self._annotations += 1
            own = {"id": self._annotations, "image_id": image_identity(sample.id)}
            rows.append({**own, **coco_annotation(sample, number, category)})
            if len(codes) == len(sample.labels):
                rows[-1]["segmentation"] = codes[number]
        return rows


class _Rows:
    """A list of JSON in a file without a name, a row a line."""

    def __init__(self, file: IO[bytes]) -> None:
        self._file, self._empty = file, True

    def add(self, rows: Sequence[Mapping[str, Any]]) -> None:
        if rows:
            self._file.write(b"[" if self._empty else b",\n")
            self._file.write(",\n".join(map(json.dumps, rows)).encode())
            self._empty = False

    def copy_to(self, file: IO[bytes]) -> None:
        self._file.seek(0)
        shutil.copyfileobj(self._file, file)
        file.write(b"[]" if self._empty else b"]")


@contextmanager
def _writing(folder: Path) -> Iterator[None]:
    """Turn the system's errors into an OutputError."""
    try:
        yield
    except OSError as error:
        raise OutputError(f"{shown(folder)}: could not be written: {cause(error)}") from None


def _image_row(image: EvaluatedImage, categories: Categories) -> dict[str, Any]:
    sample, (height, width) = image.sample, image.sample.image.shape[:2]
    name, identity = sample.filename or sample.id, image_identity(sample.id)
    row = {"id": identity, "file_name": name, "width": width, "height": height, "index": image.index}
    return {**row, **searched_lists(sample, categories)}
