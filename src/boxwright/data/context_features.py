"""Features of other images in a record (Context R-CNN), under the keys of the TF Object Detection API."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from boxwright.base.errors import DataError
from boxwright.data.example_messages import Example, Features
from boxwright.data.reading import whole_number

_FEATURES = "image/context_features"
_LENGTH = "image/context_feature_length"
_IMAGE_IDS = "image/context_features_image_id_list"


def read_context(features: Features, where: str) -> NDArray[np.float32]:
    """Return a record's context, float32 [M, F]; [0, 0] if it has none.

    Raises:
        DataError: If the numbers do not divide into features of the declared length, or one is not finite.
    """
    values, lengths = features.get(_FEATURES, ()), features.get(_LENGTH, ())
    if not len(values):
        return np.zeros((0, 0), np.float32)
    if isinstance(values[0], bytes):
        raise DataError(f"{where}: {_FEATURES}: expected numbers, found bytes")
    if len(lengths) != 1:
        raise DataError(f"{where}: {_LENGTH}: expected one number, found {len(lengths)}")
    length = whole_number(lengths[0], f"{where}: {_LENGTH}")
    if length < 1 or len(values) % length:
        raise DataError(f"{where}: {_FEATURES} has {len(values)} numbers, which are not features of {length} each")
    context = np.array(values, np.float32).reshape(-1, length)
    if not np.isfinite(context).all():
        raise DataError(f"{where}: {_FEATURES}: a number is not finite")
    return context


def read_context_image_ids(features: Features, where: str) -> tuple[str, ...]:
    """Return the ids of the images that a record's context features are of.

    Raises:
        DataError: If they are numbers.
    """
    values = features.get(_IMAGE_IDS, ())
    if len(values) and not isinstance(values[0], bytes):
        raise DataError(f"{where}: {_IMAGE_IDS}: expected texts, found the number {values[0]}")
    return tuple(value.decode("utf-8", "replace") for value in values)


def with_context(record: bytes, context: NDArray[np.float32], image_ids: Sequence[str]) -> bytes:
    """Return a serialized tf.train.Example with other context features; everything else stays.

    Args:
        context: float32 [M, F].
        image_ids: M ids of the images that they are of.
    """
    example = Example()
    example.ParseFromString(record)
    set_context(example.features.feature, context, image_ids)
    return bytes(example.SerializeToString(deterministic=True))


def set_context(feature: Any, context: NDArray[np.float32], image_ids: Sequence[str]) -> None:
    """Write context features into a protobuf map of features; the arguments are those of `with_context`."""
    for key in (_FEATURES, _LENGTH, _IMAGE_IDS):
        feature[key].Clear()
    feature[_FEATURES].float_list.value.extend(context.ravel().tolist())
    feature[_LENGTH].int64_list.value.append(context.shape[1])
    feature[_IMAGE_IDS].bytes_list.value.extend(image_id.encode() for image_id in image_ids)
