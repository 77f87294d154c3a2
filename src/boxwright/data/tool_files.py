"""Writing data, detections or likely errors of annotations for an annotation tool.

The annotation tools that files are written for.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterable
from enum import Enum
from pathlib import Path
from typing import Any

from boxwright.base.errors import DataError
from boxwright.base.files import make_folder
from boxwright.data.annotated import AnnotatedDataset, AnnotatedImage, AnnotatedObject
from boxwright.data.coco import CocoDataset
from boxwright.data.cvat import write_cvat
from boxwright.data.dataset import Dataset
from boxwright.data.fiftyone import write_fiftyone
from boxwright.data.label_studio import LOCAL_FILES, write_label_studio
from boxwright.data.reading import finite_number
from boxwright.types import Sample


class Tool(str, Enum):
    """An annotation tool."""

    CVAT = "cvat"
    LABEL_STUDIO = "label_studio"
    FIFTYONE = "fiftyone"


_ENDINGS = {Tool.CVAT: ".xml", Tool.LABEL_STUDIO: ".json", Tool.FIFTYONE: ".json"}


def write_for_tool(
    dataset: Dataset,
    path: str | Path,
    tool: Tool,
    *,
    prefix: str | None = None,
    progress: Callable[[Iterable[int]], Iterable[int]] = iter,
) -> Path:
    """Write a data set's boxes as an annotation tool's file; images stay where they are.

    Of a COCO file whose annotations have scores, such as `coco.json` of `boxwright predict` or a report's
    `label_errors.json`, scores and reasons are written too, as far as the tool has a place for them.

    Args:
        path: The file.
        prefix: For Label Studio, what is before an image's name in its address; by default that of local files.
        progress: Wraps the indices, for a progress bar.

    Raises:
        DataError: If the data cannot be read, or the file's name ends otherwise than the tool's.
        OutputError: If it cannot be written.
    """
    path = Path(path)
    if path.suffix.lower() != _ENDINGS[tool]:
        raise DataError(f"{path}: expected a name that ends in {_ENDINGS[tool]}")
    images = tuple(_image(dataset, index) for index in progress(range(len(dataset))))
    annotated = AnnotatedDataset(dataset.categories, images)
    make_folder(path.parent)
    if tool is Tool.LABEL_STUDIO:
        return write_label_studio(annotated, path, LOCAL_FILES if prefix is None else prefix)
    if tool is Tool.FIFTYONE:
        return write_fiftyone(annotated, path)
    if annotated.has_scores:
        warnings.warn("scores are dropped: CVAT cannot represent them", stacklevel=2)
    return write_cvat(annotated, path)


def _image(dataset: Dataset, index: int) -> AnnotatedImage:
    sample, rows = _read(dataset, index)
    for kind, present in (("masks", sample.masks is not None), ("keypoints", sample.keypoints is not None)):
        if present:
            warnings.warn(f"{kind} are dropped: boxes are written", stacklevel=3)
    objects = []
    for number, (label, box) in enumerate(zip(sample.labels.tolist(), sample.boxes.tolist(), strict=True)):
        if sample.is_crowd[number]:
            warnings.warn("crowds are dropped: annotation tools have boxes of single objects", stacklevel=3)
            continue
        row = rows[number] if rows else {}
        score, reason = row.get("score"), row.get("reason", "")
        if score is not None:
            score = finite_number(score, f"{dataset.name}: annotation {str(row.get('id'))[:60]}: score")
        x_min, y_min, x_max, y_max = (round(side, 3) for side in box)
        objects.append(AnnotatedObject(label, (x_min, y_min, x_max, y_max), score, str(reason)))
    height, width = sample.image.shape[:2]
    return AnnotatedImage(sample.filename, width, height, tuple(objects))


def _read(dataset: Dataset, index: int) -> tuple[Sample, list[dict[str, Any]]]:
    """Return a sample, without its pixels if the data say how large it is, and its annotations in COCO's file."""
    if not isinstance(dataset, CocoDataset):
        return dataset[index], []
    image, rows = dataset.rows(index)
    known = image.get("width") and image.get("height")
    return dataset.truth(index) if known else dataset[index], rows
