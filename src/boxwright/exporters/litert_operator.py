"""What a .tflite has beside its network, written into its flatbuffer: names, the detection operator, and metadata.

TensorFlow Lite's libraries (MediaPipe, the Task Library) read `ModelMetadata`: how pixels are scaled, what the outputs
are and where the labels are. Its schema is metadata_schema.fbs 1.1 (identifier M001); a table is written field by
field, in the schema's numbering. A union is two fields.

Dimensions: A anchors, D detections.
"""

from __future__ import annotations

import io
import zipfile
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from boxwright.base.errors import ExportError
from boxwright.runtime.litert_session import ANCHORS, INPUT, NETWORK_OUTPUTS
from boxwright.runtime.optional import require_library
from boxwright.types.detection_outputs import LITERT_KEPT, LITERT_OUTPUTS

OPERATOR = "TFLite_Detection_PostProcess"
_IDENTIFIER = b"TFL3"
_ALIGNMENT = 16  # of weights, for vector loads
# The earliest that zip can store, so that equal detectors give equal files.
_ZIP_TIME = (1980, 1, 1, 0, 0, 0)


class Lite:
    """A TensorFlow Lite model, as its schema's objects."""

    def __init__(self, model: Any, schema: Any) -> None:
        """Take a `ModelT` and its schema's module."""
        self._model, self._schema = model, schema

    @property
    def output_names(self) -> tuple[str, ...]:
        """The names of its outputs, in their order."""
        (graph,) = self._model.subgraphs
        return tuple(bytes(graph.tensors[index].name).decode() for index in graph.outputs)

    def packed(self, metadata: dict[str, bytes], files: dict[str, str]) -> bytes:
        """Return the file's bytes; ExportError for a network of 2 GB or more.

        Args:
            files: Texts packed behind the model, where TensorFlow Lite's libraries look for labels.
        """
        import flatbuffers

        # A model is packed twice, before and after the comparison, and must not keep the first metadata.
        kept = list(self._model.buffers), list(self._model.metadata or [])
        for name, content in metadata.items():
            self._model.metadata = [*(self._model.metadata or []), self._entry(name, content)]
        try:
            self._model.buffers = [self._aligned(buffer) for buffer in self._model.buffers]
            builder = flatbuffers.Builder(1 << 20)
            builder.Finish(self._model.Pack(builder), _IDENTIFIER)
        finally:
            self._model.buffers, self._model.metadata = kept
        return _with_files(bytes(builder.Output()), files)

    def _entry(self, name: str, content: bytes) -> Any:
        buffer, entry = self._schema.BufferT(), self._schema.MetadataT()
        buffer.data = np.frombuffer(content, np.uint8)
        self._model.buffers.append(buffer)
        entry.name, entry.buffer = name.encode(), len(self._model.buffers) - 1
        return entry

    def _aligned(self, buffer: Any) -> Any:
        """Return a buffer aligned as the schema demands, which the generated Python code ignores."""
        schema = self._schema
        if buffer.size:
            raise ExportError("litert: networks of 2 GB or more are not supported")

        class Aligned(schema.BufferT):  # type: ignore[misc, name-defined]  # the packer calls Pack of each part
            def Pack(self, builder: Any) -> int:  # noqa: N802  # the schema's name
                place = None
                if self.data is not None:
                    content = self.data.tobytes()
                    builder.StartVector(1, len(content), _ALIGNMENT)
                    builder.head -= len(content)
                    builder.Bytes[builder.head : builder.head + len(content)] = content
                    place = builder.EndVector()
                schema.BufferStart(builder)
                if place is not None:
                    schema.BufferAddData(builder, place)
                return int(schema.BufferEnd(builder))

        made = Aligned()
        made.data = buffer.data
        return made


def with_operator(network: bytes, anchors: NDArray[np.float32], options: dict[str, Any]) -> Lite:
    """Return a network with the detection operator behind it; its outputs are boxes, classes from 0, scores and count.

    Args:
        network: A .tflite that returns box codes and scores, in this order.
        anchors: float32 [A, 4]; y and x of the center, height and width in 0..1.
    """
    schema, model, given = _named_network(network, NETWORK_OUTPUTS)
    (graph,), (signature,) = model.subgraphs, model.signatureDefs
    buffer = schema.BufferT()
    buffer.data = np.frombuffer(np.ascontiguousarray(anchors, "<f4").tobytes(), np.uint8)
    model.buffers.append(buffer)
    laid = _tensor(schema, graph, ANCHORS, list(anchors.shape), len(model.buffers) - 1)
    most = options["max_detections"]
    shapes = ([1, most, 4], [1, most], [1, most], [1])
    output_indices = [
        _tensor(schema, graph, name, shape, 0) for name, shape in zip(LITERT_OUTPUTS, shapes, strict=True)
    ]
    graph.operators.append(_operator(schema, model, [*given, laid], output_indices, options))
    graph.outputs = output_indices
    signature.outputs = [
        _named(schema, name, index) for name, index in zip(LITERT_OUTPUTS, output_indices, strict=True)
    ]
    return Lite(model, schema)


def with_outputs(network: bytes, outputs: Sequence[str], kept: Sequence[str]) -> Lite:
    """Return a network that has its first outputs under these names; the others remain within, as named tensors."""
    schema, model, given = _named_network(network, (*outputs, *kept))
    (graph,), (signature,) = model.subgraphs, model.signatureDefs
    graph.outputs = given[: len(outputs)]
    signature.outputs = [_named(schema, name, index) for name, index in zip(outputs, graph.outputs, strict=True)]
    return Lite(model, schema)


def with_kept(data: bytes) -> bytes:
    """Return a file whose graph also returns the tensors that were kept within it; an interpreter may fuse these."""
    schema = require_library("ai_edge_litert.schema_py_generated", "litert")
    model = schema.ModelT.InitFromPackedBuf(data, 0)
    (graph,) = model.subgraphs
    places = {bytes(tensor.name).decode(): index for index, tensor in enumerate(graph.tensors)}
    kept = [places[name] for name in LITERT_KEPT if name in places]
    if not kept:
        return data
    graph.outputs = [*graph.outputs, *kept]
    model.signatureDefs = []  # these would have to name every output
    return Lite(model, schema).packed({}, {})


def _named_network(network: bytes, outputs: Sequence[str]) -> tuple[Any, Any, list[int]]:
    """Return the schema, a model whose input and outputs have names, and the tensors of its outputs, in their order."""
    schema = require_library("ai_edge_litert.schema_py_generated", "litert")
    model = schema.ModelT.InitFromPackedBuf(network, 0)
    model.description = b"boxwright"
    (graph,), (signature,) = model.subgraphs, model.signatureDefs
    # The signature lists the outputs in the program's order; the graph may not. output_10 comes after output_9.
    ordered = sorted(signature.outputs, key=lambda output: (len(output.name), output.name))
    given = [output.tensorIndex for output in ordered]
    for number, tensor in enumerate(graph.tensors):  # the converter's names are long and meaningless
        tensor.name = f"t{number}".encode()
    for name, index in zip((INPUT, *outputs), [*graph.inputs, *given], strict=True):
        graph.tensors[index].name = name.encode()
    signature.inputs[0].name = INPUT.encode()
    return schema, model, given


def _tensor(schema: Any, graph: Any, name: str, shape: list[int], buffer: int) -> int:
    made = schema.TensorT()
    made.name, made.shape, made.type, made.buffer = name.encode(), shape, schema.TensorType.FLOAT32, buffer
    graph.tensors.append(made)
    return len(graph.tensors) - 1


def _operator(schema: Any, model: Any, inputs: list[int], outputs: list[int], options: dict[str, Any]) -> Any:
    code, step = schema.OperatorCodeT(), schema.OperatorT()
    # Older interpreters only read the deprecated field, of 8 bits.
    code.builtinCode = code.deprecatedBuiltinCode = schema.BuiltinOperator.CUSTOM
    code.customCode, code.version = OPERATOR.encode(), 1
    model.operatorCodes.append(code)
    step.opcodeIndex = len(model.operatorCodes) - 1
    step.inputs, step.outputs = inputs, outputs
    step.customOptions = np.frombuffer(_flexbuffer(options), np.uint8)
    step.customOptionsFormat = schema.CustomOptionsFormat.FLEXBUFFERS
    return step


def _flexbuffer(options: dict[str, Any]) -> bytes:
    from flatbuffers import flexbuffers

    packer = flexbuffers.Builder()
    add = {bool: packer.Bool, int: packer.Int, float: packer.Float}
    with packer.Map():
        for name, value in options.items():
            packer.Key(name)
            add[type(value)](value)
    return bytes(packer.Finish())


def _named(schema: Any, name: str, index: int) -> Any:
    made = schema.TensorMapT()
    made.name, made.tensorIndex = name.encode(), index
    return made


def _with_files(model: bytes, files: dict[str, str]) -> bytes:
    """Return a model with an archive appended: archives are read from their end, models from their start."""
    if not files:
        return model
    whole = io.BytesIO(model)
    with zipfile.ZipFile(whole, "a", zipfile.ZIP_STORED) as archive:
        for name, text in files.items():
            archive.writestr(zipfile.ZipInfo(name, _ZIP_TIME), text)
    return whole.getvalue()


_METADATA_IDENTIFIER = b"M001"
_FEATURE, _IMAGE, _BOX = 1, 2, 3  # ContentProperties
_NORMALIZATION = 1  # ProcessUnitOptions
_RGB, _BOUNDARIES, _RATIO, _VALUE_LABELS = 1, 1, 0, 3
_ORDER = (1, 0, 3, 2)  # indices of x_min, y_min, x_max, y_max in (ymin, xmin, ymax, xmax)
# Names and descriptions of the outputs of keypoints, which have no properties of their own.
KEYPOINTS = (("keypoints", "y, x in 0..1."), ("keypoint scores", "In 0..1."))
Field = Callable[[int], Any]


def model_metadata(
    size: tuple[int, int],
    scale: Sequence[float],
    offset: Sequence[float],
    labels: str,
    more: Sequence[tuple[str, str]] = (),
) -> bytes:
    """Return the flatbuffer.

    Args:
        scale: Per channel, of pixel values in 0..255.
        labels: The name of the packed file with the class names; empty for none.
        more: Names and descriptions of outputs after the operator's four.
    """
    writer = _Writer()
    # The libraries compute (pixel - mean) / deviation.
    mean, deviation = [-b / a for a, b in zip(scale, offset, strict=True)], [1 / a for a in scale]
    most, least = ([a * value + b for a, b in zip(scale, offset, strict=True)] for value in (255.0, 0.0))
    image = writer.table(writer.byte(_RGB), writer.table_field(writer.whole(size[1]), writer.whole(size[0])))
    scaled = writer.table(writer.floats(mean), writer.floats(deviation))
    unit = writer.table(writer.byte(_NORMALIZATION), writer.reference(scaled))
    given = writer.tensor(
        "image",
        "The picture, resized and scaled.",
        writer.content(_IMAGE, image),
        writer.tables(unit),
        writer.table_field(writer.floats(most), writer.floats(least)),
    )
    order = writer.table(writer.wholes(_ORDER), writer.byte(_BOUNDARIES), writer.byte(_RATIO))
    file = writer.tables(
        writer.table(writer.text(labels), writer.text("Names of the classes."), writer.byte(_VALUE_LABELS))
    ) if labels else None  # fmt: skip
    output_tables = writer.tables(
        writer.tensor("location", "ymin, xmin, ymax, xmax in 0..1.", writer.content(_BOX, order, (2, 2))),
        writer.tensor("category", "From 0.", writer.content(_FEATURE, writer.table(), (1, 1)), None, None, file),
        writer.tensor("score", "Best first.", writer.content(_FEATURE, writer.table(), (1, 1))),
        writer.tensor("number of detections", "How many rows count.", writer.content(_FEATURE, writer.table())),
        *(writer.tensor(name, told, writer.content(_FEATURE, writer.table())) for name, told in more),
    )
    graph = writer.table(None, None, writer.tables(given), output_tables)
    name, version = writer.text("Boxwright detector"), writer.text("1.0.0")
    return writer.finished(writer.table(name, None, None, writer.tables(graph), None, None, None, version))


class _Writer:
    """Writes tables, innermost first, as flatbuffers require."""

    def __init__(self) -> None:
        import flatbuffers

        self._builder = flatbuffers.Builder(1024)

    def table(self, *fields: Field | None) -> int:
        self._builder.StartObject(len(fields))
        for number, write in enumerate(fields):
            if write is not None:
                write(number)
        return int(self._builder.EndObject())

    def finished(self, root: int) -> bytes:
        self._builder.Finish(root, _METADATA_IDENTIFIER)
        return bytes(self._builder.Output())

    def reference(self, place: int) -> Field:
        return lambda number: self._builder.PrependUOffsetTRelativeSlot(number, place, 0)

    def table_field(self, *fields: Field | None) -> Field:
        return self.reference(self.table(*fields))

    def text(self, value: str) -> Field:
        return self.reference(self._builder.CreateString(value))

    def byte(self, value: int) -> Field:
        return lambda number: self._builder.PrependInt8Slot(number, value, 0)

    def whole(self, value: int) -> Field:
        return lambda number: self._builder.PrependUint32Slot(number, value, 0)

    def floats(self, values: Sequence[float]) -> Field:
        return self._vector(values, self._builder.PrependFloat32)

    def wholes(self, values: Sequence[int]) -> Field:
        return self._vector(values, self._builder.PrependUint32)

    def tables(self, *places: int) -> Field:
        return self._vector(places, self._builder.PrependUOffsetTRelative)

    def content(self, kind: int, properties: int, of: tuple[int, int] | None = None) -> Field:
        range_of = None if of is None else self.table_field(self.whole(of[0]), self.whole(of[1]))
        return self.table_field(self.byte(kind), self.reference(properties), range_of)

    def tensor(
        self,
        name: str,
        description: str,
        content: Field,
        units: Field | None = None,
        span: Field | None = None,
        files: Field | None = None,
    ) -> int:
        return self.table(self.text(name), self.text(description), None, content, units, span, files)

    def _vector(self, values: Sequence[Any], prepend: Callable[[Any], None]) -> Field:
        self._builder.StartVector(4, len(values), 4)
        # Flatbuffers are written from their end.
        for value in reversed(values):
            prepend(value)
        return self.reference(self._builder.EndVector())
