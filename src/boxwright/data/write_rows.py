"""Writing pictures with their objects as shards that are read in sequence: WebDataset's archives, and Parquet.

Both hold what `objects.py` reads, with COCO's names: `bbox` as x, y, width and height in pixels, `category`, `area`,
`iscrowd`, `difficult`, and, where there are any, `segmentation` and `keypoints`.
"""

from __future__ import annotations

import io
import json
import tarfile
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any, BinaryIO

from boxwright.base.errors import DataError
from boxwright.data.coco import coco_annotation
from boxwright.data.convert import upright_sample, warn_about_loss
from boxwright.data.dataset import Dataset
from boxwright.data.parquet import BOXES_ARE_XYWH, require_pyarrow
from boxwright.data.picture_files import PICTURE_ENDINGS, picture_format
from boxwright.data.write_shards import Progress, shard_names, write_shards
from boxwright.types import Categories, Sample

# A group of rows is decoded as a whole where it is read.
_GROUP_ROWS, _GROUP_BYTES = 128, 128 << 20


def write_web_dataset(
    dataset: Dataset, path: str | Path, *, num_shards: int = 1, progress: Progress = iter
) -> list[str]:
    """Write a data set as WebDataset's archives, with its label map beside them; return their names.

    Args:
        path: The file, or its address; several shards are named -00000-of-00003.tar and so on.
        progress: Wraps the indices, for a progress bar.

    Raises:
        DataError: If the folder already has a label map of other classes.
        OutputError: As `write_shards`.
    """
    names = shard_names(path, num_shards, before_suffix=True)
    return write_shards(dataset, names, partial(_write_archive, dataset), progress=progress)


def write_parquet(
    dataset: Dataset, path: str | Path, *, num_shards: int = 1, masks: bool = False, progress: Progress = iter
) -> list[str]:
    """Write a data set as Parquet files, which name the classes, with its label map beside them; return their names.

    Hugging Face's `datasets` reads them, too.

    Args:
        path: The file, or its address; several shards are named -00000-of-00003.parquet and so on.
        masks: Whether there is a column of masks.
        progress: Wraps the indices, for a progress bar.

    Raises:
        DataError: If PyArrow is not installed, or the folder already has a label map of other classes.
        OutputError: As `write_shards`.
    """
    require_pyarrow(path)
    columns = _parquet_columns(dataset.categories, masks=masks)
    names = shard_names(path, num_shards, before_suffix=True)
    schema = _schema(dataset.categories, columns, str(path))
    return write_shards(dataset, names, partial(_write_parquet, dataset, columns, schema), progress=progress)


def _read(dataset: Dataset, index: int, target: str) -> tuple[Sample, bytes, str]:
    """Return a sample, and the bytes and the name of its picture, with a warning about what is not written."""
    sample, (data, name) = upright_sample(dataset, index)
    unnamed = sample.keypoints is not None and not any(item.keypoints for item in dataset.categories)
    warn_about_loss(sample, {"keypoints without names": unnamed}, target)
    return sample, data, name


def _objects(sample: Sample, categories: Categories) -> list[dict[str, Any]]:
    """Return the objects of a sample as COCO's annotations, boxes exactly, with the names of their classes."""
    rows = []
    for number, label in enumerate(sample.labels.tolist()):
        category = categories.by_label(label)
        row = coco_annotation(sample, number, category)
        x_min, y_min, x_max, y_max = sample.boxes[number].astype(float).tolist()
        kept = {key: row[key] for key in ("iscrowd", "difficult", "segmentation", "keypoints") if key in row}
        box = [x_min, y_min, x_max - x_min, y_max - y_min]
        rows.append({"bbox": box, "category": category.name, "area": float(sample.areas[number]), **kept})
    return rows


def _about(sample: Sample, index: int, name: str) -> dict[str, Any]:
    height, width = sample.image.shape[:2]
    return {"image_id": sample.id or str(index), "file_name": name, "height": height, "width": width}


def _write_archive(dataset: Dataset, file: BinaryIO, indices: Iterator[int]) -> None:
    with tarfile.open(fileobj=file, mode="w") as archive:
        for index in indices:
            sample, data, name = _read(dataset, index, "WebDataset")
            objects = _objects(sample, dataset.categories)
            # A key ends at its first dot, and must not occur twice: pictures' own names are in the annotation.
            for ending, content in (
                (_ending(data, name), data),
                (".json", json.dumps({**_about(sample, index, name), "objects": objects}).encode()),
            ):
                member = tarfile.TarInfo(f"{index:09d}{ending}")
                member.size = len(content)
                archive.addfile(member, io.BytesIO(content))


def _ending(data: bytes, name: str) -> str:
    """Return the ending of a picture's file that readers of archives know."""
    ending = Path(name).suffix.lower()
    if ending in PICTURE_ENDINGS:
        return ending
    ending = f".{picture_format(data[:32]).lower()}"
    if ending not in PICTURE_ENDINGS:
        raise DataError(f"{name}: no picture of a kind that archives have: {', '.join(sorted(PICTURE_ENDINGS))}")
    return ending


def _write_parquet(
    dataset: Dataset, columns: dict[str, _Column], schema: Any, file: BinaryIO, indices: Iterator[int]
) -> None:
    import pyarrow as pa
    from pyarrow.parquet import ParquetWriter

    numbers = {category.name: number for number, category in enumerate(dataset.categories)}
    rows: list[dict[str, Any]] = []
    size = 0

    def flush() -> None:
        if rows:
            writer.write_table(pa.Table.from_pylist(rows, schema=schema))
            rows.clear()

    with ParquetWriter(file, schema, compression="zstd") as writer:
        for index in indices:
            sample, data, name = _read(dataset, index, "Parquet")
            objects = _objects(sample, dataset.categories)
            for row in objects:
                row["category"] = numbers[row["category"]]
                row["difficult"] = row.get("difficult", 0)
            about = _about(sample, index, name)
            picture = {"bytes": data, "path": about.pop("file_name")}
            lists = {key: [row.get(key) for row in objects] for key in columns}
            rows.append({"image": picture, **about, "objects": lists})
            size += len(data)
            if len(rows) == _GROUP_ROWS or size >= _GROUP_BYTES:
                flush()
                size = 0
        flush()


# A column of objects: PyArrow's type, and what `datasets` calls it.
_Column = tuple[Any, Any]


def _parquet_columns(categories: Categories, *, masks: bool) -> dict[str, _Column]:
    """Return the lists that the objects of a picture have."""
    import pyarrow as pa

    def value(kind: str) -> dict[str, Any]:
        return {"dtype": kind, "_type": "Value"}

    def sequence(feature: dict[str, Any]) -> dict[str, Any]:
        return {"feature": feature, "_type": "Sequence"}

    names = [category.name for category in categories]
    number, numbers = (pa.float64(), value("float64")), (pa.list_(pa.float64()), sequence(value("float64")))
    flag = (pa.int8(), value("int8"))
    columns = {
        "bbox": numbers,
        "category": (pa.int64(), {"names": names, "_type": "ClassLabel"}),
        "area": number,
        "iscrowd": flag,
        "difficult": flag,
    }
    if masks:
        code = pa.struct([("size", pa.list_(pa.int32())), ("counts", pa.string())])
        feature: dict[str, Any] = {"size": sequence(value("int32")), "counts": value("string")}
        columns["segmentation"] = (code, feature)
    if any(category.keypoints for category in categories):
        columns["keypoints"] = numbers
    # As `datasets` writes lists of any version: a Sequence of structs would be a struct of lists.
    return {name: (kind, [feature]) for name, (kind, feature) in columns.items()}


def _schema(categories: Categories, columns: dict[str, _Column], path: str) -> Any:
    import pyarrow as pa

    about = {"image_id": ("string", pa.string()), "height": ("int32", pa.int32()), "width": ("int32", pa.int32())}
    features = {
        "image": {"_type": "Image"},
        **{name: {"dtype": kind, "_type": "Value"} for name, (kind, _) in about.items()},
        "objects": {name: feature for name, (_, feature) in columns.items()},
    }
    objects = pa.struct([(name, pa.list_(kind)) for name, (kind, _) in columns.items()])
    fields = [
        ("image", pa.struct([("bytes", pa.binary()), ("path", pa.string())])),
        *((name, kind) for name, (_, kind) in about.items()),
        ("objects", objects),
    ]
    return pa.schema(fields).with_metadata(
        {"huggingface": json.dumps({"info": {"features": features}}), **BOXES_ARE_XYWH}
    )
