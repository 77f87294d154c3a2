"""Shards of pictures with objects, written by tarfile and PyArrow."""

from __future__ import annotations

import io
import json
import tarfile
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from boxwright.data.image_io import encode_picture
from boxwright.types import Categories, Category

CLASSES = Categories((Category(0, 1, "cat"), Category(1, 2, "dog")))


def picture(value: int) -> bytes:
    """Return a PNG of 20 x 30 pixels, all of one gray."""
    return encode_picture(np.full((20, 30, 3), value, np.uint8), ".png")


def rows(start: int, count: int) -> list[dict[str, Any]]:
    """Return rows whose pictures and boxes tell their numbers."""
    return [
        {
            "image": {"bytes": picture(number), "path": f"{number}.png"},
            "image_id": f"image-{number}",
            "objects": {"bbox": [[number % 9, 1, 3, 4]], "category": [number % 2]},
        }
        for number in range(start, start + count)
    ]


def tar_bytes(members: list[tuple[str, bytes]], mode: str = "w", **options: Any) -> bytes:
    """Return an archive."""
    file = io.BytesIO()
    with tarfile.open(fileobj=file, mode=mode, **options) as archive:
        for name, content in members:
            member = tarfile.TarInfo(name)
            member.size = len(content)
            archive.addfile(member, io.BytesIO(content))
    return file.getvalue()


def members(content: list[dict[str, Any]]) -> list[tuple[str, bytes]]:
    """Return the files of an archive with rows, whose classes are names."""
    files = []
    for row in content:
        objects = {**row["objects"], "category": [("cat", "dog")[number] for number in row["objects"]["category"]]}
        stem = row["image"]["path"].removesuffix(".png")
        annotation = {"image_id": row["image_id"], "objects": objects}
        files += [(f"a/{stem}.png", row["image"]["bytes"]), (f"a/{stem}.json", json.dumps(annotation).encode())]
    return files


def write_parquet(
    path: Path, content: list[dict[str, Any]], group: int, names: tuple[str, ...] = ("cat", "dog")
) -> Path:
    """Write rows as `datasets` does, with the names of the classes."""
    schema = pa.schema(
        [
            ("image", pa.struct([("bytes", pa.binary()), ("path", pa.string())])),
            ("image_id", pa.string()),
            ("objects", pa.struct([("bbox", pa.list_(pa.list_(pa.float32()))), ("category", pa.list_(pa.int64()))])),
        ]
    )
    feature = {"objects": {"category": {"feature": {"names": list(names), "_type": "ClassLabel"}, "_type": "Sequence"}}}
    about = {"huggingface": json.dumps({"info": {"features": feature}})} if names else {}
    table = pa.Table.from_pylist(content, schema=schema).replace_schema_metadata(about)
    pq.write_table(table, path, row_group_size=group)
    return path
