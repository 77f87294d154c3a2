"""Writing YOLO's text labels, and the `data.yaml` that lists splits and classes."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

import yaml

from boxwright.base.errors import DataError
from boxwright.base.files import is_file, read_file, write_whole
from boxwright.types import Sample


def write_yolo_labels(sample: Sample, path: Path) -> None:
    """Write the objects of a sample: class from 0, center, width and height; an empty file if it has none."""
    height, width = sample.image.shape[:2]
    lines = []
    for label, (x1, y1, x2, y2) in zip(sample.labels.tolist(), sample.boxes.astype(float).tolist(), strict=True):
        # Enough digits to restore the float32 exactly.
        place = ((x1 + x2) / 2 / width, (y1 + y2) / 2 / height, (x2 - x1) / width, (y2 - y1) / height)
        lines.append(" ".join([str(label), *(f"{number:.10g}" for number in place)]) + "\n")
    write_whole(path, "".join(lines))


@contextmanager
def write_yolo_yaml(path: Path, split: str, names: Sequence[str]) -> Iterator[None]:
    """Add a split to a `data.yaml`, or create the file, when the block ends without an error.

    Args:
        names: Names of the classes, in order.

    Yields:
        Control, while images and labels are written.

    Raises:
        DataError: If the file exists with other classes.
    """
    there = yaml.safe_load(read_file(path)) if is_file(path) else {}
    if not isinstance(there, dict) or there.get("names", list(names)) != list(names):
        raise DataError(f"{path} already exists and has other classes; write to another folder")
    yield
    lists = {name: there[name] for name in ("train", "val", "test") if name in there} | {split: f"images/{split}"}
    content = {"path": ".", **lists, "nc": len(names), "names": list(names)}
    write_whole(path, yaml.safe_dump(content, sort_keys=False, allow_unicode=True))
