"""`tf.train.Example`: writing samples as records of the TF Object Detection API, under the keys that are read."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from boxwright.data.dense_pose import point_list
from boxwright.data.example_messages import Example
from boxwright.data.image_io import encode_png
from boxwright.data.keypoint_names import KEYPOINT_TEXT, names_of_objects
from boxwright.data.tf_example import ATTRIBUTE
from boxwright.types import Categories, Sample


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
