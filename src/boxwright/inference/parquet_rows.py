"""Detections in many images, as Parquet: one row per image.

| column          | type               | content                                                           |
|-----------------|--------------------|-------------------------------------------------------------------|
| `id`            | text               | the image's path or address; in a container `file#place`          |
| `width`, `height` | int32            | in pixels, upright; null if the image could not be read           |
| `boxes`         | list of 4 float32  | x_min, y_min, x_max, y_max in pixels, best first                  |
| `scores`        | list of float32    | one per box                                                       |
| `class_ids`     | list of int32      | ids of the label map                                              |
| `classes`       | list of text       | their names                                                       |
| `segmentations` | list of text       | masks as COCO's compressed run lengths; null without masks        |
| `keypoints`     | lists of float32   | x, y, score of each point of each box; null without keypoints     |
| `embeddings`    | lists of float32   | what tells each object from others; null without                  |
| `surfaces`      | list of binary     | PNG: DensePose's part, u and v, spanning the box; null without    |
| `error`         | text               | why the image could not be read; null if it was                   |
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

from boxwright.evaluation.results import keypoints_of_classes, surface_picture
from boxwright.nn.ops.pasted_masks import mask_run_lengths
from boxwright.types import FoundObjects
from boxwright.types.categories import ids

Row = dict[str, Any]


def row_of(id: str, found: FoundObjects | None, error: str = "") -> Row:
    """Return an image's row; `found` is None if the image could not be read."""
    if found is None:
        return {"id": id, "error": error}
    return {
        "id": id,
        "width": found.image_size[1],
        "height": found.image_size[0],
        "boxes": found.boxes.tolist(),
        "scores": found.scores.tolist(),
        "class_ids": ids(found.categories, found.labels.tolist()),
        "classes": found.names(),
        "keypoints": None if found.keypoints is None else _flat_keypoints(found),
        "segmentations": None if found.masks is None else [code["counts"] for code in mask_run_lengths(found)],
        "embeddings": None if found.embeddings is None else found.embeddings.tolist(),
        "surfaces": _surfaces(found),
    }


def _flat_keypoints(found: FoundObjects) -> list[list[float]]:
    return [points.flatten().tolist() for points in keypoints_of_classes(found, found.categories)]


def _surfaces(found: FoundObjects) -> list[bytes] | None:
    if found.surface_parts is None or found.surface_coordinates is None:
        return None
    return [surface_picture(*one) for one in zip(found.surface_parts, found.surface_coordinates, strict=True)]


def parquet_bytes(rows: Sequence[Row], about: dict[str, Any]) -> bytes:
    """Return a Parquet file of rows, compressed with zstd, deterministic; `about` becomes its metadata `boxwright`."""
    import pyarrow as pa
    from pyarrow.parquet import write_table

    schema = _schema().with_metadata({"boxwright": json.dumps(about)})
    table = pa.Table.from_pylist(list(rows), schema=schema)
    buffer = pa.BufferOutputStream()
    write_table(table, buffer, compression="zstd")
    return bytes(buffer.getvalue())


def counts(file: Any) -> tuple[int, int]:
    """Return how many rows our own Parquet file, opened by `stores.open_parquet`, has, and how many have an error."""
    from pyarrow.parquet import ParquetFile

    column = ParquetFile(file).read(columns=["error"]).column(0)
    return len(column), len(column) - int(column.null_count)


def _schema() -> Any:
    import pyarrow as pa

    return pa.schema(
        [
            ("id", pa.string()),
            ("width", pa.int32()),
            ("height", pa.int32()),
            ("boxes", pa.list_(pa.list_(pa.float32(), 4))),
            ("scores", pa.list_(pa.float32())),
            ("class_ids", pa.list_(pa.int32())),
            ("classes", pa.list_(pa.string())),
            ("segmentations", pa.list_(pa.string())),
            ("keypoints", pa.list_(pa.list_(pa.float32()))),
            ("embeddings", pa.list_(pa.list_(pa.float32()))),
            ("surfaces", pa.list_(pa.binary())),
            ("error", pa.string()),
        ]
    )
