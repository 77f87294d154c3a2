"""Protobuf's messages of TFRecord files: `tf.train.Example` of one image, `tf.train.SequenceExample` of several.

Both may have features of other images (Context R-CNN), under the keys of the TF Object Detection API.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from google.protobuf import descriptor_pb2, descriptor_pool, message_factory
from numpy.typing import NDArray

from boxwright.base.errors import DataError
from boxwright.data.reading import whole_number

# A list of bytes, floats or integers by key.
Features = dict[str, Sequence[Any]]

_KINDS = descriptor_pb2.FieldDescriptorProto
_PACKAGE = "boxwright.tf"


def parse_features(features: Any) -> Features:
    """Return a `Features` message's lists by key; of a feature without any kind, an empty one."""
    return {key: parse_values(feature) for key, feature in features.feature.items()}


def parse_values(feature: Any) -> Sequence[Any]:
    """Return a `Feature` message's list of bytes, floats or integers."""
    kind = feature.WhichOneof("kind")
    values: Sequence[Any] = getattr(feature, kind).value if kind else []
    return values


def _add(
    message: Any, name: str, number: int, kind: int, label: int, type_name: str = "", *, oneof: bool = False
) -> None:
    full_name = f".{_PACKAGE}.{type_name}" if type_name else None
    field = message.field.add(name=name, number=number, type=kind, label=label, type_name=full_name)
    if oneof:
        field.oneof_index = 0


def _add_map(file: Any, name: str, field: str, value: str) -> None:
    """Add a message that is a map from texts to other messages."""
    message = file.message_type.add(name=name)
    entry_name = "".join(word.capitalize() for word in field.split("_")) + "Entry"
    entry = message.nested_type.add(name=entry_name)
    entry.options.map_entry = True
    _add(entry, "key", 1, _KINDS.TYPE_STRING, _KINDS.LABEL_OPTIONAL)
    _add(entry, "value", 2, _KINDS.TYPE_MESSAGE, _KINDS.LABEL_OPTIONAL, value)
    _add(message, field, 1, _KINDS.TYPE_MESSAGE, _KINDS.LABEL_REPEATED, f"{name}.{entry_name}")


# Built here, since generated code does not run on releases of protobuf older than its compiler's; in a pool and package
# of its own, as TensorFlow registers the same messages where both are imported.
def _message_classes() -> tuple[Any, Any]:
    """Return the protobuf classes of tf.train.Example and tf.train.SequenceExample."""
    file = descriptor_pb2.FileDescriptorProto(name="boxwright/example.proto", package=_PACKAGE, syntax="proto3")
    lists = (
        ("BytesList", _KINDS.TYPE_BYTES),
        ("FloatList", _KINDS.TYPE_FLOAT),
        ("Int64List", _KINDS.TYPE_INT64),
    )
    for name, kind in lists:
        _add(file.message_type.add(name=name), "value", 1, kind, _KINDS.LABEL_REPEATED)
    feature = file.message_type.add(name="Feature")
    feature.oneof_decl.add(name="kind")
    # Field numbers of TensorFlow's feature.proto: on the wire there are no names.
    for number, (name, _) in enumerate(lists, start=1):
        snake = name.replace("List", "_list").lower()
        _add(feature, snake, number, _KINDS.TYPE_MESSAGE, _KINDS.LABEL_OPTIONAL, name, oneof=True)
    _add_map(file, "Features", "feature", "Feature")
    _add(file.message_type.add(name="FeatureList"), "feature", 1, _KINDS.TYPE_MESSAGE, _KINDS.LABEL_REPEATED, "Feature")
    _add_map(file, "FeatureLists", "feature_list", "FeatureList")
    example = file.message_type.add(name="Example")
    _add(example, "features", 1, _KINDS.TYPE_MESSAGE, _KINDS.LABEL_OPTIONAL, "Features")
    sequence = file.message_type.add(name="SequenceExample")
    _add(sequence, "context", 1, _KINDS.TYPE_MESSAGE, _KINDS.LABEL_OPTIONAL, "Features")
    _add(sequence, "feature_lists", 2, _KINDS.TYPE_MESSAGE, _KINDS.LABEL_OPTIONAL, "FeatureLists")
    pool = descriptor_pool.DescriptorPool()
    pool.Add(file)
    names = (f"{_PACKAGE}.Example", f"{_PACKAGE}.SequenceExample")
    classes = tuple(message_factory.GetMessageClass(pool.FindMessageTypeByName(name)) for name in names)
    return classes[0], classes[1]


Example, SequenceExample = _message_classes()


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
