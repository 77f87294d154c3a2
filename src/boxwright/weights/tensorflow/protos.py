"""The protocol buffers in TensorFlow's checkpoints and graphs, declared without TensorFlow.

Only the fields that are used here are declared; others are ignored.
"""

from __future__ import annotations

from typing import Any

from google.protobuf import descriptor_pb2, descriptor_pool, message_factory

_KINDS = descriptor_pb2.FieldDescriptorProto
_SCALARS = {
    "int32": _KINDS.TYPE_INT32,
    "int64": _KINDS.TYPE_INT64,
    "fixed32": _KINDS.TYPE_FIXED32,
    "float": _KINDS.TYPE_FLOAT,
    "double": _KINDS.TYPE_DOUBLE,
    "bytes": _KINDS.TYPE_BYTES,
    "string": _KINDS.TYPE_STRING,
    "bool": _KINDS.TYPE_BOOL,
}
# Message → (field, number, type); a type with * is repeated. Numbers are those of tensor_bundle.proto,
# tensor_shape.proto, tensor_slice.proto, trackable_object_graph.proto, saved_tensor_slice.proto, tensor.proto,
# graph.proto, meta_graph.proto, node_def.proto and attr_value.proto.
_MESSAGES: dict[str, tuple[tuple[str, int, str], ...]] = {
    "Dim": (("size", 1, "int64"),),
    "Shape": (("dim", 2, "Dim*"), ("unknown_rank", 3, "bool")),
    "Extent": (("start", 1, "int64"), ("length", 2, "int64")),
    "Slice": (("extent", 1, "Extent*"),),
    "BundleHeader": (("num_shards", 1, "int32"), ("endianness", 2, "int32"), ("version", 3, "Version")),
    "Version": (("producer", 1, "int32"), ("min_consumer", 2, "int32")),
    "BundleEntry": (
        ("dtype", 1, "int32"),
        ("shape", 2, "Shape"),
        ("shard_id", 3, "int32"),
        ("offset", 4, "int64"),
        ("size", 5, "int64"),
        ("crc32c", 6, "fixed32"),
        ("slices", 7, "Slice*"),
    ),
    "Child": (("node_id", 1, "int32"), ("local_name", 2, "string")),
    "Attribute": (("name", 1, "string"), ("full_name", 2, "string"), ("checkpoint_key", 3, "string")),
    "Slot": (
        ("original_variable_node_id", 1, "int32"),
        ("slot_name", 2, "string"),
        ("slot_variable_node_id", 3, "int32"),
    ),
    "Node": (("children", 1, "Child*"), ("attributes", 2, "Attribute*"), ("slot_variables", 3, "Slot*")),
    "ObjectGraphProto": (("nodes", 1, "Node*"),),
    "Tensor": (
        ("dtype", 1, "int32"),
        ("shape", 2, "Shape"),
        ("content", 4, "bytes"),
        ("halves", 13, "int32*"),
        ("floats", 5, "float*"),
        ("doubles", 6, "double*"),
        ("ints", 7, "int32*"),
        ("longs", 10, "int64*"),
    ),
    "SliceMeta": (("name", 1, "string"), ("shape", 2, "Shape"), ("type", 3, "int32"), ("slice", 4, "Slice*")),
    "SlicesMeta": (("tensor", 1, "SliceMeta*"),),
    "SavedSlice": (("name", 1, "string"), ("slice", 2, "Slice"), ("data", 3, "Tensor")),
    "SavedTensorSlices": (("meta", 1, "SlicesMeta"), ("data", 2, "SavedSlice")),
    "AttrValue": (("tensor", 8, "Tensor"),),
    "Attr": (("key", 1, "string"), ("value", 2, "AttrValue")),
    "NodeDef": (("name", 1, "string"), ("op", 2, "string"), ("input", 3, "string*"), ("attr", 5, "Attr*")),
    "GraphDef": (("node", 1, "NodeDef*"),),
    "MetaGraphDef": (("graph", 2, "GraphDef"),),
}


def _declare() -> dict[str, Any]:
    file = descriptor_pb2.FileDescriptorProto(
        name="boxwright/checkpoint.proto", package="boxwright.ckpt", syntax="proto3"
    )
    for name, fields in _MESSAGES.items():
        message = file.message_type.add(name=name)
        for field, number, type_name in fields:
            label = _KINDS.LABEL_REPEATED if type_name.endswith("*") else _KINDS.LABEL_OPTIONAL
            base = type_name.rstrip("*")
            if base in _SCALARS:
                message.field.add(name=field, number=number, type=_SCALARS[base], label=label)
            else:
                message.field.add(
                    name=field,
                    number=number,
                    type=_KINDS.TYPE_MESSAGE,
                    label=label,
                    type_name=f".boxwright.ckpt.{base}",
                )
    pool = descriptor_pool.DescriptorPool()
    pool.Add(file)
    return {
        name: message_factory.GetMessageClass(pool.FindMessageTypeByName(f"boxwright.ckpt.{name}"))
        for name in _MESSAGES
    }


_CLASSES = _declare()
BundleHeader: Any = _CLASSES["BundleHeader"]
BundleEntry: Any = _CLASSES["BundleEntry"]
ObjectGraphProto: Any = _CLASSES["ObjectGraphProto"]
SavedTensorSlices: Any = _CLASSES["SavedTensorSlices"]
GraphDef: Any = _CLASSES["GraphDef"]
MetaGraphDef: Any = _CLASSES["MetaGraphDef"]
