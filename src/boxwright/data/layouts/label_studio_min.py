"""Label Studio's JSON-MIN: a list of tasks with their places in percent under the names of the labels.

https://labelstud.io/guide/export
"""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

from boxwright.data.label_studio import SHAPES, label_studio_as_coco
from boxwright.data.layouts.json_files import as_list, as_object, read_json
from boxwright.data.layouts.places import beginning_of, only_file

_OTHERS = ("brushlabels", "keypointlabels", "choices")
_TASKS = re.compile(r"\s*\[\s*\{")
_OWN_KEYS = ("annotation_id", "annotator")


def is_json_min(path: Path) -> bool:
    """Return whether a file, or the only such file in a folder, is Label Studio's JSON-MIN."""
    return _file(path) is not None


def _file(path: Path) -> Path | None:
    return only_file(path, _begins_like_json_min, ".json")


def _begins_like_json_min(path: Path) -> bool:
    text = beginning_of(path)
    if not _TASKS.match(text) or '"result"' in text or '"data"' in text:
        return False
    return any(f'"{key}"' in text for key in (*SHAPES, *_OWN_KEYS))


def read_json_min(path: Path, image_folder: Path | None) -> dict[str, Any]:
    """Return Label Studio's JSON-MIN as the content of a COCO file, as its JSON is read.

    Raises:
        DataError: If something is not as Label Studio writes it.
    """
    file = _file(path) or path
    rows = as_list(read_json(file), str(file))
    tasks = [_task(as_object(row, f"{file}: task {number}")) for number, row in enumerate(rows, start=1)]
    return label_studio_as_coco(tasks, file, image_folder)


def _task(row: dict[str, Any]) -> dict[str, Any]:
    """Return a row as a task of the full export."""
    regions = [
        region for value in row.values() if isinstance(value, list) for region in value if isinstance(region, dict)
    ]
    results = [_result(region) for region in regions]
    # Without an annotation, a task has no annotation_id.
    annotated = bool(results) or any(key in row for key in _OWN_KEYS)
    annotations = [{"result": results}] if annotated else []
    return {"id": row.get("id", "?"), "data": row, "annotations": annotations}


def _result(region: dict[str, Any]) -> dict[str, Any]:
    kind = next((key for key in (*SHAPES, *_OTHERS) if key in region), "region without a label")
    return {**region, "type": kind, "value": region}
