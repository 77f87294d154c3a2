"""Conversion to VOC, COCO, TFRecord and YOLO from any format.

Images are copied; only those that EXIF turns are changed where boxes would leave their objects otherwise.

A sample's boxes refer to its image as it was read: upright, or with pixels as stored. The formats' readers turn
pictures upright by EXIF, and TensorFlow never does. The file's bytes are kept wherever they give that image again.
"""

from __future__ import annotations

import itertools
import json
import os
import re
import struct
import warnings
import zlib
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import yaml
from numpy.typing import NDArray

from boxwright.base.errors import DataError
from boxwright.base.files import is_file, make_folder, read_file, unfinished, write_whole
from boxwright.data.coco import coco_annotation, coco_category
from boxwright.data.coco_content import searched_lists
from boxwright.data.dataset import Dataset
from boxwright.data.dense_pose import point_list
from boxwright.data.example_messages import Example
from boxwright.data.image_io import decode_image, encode_png, encode_whole_jpeg, parse_header
from boxwright.data.label_map import KEYPOINT_TEXT, names_of_objects
from boxwright.data.picture_files import picture_format
from boxwright.data.tf_example import ATTRIBUTE
from boxwright.data.tfrecord import write_records_to
from boxwright.data.voc import write_voc_annotation
from boxwright.data.write_shards import Progress, shard_names, write_label_map_once, write_shards
from boxwright.data.yolo_yaml import read_data_yaml
from boxwright.types import Categories, Sample


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
    existing = read_data_yaml(path) if is_file(path) else {}
    if existing.get("names", list(names)) != list(names):
        raise DataError(f"{path} already exists and has other classes; write to another folder")
    yield
    lists = {name: existing[name] for name in ("train", "val", "test") if name in existing} | {split: f"images/{split}"}
    content = {"path": ".", **lists, "nc": len(names), "names": list(names)}
    write_whole(path, yaml.safe_dump(content, sort_keys=False, allow_unicode=True))


_ORIENTATION, _SHORT = 0x0112, 3
_ENTRY = 12
# What is before EXIF's data in the files of each format.
_BEFORE = {"JPEG": b"Exif\0\0", "PNG": b"eXIf", "WEBP": b"EXIF"}
_JPEG_NAMES = frozenset({".jpg", ".jpeg", ".jpe", ".jfif"})


def upright_file(image: NDArray[Any], data: bytes, name: str) -> tuple[bytes, str]:
    """Return a file that gives an image to readers that turn pictures upright, and its name.

    Args:
        image: A sample's, uint8 [H, W, 3].
        data: The file that it was read from.
        name: Of that file.
    """
    if parse_header(data, name).orientation == 1 or _decodes_to(image, data, name, upright=True):
        return data, name
    plain = without_orientation(data)
    if plain is not None and _decodes_to(image, plain, name, upright=True):
        return plain, name
    return encoded_as(image, data, name)


def stored_file(image: NDArray[Any], data: bytes, name: str) -> bytes:
    """Return a file whose pixels are an image as they are stored, for readers that ignore EXIF.

    Args:
        image: A sample's, uint8 [H, W, 3].
        data: The file that it was read from.
        name: Of that file.
    """
    if parse_header(data, name).orientation == 1 or _decodes_to(image, data, name, upright=False):
        return data
    return encoded_as(image, data, name)[0]


def _decodes_to(image: NDArray[Any], data: bytes, name: str, *, upright: bool) -> bool:
    try:
        return np.array_equal(decode_image(data, name, upright=upright), image)
    except DataError:
        return False


def encoded_as(image: NDArray[Any], data: bytes, name: str) -> tuple[bytes, str]:
    """Return a file of an image, uint8 [H, W, 3], as JPEG if another file is one and else as PNG, and its name."""
    if picture_format(data[:32]) == "JPEG":
        suffix = Path(name).suffix
        return encode_whole_jpeg(image), name if suffix.lower() in _JPEG_NAMES else f"{name}.jpg"
    return encode_png(image), name if name.lower().endswith(".png") else f"{name.removesuffix(Path(name).suffix)}.png"


def without_orientation(data: bytes) -> bytes | None:
    """Return an image file whose EXIF orientation says that pixels are upright as stored; None if it is not found."""
    kind = picture_format(data[:32])
    if kind == "TIFF":
        start = 0
    elif kind in _BEFORE and (place := data.find(_BEFORE[kind])) >= 0:
        # WebP's chunk has its length before the data, and some programs write JPEG's mark in other formats, too.
        start = place + len(_BEFORE[kind]) + (4 if kind == "WEBP" else 0)
        start += 6 if kind != "JPEG" and data[start : start + 6] == _BEFORE["JPEG"] else 0
    else:
        return None
    value = _find_orientation(data, start)
    if value is None:
        return None
    order = "<" if data[start : start + 2] == b"II" else ">"
    changed = bytearray(data)
    struct.pack_into(f"{order}H", changed, value, 1)
    if kind == "PNG":
        _sign_chunk(changed, data.find(_BEFORE["PNG"]))
    return bytes(changed)


def _find_orientation(data: bytes, start: int) -> int | None:
    """Return where the orientation's value is in TIFF's table that starts somewhere; None if it has none."""
    order = {b"II": "<", b"MM": ">"}.get(data[start : start + 2])
    if order is None:
        return None
    try:
        table = start + struct.unpack_from(f"{order}I", data, start + 4)[0]
        (count,) = struct.unpack_from(f"{order}H", data, table)
        for place in range(table + 2, table + 2 + count * _ENTRY, _ENTRY):
            if struct.unpack_from(f"{order}HH", data, place) == (_ORIENTATION, _SHORT):
                return place + 8 if place + _ENTRY <= len(data) else None
    except struct.error:  # the table leads out of the file
        return None
    return None


def _sign_chunk(png: bytearray, name: int) -> None:
    """Update the checksum of a PNG's chunk, whose name is at a place."""
    (length,) = struct.unpack_from(">I", png, name - 4)
    if name + 4 + length + 4 <= len(png):
        struct.pack_into(">I", png, name + 4 + length, zlib.crc32(png[name : name + 4 + length]))


# Keeps a name with suffix and number below the 255 bytes of common file systems.
_LONGEST_STEM, _LONGEST_SUFFIX = 180, 16
_LIKE_A_FLAG = re.compile(r"\s-?[01]$")


def write_tfrecords(dataset: Dataset, path: str | Path, *, num_shards: int = 1, progress: Progress = iter) -> list[str]:
    """Write a data set as TFRecords, with its label map as `label_map.pbtxt` in the same folder; return their names.

    Args:
        path: The file, or its address; several shards append -00000-of-00003 and so on.
        progress: Wraps the indices, for a progress bar.

    Raises:
        DataError: If the folder already has a label map of other classes.
        OutputError: As `write_shards`.
    """

    def records(indices: Iterable[int]) -> Iterator[bytes]:
        for index in indices:
            sample, (data, name) = dataset[index], dataset.encoded(index)
            yield encode_example(sample, stored_file(sample.image, data, name), dataset.categories)

    names = shard_names(path, num_shards, before_suffix=False)
    return write_shards(dataset, names, lambda file, part: write_records_to(file, records(part)), progress=progress)


def write_coco(dataset: Dataset, path: str | Path, *, progress: Progress = iter) -> Path:
    """Write a data set as COCO JSON, with its images in `images` beside it; the JSON file is written last."""
    path = Path(path)
    folder, taken = make_folder(path.parent / "images"), set[str]()
    images: list[dict[str, Any]] = []
    annotations: list[dict[str, Any]] = []
    for index in progress(range(len(dataset))):
        sample, (data, name) = upright_sample(dataset, index)
        name = _write_image(folder, name, data, taken, keep_folder=True)
        unnamed = sample.keypoints is not None and not any(item.keypoints for item in dataset.categories)
        warn_about_loss(sample, {"keypoints without names": unnamed}, "COCO")
        height, width = sample.image.shape[:2]
        head = {"id": index + 1, "file_name": name, "height": height, "width": width}
        images.append({**head, **searched_lists(sample, dataset.categories)})
        for number, label in enumerate(sample.labels.tolist()):
            row = coco_annotation(sample, number, dataset.categories.by_label(label))
            # From 1: pycocotools notes a match by the annotation's id, and takes 0 for no match.
            annotations.append({"id": len(annotations) + 1, "image_id": index + 1, **row})
    categories = [coco_category(item) for item in dataset.categories]
    content = {"images": images, "annotations": annotations, "categories": categories}
    return write_whole(path, json.dumps(content))


def write_voc(dataset: Dataset, path: str | Path, *, progress: Progress = iter) -> Path:
    """Write a data set as a VOC folder, with one list of all images, `ImageSets/Main/all.txt`."""
    stems: list[str] = []
    taken: set[str] = set()
    with unfinished(path, "a conversion to VOC") as whole:
        annotations, images, lists = whole / "Annotations", whole / "JPEGImages", whole / "ImageSets" / "Main"
        for folder in (annotations, images, lists):
            make_folder(folder)
        write_label_map_once(dataset.categories, whole / "label_map.pbtxt")
        for index in progress(range(len(dataset))):
            sample, (data, name) = upright_sample(dataset, index)
            name = _write_image(images, name, data, taken, by_stem=True)
            stem = Path(name).stem
            warn_about_loss(sample, {"masks": sample.masks is not None, "crowds": bool(sample.is_crowd.any())}, "VOC")
            sample = sample.keep(~sample.is_crowd)
            write_voc_annotation(sample, name, dataset.categories, annotations / f"{stem}.xml")
            stems.append(stem)
        write_whole(lists / "all.txt", "\n".join(stems) + "\n")
    return Path(path)


def write_yolo(dataset: Dataset, path: str | Path, split: str = "train", *, progress: Progress = iter) -> Path:
    """Write a data set as a YOLO split: `images/SPLIT`, `labels/SPLIT`, and `data.yaml`, which is written last.

    Args:
        path: The `data.yaml`; other splits in it stay.

    Raises:
        DataError: If there is already a `data.yaml` of other classes.
        OutputError: If the disk is full or the folder is not writable.
    """
    path, taken = Path(path), set[str]()
    images, labels = (make_folder(path.parent / kind / split) for kind in ("images", "labels"))
    with write_yolo_yaml(path, split, [item.name for item in dataset.categories]):
        for index in progress(range(len(dataset))):
            sample, (data, name) = upright_sample(dataset, index)
            name = _write_image(images, name, data, taken, by_stem=True)
            warn_about_loss(
                sample,
                {
                    "masks": sample.masks is not None,
                    "keypoints": sample.keypoints is not None,
                    "crowds": bool(sample.is_crowd.any()),
                },
                "YOLO",
            )
            write_yolo_labels(sample.keep(~sample.is_crowd), labels / f"{Path(name).stem}.txt")
    return path


def upright_sample(dataset: Dataset, index: int) -> tuple[Sample, tuple[bytes, str]]:
    """Return a sample with a file of its image, for readers that turn pictures upright, and the file's name."""
    sample, (data, name) = dataset[index], dataset.encoded(index)
    return sample, upright_file(sample.image, data, name)


def warn_about_loss(sample: Sample, kinds: dict[str, bool], target: str) -> None:
    """Warn about information that a format cannot hold; Python shows each text once."""
    kinds |= {"attributes": sample.attributes is not None and target != "COCO"}
    if target != "COCO":
        kinds |= {"points of DensePose": sample.dense_pose is not None, "tracks": sample.track_ids is not None}
    kinds |= {
        "weights of masks": sample.mask_weights is not None,
        "offsets of tracks": sample.temporal_offsets is not None,
    }
    kinds |= {"weights": bool((sample.weights != 1).any()), "group_of marks": bool(sample.group_of.any())}
    for kind in (kind for kind, present in kinds.items() if present):
        warnings.warn(f"{kind} are dropped: {target} cannot represent them", stacklevel=3)


def _write_image(
    folder: Path, name: str, data: bytes, taken: set[str], *, by_stem: bool = False, keep_folder: bool = False
) -> str:
    """Write an image under its own name, or a numbered one if that is taken or invalid; return the name.

    A file of an earlier conversion with the same bytes is reused. With `by_stem`, a.jpg and a.png count as one name, as
    they would share an annotation. With `keep_folder`, the image stays in a subfolder named as its parent folder.
    """
    plain, suffix = _plain_stem(Path(name).stem), Path(name).suffix[:_LONGEST_SUFFIX]
    parent = Path(name).parent.name if keep_folder else ""
    if parent and parent not in (".", ".."):
        plain = f"{make_folder(folder / _plain_stem(parent)).name}/{plain}"
    for number in itertools.count(1):
        stem = plain if number == 1 else f"{plain}-{number}"
        # a.jpg and A.jpg are one file on Windows and macOS.
        key = (stem if by_stem else f"{stem}{suffix}").lower()
        if key not in taken and _is_free(folder / f"{stem}{suffix}", data):
            break
    taken.add(key)
    write_whole(folder / f"{stem}{suffix}", data)
    return f"{stem}{suffix}"


def _is_free(path: Path, data: bytes) -> bool:
    return not os.path.lexists(path) or (is_file(path) and read_file(path) == data)


def _plain_stem(stem: str) -> str:
    """Return a stem that is valid as a file name, as a line, and before a flag; usually unchanged."""
    plain = "".join(c if c.isprintable() else "_" for c in stem).strip() or "_"
    plain = plain.encode("utf-8", "replace")[:_LONGEST_STEM].decode("utf-8", "ignore").strip()
    return f"{plain}_" if _LIKE_A_FLAG.search(plain) else plain


def encode_example(sample: Sample, image: bytes, categories: Categories) -> bytes:
    """Return a sample as a serialized tf.train.Example; ids are labels plus 1.

    Masks (as PNG), keypoints with their names and depths, DensePose's points, tracks and the whole image's classes are
    written if present.

    Args:
        image: The image file's bytes.
    """
    height, width = sample.image.shape[:2]
    example = Example()
    feature = example.features.feature
    kind = "png" if image[:4] == b"\x89PNG" else "jpeg"
    for key, text in (
        ("image/encoded", image),
        ("image/format", kind.encode()),
        ("image/filename", sample.filename.encode()),
        ("image/source_id", (sample.id or sample.filename).encode()),
    ):
        feature[key].bytes_list.value.append(text)
    feature["image/height"].int64_list.value.append(height)
    feature["image/width"].int64_list.value.append(width)
    sides = zip(("xmin", "ymin", "xmax", "ymax"), (width, height, width, height), sample.boxes.T, strict=True)
    # Divided in float64, so that rounding to the record's float32 is the only one.
    for side, length, values in sides:
        feature[f"image/object/bbox/{side}"].float_list.value.extend((values.astype(np.float64) / length).tolist())
    feature["image/object/class/label"].int64_list.value.extend((sample.labels + 1).tolist())
    for key, texts in _object_bytes(sample, categories).items():
        feature[key].bytes_list.value.extend(texts)
    floats, wholes = _object_numbers(sample)
    for name, values in wholes.items():
        feature[f"image/object/{name}"].int64_list.value.extend(values.astype(int).tolist())
    for name, values in floats.items():
        feature[f"image/object/{name}"].float_list.value.extend(values.flatten().tolist())
    for key, labels in (
        ("image/class/label", sample.verified_labels),
        ("image/neg_category_ids", sample.negative_labels),
        ("image/not_exhaustive_category_ids", sample.not_exhaustive_labels),
    ):
        if len(labels):
            feature[key].int64_list.value.extend((labels + 1).tolist())
    if sample.attributes is not None:
        for name, column in zip(sample.attribute_names, sample.attributes.T, strict=True):
            feature[f"{ATTRIBUTE}{name}"].int64_list.value.extend(column.tolist())
    # Without it, the order of a map's keys varies, and so would the bytes of equal records.
    return bytes(example.SerializeToString(deterministic=True))


def _object_bytes(sample: Sample, categories: Categories) -> dict[str, list[bytes]]:
    """Return features of objects that are texts or files, without those that the sample lacks."""
    features = {"image/object/class/text": [categories.by_label(int(label)).name.encode() for label in sample.labels]}
    if sample.masks is not None:
        features["image/object/mask"] = [encode_png(mask * 255) for mask in sample.masks]
    if names := names_of_objects(sample, categories):
        features[KEYPOINT_TEXT] = names
    return features


def _object_numbers(sample: Sample) -> tuple[dict[str, NDArray[Any]], dict[str, NDArray[Any]]]:
    """Return features of objects that are floats, and that are integers, without those that the sample lacks."""
    height, width = sample.image.shape[:2]
    wholes = {name: getattr(sample, name) for name in ("difficult", "is_crowd", "group_of")}
    wholes |= {"track/label": sample.track_ids}
    floats: dict[str, Any] = {"weight": sample.weights, "area": sample.areas}
    floats |= {"mask/weight": sample.mask_weights, "track/match": sample.track_match_flags}
    if sample.temporal_offsets is not None:
        floats |= {
            f"track/offset/{axis}": sample.temporal_offsets[:, i] / (width, height)[i] for i, axis in enumerate("xy")
        }
    floats |= {"keypoint/z": sample.keypoint_depths, "keypoint/z/weights": sample.keypoint_depth_weights}
    if sample.keypoints is not None:
        places = sample.keypoints.reshape(-1, 3)
        floats |= {"keypoint/x": places[:, 0] / width, "keypoint/y": places[:, 1] / height}
        wholes |= {"keypoint/visibility": places[:, 2]}
    if sample.dense_pose is not None:
        points = point_list(sample.dense_pose)
        wholes |= {"densepose/num": points.counts, "densepose/part_index": points.parts}
        floats |= {"densepose/x": points.x / width, "densepose/y": points.y / height}
        floats |= {"densepose/u": points.u, "densepose/v": points.v}
    known = ({name: values for name, values in part.items() if values is not None} for part in (floats, wholes))
    return next(known), next(known)
