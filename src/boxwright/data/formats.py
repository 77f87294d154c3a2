"""What files are, by their names and first bytes."""

from __future__ import annotations

import re
from itertools import islice
from pathlib import Path

from boxwright.base.files import is_file
from boxwright.data.coco import ROBOFLOW_ANNOTATIONS
from boxwright.data.cvat import CVAT_ANNOTATIONS, is_cvat_text
from boxwright.data.fiftyone import FIFTYONE_LABELS
from boxwright.data.layouts.places import beginning_of
from boxwright.data.picture_files import files_below

_RECORDS = re.compile(r".+\.(tf_?)?records?(-[0-9]{5}-of-[0-9]{5})?|.+-[0-9]{5}-of-[0-9]{5}", re.IGNORECASE)
# The first key or the first picture of a file may come late.
BEGINNING = 1 << 20
# The first key of COCO's files, and of FiftyOne's; Label Studio's begin with a task.
_COCO = r'\s*\{\s*"(info|licenses|images|annotations|categories|type|classes|labels)"\s*:'
_LISTS_OF_COCO = r'"(images|annotations|categories)"\s*:\s*\['
_VOC = re.compile(r"<annotation[\s>]")
_TRIED = 20
_TASKS = r"\s*\[\s*\{"


def annotations_in(folder: Path) -> Path | None:
    """Return a folder's file of annotations that Roboflow, CVAT or FiftyOne exported; None if there is none."""
    files = (folder / name for name in (ROBOFLOW_ANNOTATIONS, CVAT_ANNOTATIONS, FIFTYONE_LABELS))
    return next((file for file in files if is_file(file) and is_coco_file(file)), None)


def is_data_file(path: Path) -> bool:
    """Return whether a .yaml, .json or .xml file holds YOLO or COCO data rather than a configuration."""
    return (
        is_coco_file(path)
        if path.suffix in (".json", ".xml")
        else re.search(r"^(names|nc)\s*:", beginning_of(path, BEGINNING), re.M) is not None
    )


def is_record_file(path: Path) -> bool:
    """Return whether a file is a TFRecord, by its name."""
    return _RECORDS.fullmatch(path.name) is not None


def is_coco_file(path: Path) -> bool:
    """Return whether a file holds COCO annotations, or an annotation tool's, by its beginning."""
    text = beginning_of(path, BEGINNING)
    if path.suffix.lower() == ".xml":
        return is_cvat_text(text)
    if text.lstrip().startswith("{") and len(set(re.findall(_LISTS_OF_COCO, text))) > 1:
        return True
    return re.match(_COCO, text) is not None or (re.match(_TASKS, text) is not None and '"annotations"' in text)


def has_voc_annotations(path: Path) -> bool:
    """Return whether a folder has Pascal VOC annotations, in it or below it."""
    files = (file for file in files_below(path) if file.suffix.lower() == ".xml")
    return any(_VOC.search(beginning_of(file)) is not None for file in islice(files, _TRIED))
