"""Conversion between VOC, COCO and TFRecord; images are copied, never encoded anew."""

from __future__ import annotations

import json
import warnings
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any, Literal

from boxwright.data.coco import CocoDataset, coco_annotation
from boxwright.data.dataset import Dataset
from boxwright.data.label_map import load_label_map, write_label_map
from boxwright.data.tf_example import encode_example
from boxwright.data.tfrecord import write_records
from boxwright.data.tfrecord_dataset import TFRecordDataset
from boxwright.data.voc import VocDataset, write_voc_annotation
from boxwright.errors import DataError
from boxwright.types import Categories, Sample

__all__ = ["DataFormat", "detect_format", "open_dataset", "write_coco", "write_tfrecords", "write_voc"]

DataFormat = Literal["voc", "coco", "tfrecord"]
Progress = Callable[[Iterable[int]], Iterable[int]]


def detect_format(path: str | Path) -> DataFormat:
    """Guess what kind of data a path names: a folder is VOC, .json is COCO, all else TFRecord.

    Args:
        path: The path.

    Returns:
        The format.
    """
    if Path(path).is_dir():
        return "voc"
    return "coco" if str(path).endswith(".json") else "tfrecord"


def open_dataset(
    path: str | Path,
    *,
    label_map: str | Path | None = None,
    image_set: str = "",
    image_folder: str | Path | None = None,
    load_masks: bool = False,
) -> Dataset:
    """Open data of any of the three formats.

    Args:
        path: A VOC folder, a COCO JSON file, or a TFRecord path, glob or `name@count`.
        label_map: The classes; without, `label_map.pbtxt` in the VOC folder or beside the TFRecords,
            which the latter need.
        image_set: For VOC, a list in `ImageSets/Main`.
        image_folder: For COCO, where the images are.
        load_masks: Whether samples carry masks.

    Returns:
        The data set.

    Raises:
        DataError: Where the data cannot be opened, or a label map is needed.
    """
    kind = detect_format(path)
    beside = (Path(path) if kind == "voc" else Path(path).parent) / "label_map.pbtxt"
    if label_map is None and kind != "coco" and beside.is_file():
        label_map = beside
    categories = load_label_map(label_map) if label_map else None
    if kind == "voc":
        return VocDataset(path, image_set, categories)
    if kind == "coco":
        return CocoDataset(path, image_folder, categories, load_masks=load_masks)
    if categories is None:
        raise DataError(f"{path}: TFRecords name classes by number; say which with --label-map FILE")
    return TFRecordDataset([path], categories, masks="png" if load_masks else "none")


def _all(numbers: Iterable[int]) -> Iterable[int]:
    return numbers


def write_tfrecords(
    dataset: Dataset, path: str | Path, *, num_shards: int = 1, progress: Progress = _all
) -> list[Path]:
    """Write a data set as TFRecords, and its label map as `label_map.pbtxt` beside them.

    Args:
        dataset: The data.
        path: The file; with several shards, `-00000-of-00003` and so on are appended.
        num_shards: How many files.
        progress: Wraps the indices, to show how far it is.

    Returns:
        The files.

    Raises:
        DataError: Where a label map of other classes lies there already.
    """
    path = Path(path)
    path.parent.mkdir(parents=True, exist_ok=True)
    _write_label_map(dataset.categories, path.parent / "label_map.pbtxt")
    names = (
        [path]
        if num_shards == 1
        else [path.with_name(f"{path.name}-{shard:05d}-of-{num_shards:05d}") for shard in range(num_shards)]
    )
    indices = iter(progress(range(len(dataset))))

    def records(count: int) -> Iterator[bytes]:
        for _ in range(count):
            index = next(indices)
            yield encode_example(dataset[index], dataset.encoded(index)[0], dataset.categories)

    bounds = [len(dataset) * shard // num_shards for shard in range(num_shards + 1)]
    for name, start, stop in zip(names, bounds, bounds[1:], strict=False):
        write_records(name, records(stop - start))
    for _ in indices:  # lets a progress bar see the end
        pass
    return names


def write_coco(dataset: Dataset, path: str | Path, *, progress: Progress = _all) -> Path:
    """Write a data set as COCO JSON, with its images in `images` beside it.

    Args:
        dataset: The data.
        path: The JSON file.
        progress: Wraps the indices, to show how far it is.

    Returns:
        The file.
    """
    path = Path(path)
    folder = path.parent / "images"
    folder.mkdir(parents=True, exist_ok=True)
    images: list[dict[str, Any]] = []
    annotations: list[dict[str, Any]] = []
    for index in progress(range(len(dataset))):
        sample, (data, name) = dataset[index], dataset.encoded(index)
        name = _write_image(folder, name, data, index)
        _warn_of_loss(sample, {"keypoints": sample.keypoints is not None}, "COCO")
        height, width = sample.image.shape[:2]
        images.append({"id": index + 1, "file_name": name, "height": height, "width": width})
        for number, label in enumerate(sample.labels.tolist()):
            row = coco_annotation(sample, number, _coco_id(dataset.categories, label))
            annotations.append({"id": len(annotations) + 1, "image_id": index + 1, **row})
    categories = [{"id": item.id, "name": item.name} for item in dataset.categories]
    content = {"images": images, "annotations": annotations, "categories": categories}
    path.write_text(json.dumps(content), encoding="utf-8")
    return path


def _coco_id(categories: Categories, label: int) -> int:
    return categories.by_label(label).id


def write_voc(dataset: Dataset, path: str | Path, *, progress: Progress = _all) -> Path:
    """Write a data set as a VOC folder, with one list of all images, `ImageSets/Main/all.txt`.

    Args:
        dataset: The data.
        path: The folder.
        progress: Wraps the indices, to show how far it is.

    Returns:
        The folder.
    """
    path = Path(path)
    annotations, images, lists = path / "Annotations", path / "JPEGImages", path / "ImageSets" / "Main"
    for folder in (annotations, images, lists):
        folder.mkdir(parents=True, exist_ok=True)
    _write_label_map(dataset.categories, path / "label_map.pbtxt")
    stems: list[str] = []
    for index in progress(range(len(dataset))):
        sample, (data, name) = dataset[index], dataset.encoded(index)
        if Path(name).stem in stems:  # a.jpg and a.png would share an annotation
            name = f"{index:06d}-{Path(name).name}"
        name = _write_image(images, name, data, index)
        stem = Path(name).stem
        _warn_of_loss(sample, {"masks": sample.masks is not None, "crowds": bool(sample.is_crowd.any())}, "VOC")
        sample = sample.keep(~sample.is_crowd)
        write_voc_annotation(sample, name, dataset.categories, annotations / f"{stem}.xml")
        stems.append(stem)
    (lists / "all.txt").write_text("\n".join(stems) + "\n", encoding="utf-8")
    return path


def _warn_of_loss(sample: Sample, kinds: dict[str, bool], target: str) -> None:
    """Warn of what a format cannot hold; Python shows each text once."""
    kinds |= {"weights": bool((sample.weights != 1).any()), "group_of marks": bool(sample.group_of.any())}
    for kind in (kind for kind, present in kinds.items() if present):
        warnings.warn(f"{kind} are left out: {target} has no place for them", stacklevel=3)


def _write_label_map(categories: Categories, path: Path) -> None:
    """Write a label map, but never over one of other classes: data beside it would change their meaning."""
    if path.is_file():
        there = [(item.id, item.name) for item in load_label_map(path)]
        if there != [(item.label + 1, item.name) for item in categories]:
            raise DataError(
                f"{path} is there already and has other classes; name it with --label-map, or write to another folder"
            )
        return
    write_label_map(categories, path)


def _write_image(folder: Path, name: str, data: bytes, index: int) -> str:
    """Write an image; a name that another image has already gets its index in front."""
    name = original = Path(name).name
    attempt = 0
    while (folder / name).exists() and (folder / name).read_bytes() != data:
        name = f"{index:06d}-{original}" if not attempt else f"{index:06d}-{attempt}-{original}"
        attempt += 1
    (folder / name).write_bytes(data)
    return name
