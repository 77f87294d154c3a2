"""An evaluation's folder: its images' detections and ground truth in COCO's files, metrics, pictures and origin."""

from __future__ import annotations

import json
import shutil
import sys
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from datetime import UTC, datetime
from pathlib import Path
from types import TracebackType
from typing import IO, Any

from boxwright.base.errors import OutputError
from boxwright.base.files import cause, make_folder, open_whole, shown, unfinished, unique_stem, write_whole
from boxwright.data.coco import coco_annotation, coco_category
from boxwright.data.coco_content import searched_lists
from boxwright.data.image_io import encode_png
from boxwright.evaluation.images import EvaluatedImage
from boxwright.evaluation.metrics.metric import without_nan
from boxwright.evaluation.results import Evaluation, detection_rows, image_identity
from boxwright.evaluation.settings import EvaluationSettings
from boxwright.runtime.formats import TORCH
from boxwright.runtime.optional import installed_versions
from boxwright.types import Categories, Category
from boxwright.weights.demo_model import model_name
from boxwright.weights.open_model import OpenModel


def to_coco_rows(image: EvaluatedImage, categories: Categories) -> list[dict[str, Any]]:
    """Return an image's detections as rows of COCO's results file."""
    segmentations = None if image.masks is None else image.masks.detections
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
            self._found.add(to_coco_rows(image, categories))
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


# The settings that say which images were evaluated, and how objects were counted.
DATA_SETTINGS = ("eval_index", "class_agnostic", "sample_1_of_n_eval_examples", "eval_on_train_data")
_LIBRARIES = ("boxwright", "torch", "torchvision", "numpy", "pycocotools")


def about_evaluation(
    model: OpenModel, settings: EvaluationSettings, config: Path | None, runtime: str = TORCH
) -> dict[str, Any]:
    """Return the facts for `evaluation.json`; the digest is of the weights before they are optimized.

    Args:
        config: The configuration's file; None if the model contains it.
        runtime: What detected.
    """
    return {
        "model": model_name(model.path),
        "weights_sha256": model.weights_sha256(),
        "step": model.step,
        "runtime": runtime,
        "device": settings.device,
        "config": None if config is None else str(config),
        "settings": {name: getattr(settings, name) for name in DATA_SETTINGS},
        "created": datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%SZ"),
        "command": " ".join(["boxwright", *sys.argv[1:]]),
        "versions": installed_versions(*_LIBRARIES, *({runtime} - {TORCH})),
    }


def write_evaluation(
    evaluation: Evaluation,
    results: ImageResults,
    folder: str | Path,
    step: int | None = None,
    learning_rate: float | None = None,
    about: Mapping[str, Any] | None = None,
) -> None:
    """Write metrics.json, detections.json, truth.json and the pictures.

    `step` and `learning_rate`, if known, stand beside the metrics.

    Args:
        results: Detections and ground truth of the evaluation's images.
        about: Model, settings and versions (`about_evaluation`), for evaluation.json; None for no such file.

    Raises:
        OutputError: If the disk is full or the folder cannot be written; it stays marked as unfinished.
    """
    with unfinished(folder, "an evaluation") as whole:
        pictures, taken = make_folder(whole / "pictures"), set[str]()
        for name, picture in evaluation.pictures.items():
            write_whole(pictures / f"{unique_stem(name, taken)}.png", encode_png(picture))
        results.write(whole)
        if about is not None:
            write_whole(whole / "evaluation.json", json.dumps({**about, "notes": evaluation.notes}, indent=2) + "\n")
        beside = {"step": step, "learning_rate": learning_rate}
        known = {name: value for name, value in beside.items() if value is not None}
        write_whole(whole / "metrics.json", json.dumps(known | without_nan(evaluation.metrics), indent=2) + "\n")
