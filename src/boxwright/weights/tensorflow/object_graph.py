"""TF2's object graph: the variable at each path of attributes in a checkpoint.

A variable with several paths (EfficientDet's backbone is an attribute twice) is stored once, so a path is looked up by
walking the graph. Of the protocol buffers in TensorFlow's checkpoints and graphs, `TensorProto` (an array) among them,
only the fields that are used are declared here; others are ignored.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import numpy as np
from google.protobuf import descriptor_pb2, descriptor_pool, message_factory
from numpy.typing import NDArray

from boxwright.base.limits import CHECKPOINT_BYTES
from boxwright.nn.tensorflow_names.checkpoint_keys import ATTRIBUTE, escaped

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


# Number of a type in types.proto → NumPy's name, and the field of its values.
_TYPES = {
    1: ("float32", "floats"),
    2: ("float64", "doubles"),
    3: ("int32", "ints"),
    9: ("int64", "longs"),
    14: ("bfloat16", "halves"),
    19: ("float16", "halves"),
}


def check_sizes(tensors: Iterable[tuple[int, Sequence[int]]]) -> None:
    """Raise a ValueError if tensors, by type number and shape, exceed the memory limit.

    A few bytes may stand for a large constant tensor.
    """
    shapes = [shape for dtype, shape in tensors if dtype in _TYPES and min(shape, default=0) >= 0]
    # 8 bytes, the widest of the types, bound each number.
    total = sum(8 * math.prod(shape) for shape in shapes)
    if problem := CHECKPOINT_BYTES.exceeded(total):
        raise ValueError(problem)


def to_array(proto: Any, dtype: int, shape: tuple[int, ...]) -> NDArray[Any]:
    """Return a tensor as an array; bfloat16 as float32.

    Raises:
        ValueError: If type, shape and values are inconsistent, or a limit is exceeded.
    """
    if dtype not in _TYPES:
        raise ValueError(f"tensors of type {dtype} are not supported")
    name, field = _TYPES[dtype]
    stored = np.dtype("uint16") if field == "halves" else np.dtype(name)
    if min(shape, default=0) < 0:
        raise ValueError(f"shape {list(shape)}")
    count = math.prod(shape)
    if problem := CHECKPOINT_BYTES.exceeded(count * stored.itemsize):
        raise ValueError(problem)
    if proto.content:
        if len(proto.content) != count * stored.itemsize:
            raise ValueError(f"{len(proto.content)} bytes do not fit shape {list(shape)}")
        values = np.frombuffer(proto.content, stored.newbyteorder("<"))
    else:
        listed = getattr(proto, field)
        # TensorFlow truncates repeated values: the last one stands for all that are missing.
        if len(listed) > count or (count and not listed):
            raise ValueError(f"{len(listed)} values do not fit shape {list(shape)}")
        values = np.array(listed, np.uint32).astype(np.uint16) if field == "halves" else np.array(listed, stored)
        if len(values) < count:
            values = np.concatenate([values, np.full(count - len(values), values[-1], values.dtype)])
    if name == "bfloat16":
        values = (values.astype(np.uint32) << 16).view(np.float32)
    elif name == "float16":
        values = values.view(np.float16)
    return values.astype(values.dtype.newbyteorder("="), copy=False).reshape(shape)


GRAPH_KEY = "_CHECKPOINTABLE_OBJECT_GRAPH"


class ObjectGraph:
    """A parsed graph."""

    def __init__(self, proto: Any) -> None:
        """Index the children of every node of an `ObjectGraphProto`."""
        self._children = [{escaped(child.local_name): child.node_id for child in node.children} for node in proto.nodes]
        self._keys = [
            next((a.checkpoint_key for a in node.attributes if a.name == "VARIABLE_VALUE"), None)
            for node in proto.nodes
        ]
        self._slots = {
            (slot.original_variable_node_id, slot.slot_name): slot.slot_variable_node_id
            for node in proto.nodes
            for slot in node.slot_variables
        }

    def resolve(self, path: str, slot: str = "") -> str | None:
        """Return the checkpoint's key of a variable; None if there is none.

        Args:
            path: Attribute names from the root, separated by slashes.
            slot: The name of an optimizer's slot of that variable, such as "average"; empty for the variable itself.
        """
        if not self._children:
            return None
        node = 0
        for name in path.split("/"):
            child = self._children[node].get(name)
            if child is None or not 0 <= child < len(self._children):
                return None
            node = child
        if slot:
            child = self._slots.get((node, slot))
            if child is None or not 0 <= child < len(self._keys):
                return None
            node = child
        return self._keys[node]


def build_graph(keys: Iterable[str], aliases: Mapping[str, str]) -> Any:
    """Return the `ObjectGraphProto` of a checkpoint: a tree of its keys' paths, with aliases of some nodes.

    Args:
        keys: Keys of variables, each ending in `ATTRIBUTE`.
        aliases: Additional paths of nodes to their primary paths.
    """
    graph = ObjectGraphProto()
    graph.nodes.add()
    numbers: dict[str, int] = {"": 0}

    def node(path: str) -> int:
        if path not in numbers:
            parent, _, name = path.rpartition("/")
            above = node(parent)
            numbers[path] = len(graph.nodes)
            graph.nodes.add()
            unescaped = re.sub(r"\.([.S])", lambda match: "." if match[1] == "." else "/", name)
            graph.nodes[above].children.add(node_id=numbers[path], local_name=unescaped)
        return numbers[path]

    for key in keys:
        path = key.removesuffix(ATTRIBUTE)
        graph.nodes[node(path)].attributes.add(
            name="VARIABLE_VALUE", full_name=path.rpartition("/")[2], checkpoint_key=key
        )
    for alias, path in aliases.items():
        parent, _, name = alias.rpartition("/")
        if path in numbers and alias not in numbers:
            graph.nodes[node(parent)].children.add(node_id=numbers[path], local_name=name)
    return graph
