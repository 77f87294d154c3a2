"""`tf.train.Example`: between the records of the TF Object Detection API and `Sample`.

Keys are those of the API's own converters: `image/encoded`, `image/object/bbox/ymin`, … Boxes are
stored normalised to 0..1, class ids start at 1.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Literal

import numpy as np
from google.protobuf import descriptor_pb2, descriptor_pool, message_factory
from google.protobuf.message import DecodeError
from numpy.typing import NDArray

from boxwright.data.image_io import decode_image, encode_png
from boxwright.errors import DataError
from boxwright.types import Categories, Sample

__all__ = ["MaskEncoding", "decode_example", "encode_example", "read_features"]

Features = dict[str, Sequence[Any]]
MaskEncoding = Literal["none", "png", "numerical"]


def _example_class() -> Any:
    """Declare tf.train.Example to protobuf: three lists, a oneof of them, a map of those."""
    file = descriptor_pb2.FileDescriptorProto(name="boxwright/example.proto", package="boxwright.tf", syntax="proto3")
    kinds = descriptor_pb2.FieldDescriptorProto

    def add(
        message: Any, name: str, number: int, kind: int, label: int, type_name: str = "", oneof: bool = False
    ) -> None:
        field = message.field.add(name=name, number=number, type=kind, label=label, type_name=type_name or None)
        if oneof:
            field.oneof_index = 0

    for name, kind in (
        ("BytesList", kinds.TYPE_BYTES),
        ("FloatList", kinds.TYPE_FLOAT),
        ("Int64List", kinds.TYPE_INT64),
    ):
        add(file.message_type.add(name=name), "value", 1, kind, kinds.LABEL_REPEATED)
    feature = file.message_type.add(name="Feature")
    feature.oneof_decl.add(name="kind")
    for number, name in enumerate(("BytesList", "FloatList", "Int64List"), start=1):
        snake = name.replace("List", "_list").lower()
        add(feature, snake, number, kinds.TYPE_MESSAGE, kinds.LABEL_OPTIONAL, f".boxwright.tf.{name}", oneof=True)
    features = file.message_type.add(name="Features")
    entry = features.nested_type.add(name="FeatureEntry")
    entry.options.map_entry = True
    add(entry, "key", 1, kinds.TYPE_STRING, kinds.LABEL_OPTIONAL)
    add(entry, "value", 2, kinds.TYPE_MESSAGE, kinds.LABEL_OPTIONAL, ".boxwright.tf.Feature")
    add(features, "feature", 1, kinds.TYPE_MESSAGE, kinds.LABEL_REPEATED, ".boxwright.tf.Features.FeatureEntry")
    example = file.message_type.add(name="Example")
    add(example, "features", 1, kinds.TYPE_MESSAGE, kinds.LABEL_OPTIONAL, ".boxwright.tf.Features")
    pool = descriptor_pool.DescriptorPool()
    pool.Add(file)
    return message_factory.GetMessageClass(pool.FindMessageTypeByName("boxwright.tf.Example"))


_Example = _example_class()


def read_features(record: bytes, where: str) -> Features:
    """Parse a record.

    Args:
        record: A serialized tf.train.Example.
        where: Its place, for errors.

    Returns:
        Key to its list of bytes, floats or integers.

    Raises:
        DataError: Where the bytes are no Example.
    """
    example = _Example()
    try:
        example.ParseFromString(record)
    except DecodeError:
        raise DataError(f"{where}: not a tf.train.Example") from None
    return {
        key: getattr(feature, feature.WhichOneof("kind")).value if feature.WhichOneof("kind") else []
        for key, feature in example.features.feature.items()
    }


def decode_example(
    features: Features,
    categories: Categories,
    where: str,
    *,
    masks: MaskEncoding = "none",
    num_keypoints: int = 0,
    multiclass_scores: bool = False,
    unknown: dict[str, str] | None = None,
) -> Sample:
    """Turn the features of a record into a sample.

    Where an object has a class text, that decides its class (by name, then by display name), and
    the class label only where there is no text at all. Objects of a class that the label map does
    not have are left out, and reported in `unknown`.

    Args:
        features: What `read_features` returned.
        categories: The label map.
        where: The record's place, for errors.
        masks: How instance masks are stored, if they are to be read.
        num_keypoints: Keypoints an object, if they are to be read.
        multiclass_scores: Whether scores of all classes are to be read.
        unknown: Gets class names that the label map lacks, each with where it was first met.

    Returns:
        The sample; boxes in pixels.

    Raises:
        DataError: Where a feature is missing, of another length than the boxes, or not decodable.
    """
    encoded = features.get("image/encoded")
    if not encoded:
        raise DataError(f"{where}: no image/encoded; found {', '.join(sorted(features)) or 'no features'}")
    image = decode_image(encoded[0], f"{where}: image/encoded", declared=_declared_size(features))
    height, width = image.shape[:2]
    corners = [_floats(features, f"image/object/bbox/{side}") for side in ("xmin", "ymin", "xmax", "ymax")]
    if len({len(side) for side in corners}) > 1:
        raise DataError(f"{where}: xmin, ymin, xmax, ymax have {[len(side) for side in corners]} values")
    boxes = np.stack(corners, axis=1) * np.array([width, height, width, height], np.float32)
    count = len(boxes)
    labels = _labels(features, categories, count, where, {} if unknown is None else unknown)
    sample = Sample(
        image=image,
        boxes=boxes,
        labels=labels,
        weights=_per_object(features, "image/object/weight", count, where, np.float32),
        difficult=_per_object(features, "image/object/difficult", count, where, np.bool_),
        is_crowd=_per_object(features, "image/object/is_crowd", count, where, np.bool_),
        group_of=_per_object(features, "image/object/group_of", count, where, np.bool_),
        areas=_per_object(features, "image/object/area", count, where, np.float32),
        masks=_masks(features, count, (height, width), masks, where),
        keypoints=_keypoints(features, count, num_keypoints, (height, width), where),
        class_scores=_class_scores(features, count, where) if multiclass_scores else None,
        verified_labels=_verified(features, categories),
        id=_text(features, "image/source_id") or _text(features, "image/filename"),
        filename=_text(features, "image/filename"),
    )
    return sample.keep(labels >= 0) if (labels < 0).any() else sample


def _class_scores(features: Features, count: int, where: str) -> NDArray[np.float32] | None:
    """Read the scores [N, K] of all classes; None where the record has none."""
    scores = _floats(features, "image/object/class/multiclass_scores")
    if not len(scores):
        return None
    if not count or len(scores) % count:
        raise DataError(f"{where}: image/object/class/multiclass_scores has {len(scores)} values for {count} objects")
    return scores.reshape(count, -1)


def _declared_size(features: Mapping[str, Sequence[Any]]) -> tuple[int, int] | None:
    height, width = features.get("image/height"), features.get("image/width")
    return (int(height[0]), int(width[0])) if height and width else None


def _floats(features: Mapping[str, Sequence[Any]], key: str) -> NDArray[np.float32]:
    return np.array(features.get(key, ()), np.float32)


def _text(features: Mapping[str, Sequence[Any]], key: str) -> str:
    values = features.get(key)
    return values[0].decode("utf-8", "replace") if values and isinstance(values[0], bytes) else ""


def _per_object(features: Features, key: str, count: int, where: str, dtype: type) -> NDArray[Any]:
    values: NDArray[Any] = np.array(features.get(key, ()), dtype)
    if len(values) not in (0, count):
        raise DataError(f"{where}: {key} has {len(values)} values for {count} boxes")
    return values


def _labels(
    features: Features, categories: Categories, count: int, where: str, unknown: dict[str, str]
) -> NDArray[np.int64]:
    texts, ids = features.get("image/object/class/text", ()), features.get("image/object/class/label", ())
    if not count:
        return np.zeros(0, np.int64)
    key, values = ("text", texts) if len(texts) else ("label", ids)
    if len(values) != count:
        raise DataError(f"{where}: image/object/class/{key} has {len(values)} values for {count} boxes")
    labels = []
    for value in values:
        found = (
            _by_text(value.decode("utf-8", "replace"), categories) if key == "text" else categories.by_id(int(value))
        )
        if found is None:
            unknown.setdefault(value.decode("utf-8", "replace") if key == "text" else f"id {value}", where)
        labels.append(-1 if found is None else found.label)
    return np.array(labels, np.int64)


def _verified(features: Features, categories: Categories) -> NDArray[np.int64]:
    """Read the classes that were verified for the whole image; others than the label map's are of no use."""
    found = (categories.by_id(int(value)) for value in features.get("image/class/label", ()))
    return np.array([category.label for category in found if category is not None], np.int64)


def _by_text(text: str, categories: Categories) -> Any:
    by_display = next((c for c in categories if c.display_name == text), None) if text else None
    return categories.by_name(text) or by_display


def _masks(
    features: Features, count: int, size: tuple[int, int], encoding: MaskEncoding, where: str
) -> NDArray[np.uint8] | None:
    if encoding == "none":
        return None
    values: Sequence[Any] = features.get("image/object/mask", ())
    if encoding == "numerical":
        numbers = np.array(values, np.float32)
        if numbers.size != count * size[0] * size[1]:
            raise DataError(
                f"{where}: image/object/mask has {numbers.size} numbers for {count} masks of {size[0]}×{size[1]}"
            )
        return (numbers.reshape(count, *size) > 0).astype(np.uint8)
    if len(values) != count:
        raise DataError(f"{where}: image/object/mask has {len(values)} PNGs for {count} boxes")
    masks = np.zeros((count, *size), np.uint8)
    for number, png in enumerate(values):
        mask = decode_image(png, f"{where}: mask {number}")[..., 0]
        if mask.shape != size:
            raise DataError(f"{where}: mask {number} is {mask.shape[0]}×{mask.shape[1]}, the image {size[0]}×{size[1]}")
        masks[number] = mask > 0
    return masks


def _keypoints(
    features: Features, count: int, num_keypoints: int, size: tuple[int, int], where: str
) -> NDArray[np.float32] | None:
    if not num_keypoints:
        return None
    x, y = _floats(features, "image/object/keypoint/x"), _floats(features, "image/object/keypoint/y")
    if len(x) != len(y) or len(x) != count * num_keypoints:
        raise DataError(
            f"{where}: {len(x)} and {len(y)} keypoint coordinates for {count} boxes of {num_keypoints} keypoints"
        )
    visible = np.array(features.get("image/object/keypoint/visibility", ()), np.float32)
    if not len(visible):
        visible = (~np.isnan(x)).astype(np.float32)
    points = np.stack([x * size[1], y * size[0], visible], axis=1)
    return points.reshape(count, num_keypoints, 3).astype(np.float32)


def encode_example(sample: Sample, image: bytes, categories: Categories) -> bytes:
    """Write a sample as a serialized tf.train.Example.

    Args:
        sample: The sample; masks (as PNG) and keypoints are written where there are any.
        image: The image file's bytes.
        categories: The classes; ids are labels plus 1.

    Returns:
        The record.
    """
    height, width = sample.image.shape[:2]
    example = _Example()
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
    for side, length, values in sides:
        feature[f"image/object/bbox/{side}"].float_list.value.extend((values.astype(np.float64) / length).tolist())
    feature["image/object/class/label"].int64_list.value.extend((sample.labels + 1).tolist())
    names = [categories.by_label(int(label)).name.encode() for label in sample.labels]
    feature["image/object/class/text"].bytes_list.value.extend(names)
    for name in ("difficult", "is_crowd", "group_of"):
        feature[f"image/object/{name}"].int64_list.value.extend(getattr(sample, name).astype(int).tolist())
    feature["image/object/weight"].float_list.value.extend(sample.weights.tolist())
    feature["image/object/area"].float_list.value.extend(sample.areas.tolist())
    if sample.masks is not None:
        feature["image/object/mask"].bytes_list.value.extend([encode_png(mask * 255) for mask in sample.masks])
    if sample.keypoints is not None:
        places = sample.keypoints.reshape(-1, 3)
        feature["image/object/keypoint/x"].float_list.value.extend((places[:, 0] / width).tolist())
        feature["image/object/keypoint/y"].float_list.value.extend((places[:, 1] / height).tolist())
        feature["image/object/keypoint/visibility"].int64_list.value.extend(places[:, 2].astype(int).tolist())
    return bytes(example.SerializeToString(deterministic=True))
