"""Protobuf's messages of TFRecord files: `tf.train.Example` of one image, `tf.train.SequenceExample` of several."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from google.protobuf import descriptor_pb2, descriptor_pool, message_factory

# A list of bytes, floats or integers by key.
Features = dict[str, Sequence[Any]]

_KINDS = descriptor_pb2.FieldDescriptorProto
_PACKAGE = "boxwright.tf"


def features_of(features: Any) -> Features:
    """Return a `Features` message's lists by key; of a feature without any kind, an empty one."""
    return {key: values_of(feature) for key, feature in features.feature.items()}


def values_of(feature: Any) -> Sequence[Any]:
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
