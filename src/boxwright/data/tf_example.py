"""`tf.train.Example`: reading records of the TF Object Detection API (`convert` writes them).

Keys are those of the API's own converters: `image/encoded`, `image/object/bbox/ymin`, … Boxes are stored normalized to
0..1, class ids start at 1.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
from google.protobuf.message import DecodeError
from numpy.typing import NDArray

from boxwright.base.errors import DataError
from boxwright.data.coco_masks import check_mask_memory
from boxwright.data.dense_pose import PointList
from boxwright.data.example_messages import Example, Features, parse_features, read_context, read_context_image_ids
from boxwright.data.image_io import decode_image
from boxwright.data.label_map import KEYPOINT_TEXT, ClassHierarchy, KeypointNames
from boxwright.data.reading import checked_sample, whole_number
from boxwright.types import Categories, Category, Sample

ATTRIBUTE = "image/object/attribute/"
MaskEncoding = Literal["none", "png", "numerical"]


@dataclass(frozen=True)
class RecordFields:
    """What is read of a record besides boxes and classes.

    Attributes:
        masks: How instance masks are stored; "none" to skip them.
        num_keypoints: Keypoints per object; 0 to skip them.
        keypoint_depths: Whether to read the depths of keypoints and their weights.
        keypoint_names: Where keypoints go by the names that the record gives them; None for the record's order.
        multiclass_scores: Whether to read the scores of all classes.
        track_ids: Whether to read which objects are the same in several images, and where they were in the last one.
        confidences: Whether to read how sure each object's class is.
        context: Whether to read the features of other images (Context R-CNN).
        context_image_ids: Whether to read the ids of the images that those features are of.
        dense_pose: Whether to read points with their places on the body's surface.
        hierarchy: Whether objects are of the classes above their own as well; None where they are not.
        more_channels: Channels besides red, green and blue, each a gray image file of its own.
    """

    masks: MaskEncoding = "none"
    num_keypoints: int = 0
    keypoint_depths: bool = False
    keypoint_names: KeypointNames | None = None
    multiclass_scores: bool = False
    track_ids: bool = False
    context: bool = False
    context_image_ids: bool = False
    confidences: bool = False
    dense_pose: bool = False
    more_channels: int = 0
    hierarchy: ClassHierarchy | None = None
    white_level: float = 0.0


BOXES_ONLY = RecordFields()


def read_features(record: bytes, where: str) -> Features:
    """Return the features of a record: key to its list of bytes, floats or integers.

    Raises:
        DataError: If the bytes are not an Example.
    """
    example = Example()
    try:
        example.ParseFromString(record)
    except (DecodeError, RecursionError):
        raise DataError(f"{where}: not a tf.train.Example") from None
    return parse_features(example.features)


def labels_from_one(features: Features, where: str) -> Features:
    """Return features with class labels that start at 0 raised by 1, as ids in label maps start at 1."""
    raised = {key: [label + 1 for label in _wholes(features, key, where)] for key in _CLASS_LABELS if key in features}
    return {**features, **raised}


_CLASS_LABELS = (
    "image/object/class/label",
    "image/class/label",
    "image/neg_category_ids",
    "image/not_exhaustive_category_ids",
)


def decode_example(
    features: Features,
    categories: Categories,
    where: str,
    wanted: RecordFields = BOXES_ONLY,
    unknown: dict[str, str] | None = None,
    decode: Callable[..., NDArray[np.uint8]] = decode_image,
) -> Sample:
    """Return the sample of a record's features, with boxes in pixels.

    The class text of an object decides its class (by name, then by display name); the class label is used only if there
    are no texts, or the classes are numbers. A text that differs from a class's name in case alone is that class where
    the label is its id. Objects of classes that are not in the label map are dropped, and `unknown` receives a warning.

    Args:
        unknown: Receives a warning, with the first location, for each class name that the label map lacks or spells in
            another case.
        decode: Decodes the image; its arguments are those of `decode_image`.

    Raises:
        DataError: If a feature is missing, malformed, or does not have one value per box.
    """
    encoded, declared = encoded_image(features, where), declared_size(features, where)
    image = decode(encoded, f"{where}: image/encoded", declared=declared, white_level=wanted.white_level)
    if wanted.more_channels:
        image = _more_channels(features, image, wanted, where)
    height, width = image.shape[:2]
    boxes = _boxes(features, (height, width), where)
    count = len(boxes)
    labels = _labels(features, categories, count, where, {} if unknown is None else unknown)
    attributes, attribute_names = _attributes(features, count, where)
    offsets, match_flags = _previous(features, count, (height, width), where) if wanted.track_ids else (None, None)
    sample = Sample(
        image=image,
        boxes=boxes,
        labels=labels,
        weights=_per_object(features, "image/object/weight", count, where, np.float32),
        difficult=_per_object(features, "image/object/difficult", count, where, np.bool_),
        is_crowd=_per_object(features, "image/object/is_crowd", count, where, np.bool_),
        group_of=_per_object(features, "image/object/group_of", count, where, np.bool_),
        areas=_per_object(features, "image/object/area", count, where, np.float32),
        masks=_masks(features, count, (height, width), wanted.masks, where),
        mask_weights=_read_object_floats(features, _MASK_WEIGHT, count, where) if wanted.masks != "none" else None,
        dense_pose=_dense_pose(features, count, (height, width), where) if wanted.dense_pose else None,
        class_scores=_class_scores(features, count, where) if wanted.multiclass_scores else None,
        confidences=_confidences(features, labels, categories, where) if wanted.confidences else None,
        track_ids=_track_ids(features, count, where) if wanted.track_ids else None,
        temporal_offsets=offsets,
        track_match_flags=match_flags,
        attributes=attributes,
        attribute_names=attribute_names,
        **_read_keypoint_fields(features, count, (height, width), wanted, where),
        **_read_image_fields(features, categories, wanted, where),
    )
    checked_sample(sample, where)
    kept = sample.keep(labels >= 0) if (labels < 0).any() else sample
    kept.left_out = count - len(kept.boxes)
    return kept if wanted.hierarchy is None else wanted.hierarchy.expand(kept)


def _read_image_fields(features: Features, categories: Categories, wanted: RecordFields, where: str) -> dict[str, Any]:
    """Return the fields of a sample that are of the whole image, by name."""
    filename = text_feature(features, "image/filename", where)
    return {
        "verified_labels": _image_labels(features, categories, where),
        "negative_labels": _known(_wholes(features, "image/neg_category_ids", where), categories),
        "not_exhaustive_labels": _known(_wholes(features, "image/not_exhaustive_category_ids", where), categories),
        "context": read_context(features, where) if wanted.context else None,
        "context_image_ids": read_context_image_ids(features, where) if wanted.context_image_ids else (),
        "id": text_feature(features, "image/source_id", where) or filename,
        "filename": filename,
    }


_MASK_WEIGHT = "image/object/mask/weight"
_MORE_CHANNELS = "image/additional_channels/encoded"


def _more_channels(features: Features, image: NDArray[np.uint8], wanted: RecordFields, where: str) -> NDArray[np.uint8]:
    """Return an image with its further channels behind red, green and blue, [H, W, 3 + more_channels]."""
    files, count = _bytes(features, _MORE_CHANNELS, where), wanted.more_channels
    if len(files) != count:
        raise DataError(f"{where}: {_MORE_CHANNELS} has {len(files)} images; num_additional_channels says {count}")
    channels = [image]
    for number, data in enumerate(files):
        key = f"{where}: {_MORE_CHANNELS} {number}"
        declared = declared_size(features, where)
        channel = decode_image(data, key, declared=declared, white_level=wanted.white_level)
        if channel.shape != image.shape:
            sizes = [f"{picture.shape[1]}×{picture.shape[0]}" for picture in (channel, image)]
            raise DataError(f"{key}: {sizes[0]} pixels, but the image has {sizes[1]}")
        if (channel != channel[..., :1]).any():
            raise DataError(f"{key}: a picture in color; each further channel is a gray picture of its own")
        channels.append(channel[..., :1])
    return np.concatenate(channels, axis=2)


def encoded_image(features: Features, where: str) -> bytes:
    """Return the image file of a record.

    Raises:
        DataError: If the record has none.
    """
    values = _bytes(features, "image/encoded", where)
    if not values:
        raise DataError(f"{where}: no image/encoded; found {', '.join(sorted(features))[:400] or 'no features'}")
    return values[0]


def text_feature(features: Features, key: str, where: str) -> str:
    """Return a feature that is one text, or empty; an integer, as some writers store ids, is formatted.

    Raises:
        DataError: For a number with a fraction.
    """
    values = features.get(key, ())
    if len(values) and not isinstance(values[0], bytes):
        return str(whole_number(values[0], f"{where}: {key}"))
    return values[0].decode("utf-8", "replace") if len(values) else ""


def _bytes(features: Features, key: str, where: str) -> Sequence[bytes]:
    """Return a list of texts or files."""
    values = features.get(key, ())
    if len(values) and not isinstance(values[0], bytes):
        raise DataError(f"{where}: {key}: expected bytes, found the number {values[0]}")
    return values


def _numbers(features: Features, key: str, where: str) -> Sequence[Any]:
    """Return a list of numbers."""
    values = features.get(key, ())
    if len(values) and isinstance(values[0], bytes):
        raise DataError(f"{where}: {key}: expected numbers, found the text {values[0][:40]!r}")
    return values


def _floats(features: Features, key: str, where: str) -> NDArray[np.float32]:
    return np.array(_numbers(features, key, where), np.float32)


def _wholes(features: Features, key: str, where: str) -> list[int]:
    return [whole_number(value, f"{where}: {key}") for value in _numbers(features, key, where)]


def _whole_array(features: Features, key: str, where: str) -> NDArray[np.int64]:
    """Return a list of integers as an array; a long one is not checked number by number if it is of integers."""
    values = np.array(_numbers(features, key, where))
    return values if values.dtype == np.int64 else np.array(_wholes(features, key, where), np.int64)


def _class_scores(features: Features, count: int, where: str) -> NDArray[np.float32] | None:
    """Return the scores [N, K] of all classes; None if the record has none."""
    scores = _floats(features, "image/object/class/multiclass_scores", where)
    if not len(scores):
        return None
    if not count or len(scores) % count:
        raise DataError(f"{where}: image/object/class/multiclass_scores has {len(scores)} values for {count} objects")
    return scores.reshape(count, -1)


def declared_size(features: Features, where: str) -> tuple[int, int] | None:
    """Return the (height, width) that a record states, if it does."""
    height, width = _wholes(features, "image/height", where), _wholes(features, "image/width", where)
    return (height[0], width[0]) if height and width else None


def _per_object(features: Features, key: str, count: int, where: str, dtype: type) -> NDArray[Any]:
    values: NDArray[Any] = np.array(_numbers(features, key, where), dtype)
    if len(values) not in (0, count):
        raise DataError(f"{where}: {key} has {len(values)} values for {count} boxes")
    return values


def _boxes(features: Features, size: tuple[int, int], where: str) -> NDArray[np.float32]:
    """Return boxes float32 [N, 4], xyxy in pixels of an image of (height, width)."""
    corners = [_floats(features, f"image/object/bbox/{side}", where) for side in ("xmin", "ymin", "xmax", "ymax")]
    if len({len(side) for side in corners}) > 1:
        raise DataError(f"{where}: xmin, ymin, xmax, ymax have {[len(side) for side in corners]} values")
    with np.errstate(over="ignore"):  # overflow gives infinity, which is rejected later
        return np.stack(corners, axis=1) * np.array([size[1], size[0], size[1], size[0]], np.float32)


def _attributes(features: Features, count: int, where: str) -> tuple[NDArray[np.int64] | None, tuple[str, ...]]:
    """Return the further attributes of objects, int64 [N, T], and T names."""
    keys = sorted(key for key in features if key.startswith(ATTRIBUTE))
    columns = [np.array(_wholes(features, key, where), np.int64) for key in keys]
    for key, column in zip(keys, columns, strict=True):
        if len(column) != count:
            raise DataError(f"{where}: {key} has {len(column)} values for {count} boxes")
    if not keys:
        return None, ()
    return np.stack(columns, 1), tuple(key.removeprefix(ATTRIBUTE) for key in keys)


def _labels(
    features: Features, categories: Categories, count: int, where: str, unknown: dict[str, str]
) -> NDArray[np.int64]:
    if not count:
        return np.zeros(0, np.int64)
    texts, key = _bytes(features, "image/object/class/text", where), "image/object/class/text"
    ids: list[int] = []
    if not len(texts) or categories.are_numbers:
        texts = []
        key = "image/object/class/label"
        ids = _wholes(features, key, where)
    if len(texts or ids) != count:
        raise DataError(f"{where}: {key} has {len(texts or ids)} values for {count} boxes")
    names = [text.decode("utf-8", "replace") for text in texts] or [f"id {number}" for number in ids]
    classes = (
        [categories.by_any_name(name) for name in names] if texts else [categories.by_id(number) for number in ids]
    )
    if texts and any(category is None for category in classes):
        classes = _by_case_and_id(names, classes, features, categories)
    for name, category in zip(names, classes, strict=True):
        if category is None:
            unknown.setdefault(name, f"{where}: class {name!r} is not in the label map; its boxes are dropped")
        elif texts and name not in (category.name, category.display_name):
            unknown.setdefault(name, f"{where}: class {name!r} is read as {category.name!r}, whose id its number is")
    return np.array([-1 if category is None else category.label for category in classes], np.int64)


def _by_case_and_id(
    names: list[str], classes: list[Category | None], features: Features, categories: Categories
) -> list[Category | None]:
    """Return the classes of objects, with those whose text is theirs in another case and whose label is their id."""
    ids = features.get("image/object/class/label", ())
    if len(ids) != len(names):
        return classes
    by_id = [categories.by_id(number) if isinstance(number, int) else None for number in ids]
    return [
        known or (other if other is not None and other.name.casefold() == name.casefold() else None)
        for name, known, other in zip(names, classes, by_id, strict=True)
    ]


def _image_labels(features: Features, categories: Categories, where: str) -> NDArray[np.int64]:
    """Return the classes that were verified for the whole image, by text or else by id, without unknown ones."""
    if not len(texts := _bytes(features, "image/class/text", where)):
        return _known(_wholes(features, "image/class/label", where), categories)
    classes = (categories.by_any_name(text.decode("utf-8", "replace")) for text in texts)
    return np.array([category.label for category in classes if category is not None], np.int64)


def _known(ids: list[int], categories: Categories) -> NDArray[np.int64]:
    """Return the labels of class ids, without unknown ones."""
    classes = (categories.by_id(number) for number in ids)
    return np.array([category.label for category in classes if category is not None], np.int64)


def _masks(
    features: Features, count: int, size: tuple[int, int], encoding: MaskEncoding, where: str
) -> NDArray[np.uint8] | None:
    if encoding == "none":
        return None
    check_mask_memory(count, size, where)
    key = "image/object/mask"
    if encoding == "numerical":
        numbers = _floats(features, key, where)
        if count and not numbers.size:
            return None
        if numbers.size != count * size[0] * size[1]:
            raise DataError(f"{where}: {key} has {numbers.size} numbers for {count} masks of {size[0]}×{size[1]}")
        # As in TF, any level above 0 belongs to the object, be it 1 or 255.
        return (numbers.reshape(count, *size) > 0).astype(np.uint8)
    values = _bytes(features, key, where)
    if count and not len(values):
        return None
    if len(values) != count:
        raise DataError(f"{where}: {key} has {len(values)} PNGs for {count} boxes")
    masks = np.zeros((count, *size), np.uint8)
    for number, png in enumerate(values):
        mask = decode_image(png, f"{where}: mask {number}")[..., 0]
        if mask.shape != size:
            raise DataError(f"{where}: mask {number} is {mask.shape[0]}×{mask.shape[1]}, the image {size[0]}×{size[1]}")
        masks[number] = mask > 0
    return masks


def _read_keypoint_fields(
    features: Features, count: int, size: tuple[int, int], wanted: RecordFields, where: str
) -> dict[str, Any]:
    """Return the fields of a sample that are of keypoints, by name."""
    names, named = wanted.keypoint_names, None
    if names is not None:
        named = names.located(_bytes(features, KEYPOINT_TEXT, where), count, where)
    points = (count, wanted.num_keypoints if named is None else named.places.shape[1])
    fields: dict[str, NDArray[np.float32]] = {}
    if wanted.num_keypoints:
        fields["keypoints"] = _keypoints(features, points, size, where)
    if wanted.keypoint_depths:
        fields["keypoint_depths"] = _depths(features, "z", points, where)
        fields["keypoint_depth_weights"] = _depths(features, "z/weights", points, where)
    return {name: values if named is None else named.put(values) for name, values in fields.items()}


def _keypoints(features: Features, shape: tuple[int, int], size: tuple[int, int], where: str) -> NDArray[np.float32]:
    """Return x, y in pixels and visibility of the keypoints, [N, P, 3]; `shape` is N and P."""
    count, num_keypoints = shape
    x, y = _floats(features, "image/object/keypoint/x", where), _floats(features, "image/object/keypoint/y", where)
    if len(x) != len(y) or len(x) != count * num_keypoints:
        raise DataError(
            f"{where}: {len(x)} and {len(y)} keypoint coordinates for {count} boxes of {num_keypoints} keypoints"
        )
    visible = _floats(features, "image/object/keypoint/visibility", where)
    if len(visible) not in (0, len(x)):
        raise DataError(f"{where}: image/object/keypoint/visibility has {len(visible)} values for {len(x)} keypoints")
    # TF's decoder takes a point for labeled unless its x is NaN.
    if not len(visible):
        visible = (~np.isnan(x)).astype(np.float32)
    points = np.stack([x * size[1], y * size[0], visible], axis=1)
    if not np.isfinite(points[points[:, 2] > 0]).all():
        raise DataError(f"{where}: image/object/keypoint: the position of a visible keypoint is not finite")
    return points.reshape(count, num_keypoints, 3).astype(np.float32)


def _depths(features: Features, name: str, size: tuple[int, int], where: str) -> NDArray[np.float32]:
    """Return a number for each keypoint, [N, P]; 0, which the loss ignores, if the record has none, as in TF."""
    key = f"image/object/keypoint/{name}"
    values = _floats(features, key, where)
    if not len(values):
        return np.zeros(size, np.float32)
    if len(values) != size[0] * size[1]:
        raise DataError(f"{where}: {key} has {len(values)} values for {size[0]} boxes of {size[1]} keypoints")
    if not np.isfinite(values).all():
        raise DataError(f"{where}: {key}: a value is not finite")
    return values.reshape(size)


def _track_ids(features: Features, count: int, where: str) -> NDArray[np.int64]:
    values = np.array(_wholes(features, "image/object/track/label", where), np.int64)
    if len(values) != count:
        raise DataError(f"{where}: image/object/track/label has {len(values)} values for {count} boxes")
    return values


def _read_object_floats(features: Features, key: str, count: int, where: str) -> NDArray[np.float32] | None:
    """Return a finite number for each object; None if the record has none."""
    values = _per_object(features, key, count, where, np.float32)
    if not np.isfinite(values).all():
        raise DataError(f"{where}: {key}: a value is not finite")
    return values if len(values) or not count else None


def _previous(
    features: Features, count: int, size: tuple[int, int], where: str
) -> tuple[NDArray[np.float32] | None, NDArray[np.float32] | None]:
    """Return offsets from the centers in the previous frame [N, 2], and whether the objects were there [N], or None."""
    key = "image/object/track/"
    y, x = (_read_object_floats(features, f"{key}offset/{axis}", count, where) for axis in ("y", "x"))
    if (x is None) != (y is None):
        raise DataError(f"{where}: {key}offset has y or x alone")
    if x is None or y is None:
        return None, None
    flags = _read_object_floats(features, f"{key}match", count, where)
    with np.errstate(over="ignore"):  # overflow gives infinity, which is rejected later
        offsets = np.stack([x * size[1], y * size[0]], 1)
    return offsets, np.ones(count, np.float32) if flags is None else flags


def _confidences(
    features: Features, labels: NDArray[np.int64], categories: Categories, where: str
) -> NDArray[np.float32]:
    """Return the confidence of each object's class, [N, K], 0 in the other classes; 1 if the record has none."""
    values = _read_object_floats(features, "image/object/class/confidence", len(labels), where)
    classes = np.eye(categories.num_slots, dtype=np.float32)[labels]
    return classes if values is None else classes * values[:, None]


def _dense_pose(features: Features, count: int, size: tuple[int, int], where: str) -> NDArray[np.float32]:
    """Return DensePose's points [N, D, 6]; a record without them has none."""
    key = "image/object/densepose/"
    counts, parts = (_whole_array(features, key + name, where) for name in ("num", "part_index"))
    if len(counts) not in (0, count):
        raise DataError(f"{where}: {key}num has {len(counts)} values for {count} boxes")
    if (counts < 0).any():
        raise DataError(f"{where}: {key}num: a box has {counts.min()} points")
    total = sum(counts.tolist())  # of Python's integers, which do not overflow
    x, y, u, v = (_floats(features, key + name, where) for name in ("x", "y", "u", "v"))
    for name, values in (("part_index", parts), ("x", x), ("y", y), ("u", u), ("v", v)):
        if len(values) != total:
            raise DataError(f"{where}: {key}{name} has {len(values)} values for {total} points in {key}num")
    with np.errstate(over="ignore"):  # overflow gives infinity, which is rejected
        x, y = x * np.float32(size[1]), y * np.float32(size[0])
    return PointList(counts if len(counts) else np.zeros(count, np.int64), parts, x, y, u, v).padded(where)
