"""Converting a program to one ONNX file, and that to OpenVINO's .xml and .bin, in the detector's precision.

Dimensions: B batch, n candidates, K classes, m kept pairs.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch

from boxwright.base.errors import ExportError, OutputError, first_line
from boxwright.base.files import shown, write_whole
from boxwright.base.quiet import quiet
from boxwright.exporters.graph import INPUT, PREPROCESSED
from boxwright.exporters.settings import OPSET
from boxwright.runtime.metadata import KEY, Metadata, seal
from boxwright.runtime.optional import require_library


def openvino_model(onnx: bytes) -> Any:
    """Return an ONNX model as OpenVINO's."""
    runtime = require_library("openvino", "openvino")
    return runtime.Core().read_model(onnx)


def save_openvino(model: Any, metadata: Metadata, path: Path) -> None:
    """Write a model's .xml and .bin; OutputError if the disk is full or the folder cannot be written."""
    runtime = require_library("openvino", "openvino")
    model.set_rt_info(metadata.to_json(), [KEY])
    try:
        # By default OpenVINO saves weights as float16.
        # It takes no other ending, not even in capitals.
        written = path.with_suffix(".xml")
        runtime.save_model(model, str(written), compress_to_fp16=False)
        parts = [written.read_bytes(), path.with_suffix(".bin").read_bytes()]
        sealed = seal(parts)[0]
        written.unlink()
    except (RuntimeError, OSError, ValueError) as error:  # ValueError: written incompletely
        raise OutputError(
            f"{shown(path)}: could not be written by OpenVINO (is the disk full?): {first_line(error)}"
        ) from None
    write_whole(path, sealed)


_SIDES = ("batch", "height", "width")


def onnx_model(program: torch.export.ExportedProgram, opset: int = OPSET) -> Any:
    """Return a program as an `onnx.ModelProto`, without the exporter's notes about source files.

    Args:
        program: From `detection_program`, with the network's input as an output; here it keeps its name, but is no
            output.
        opset: The version of ONNX's operators.

    Raises:
        ExportError: If PyTorch cannot write the program in that version.
    """
    onnx = require_library("onnx", "onnx")
    require_library("onnxscript", "onnx")
    names: list[str] = list(program.call_spec.out_spec.context)  # the graph's output keys
    with torch.no_grad(), quiet():
        exported = torch.onnx.export(
            program,
            dynamo=True,
            opset_version=opset,
            verbose=False,
            input_names=[INPUT],
            output_names=names,
            custom_translation_table={torch.ops.boxwright.suppress_pairs.default: _non_max_suppression},
        )
    model = exported.model_proto if exported is not None else None
    if model is None:
        raise RuntimeError("torch.onnx.export returned nothing")
    _tidy(model, [name for name in names if name != PREPROCESSED])
    onnx.checker.check_model(model)
    # PyTorch leaves a graph in another version, without an error, where it cannot convert an operator.
    written = next(entry.version for entry in model.opset_import if entry.domain == "")
    if written != opset:
        raise ExportError(f"--opset {opset}: an operator cannot be converted to it; PyTorch wrote opset {written}")
    return model


def _non_max_suppression(
    boxes: Any, scores: Any, labels: Any, num_classes: int, iou_threshold: float, max_per_class: int
) -> Any:
    """Translate `boxwright::suppress_pairs`: one row of scores per class, -1 for pairs of other classes."""
    from onnxscript import opset20 as op

    def numbers(*values: int) -> Any:
        return op.Constant(value_ints=list(values))

    classes = op.Unsqueeze(numbers(*range(num_classes)), numbers(0, 2))
    own = op.Equal(op.Unsqueeze(labels, numbers(1)), classes)
    by_class = op.Where(own, op.Unsqueeze(scores, numbers(1)), op.Constant(value_float=-1.0))
    chosen = op.NonMaxSuppression(
        boxes,
        by_class,
        numbers(max_per_class),
        op.Constant(value_floats=[iou_threshold]),
        # The least score: between -1, which marks pairs of other classes, and 0.
        op.Constant(value_floats=[-0.5]),
    )
    places = op.Gather(chosen, numbers(0, 2), axis=1)
    ones = op.Expand(op.Constant(value_floats=[1.0]), op.Shape(places, end=1))
    none = op.ConstantOfShape(op.Shape(scores))
    return op.Greater(op.ScatterND(none, places, ones), op.Constant(value_float=0.0))


def _tidy(model: Any, outputs: list[str]) -> None:
    """Keep the named outputs and what they need; name the dimensions; drop the exporter's notes."""
    graph = model.graph
    for holder in (model, graph, *graph.node, *graph.input, *graph.output, *graph.value_info, *graph.initializer):
        for field in ("metadata_props", "doc_string"):
            if field in holder.DESCRIPTOR.fields_by_name:
                holder.ClearField(field)
    graph.ClearField("value_info")
    graph.name = KEY
    shape = graph.input[0].type.tensor_type.shape
    symbols = {shape.dim[number].dim_param: name for number, name in enumerate(_SIDES)}
    for value in (*graph.input, *graph.output):
        for side in value.type.tensor_type.shape.dim:
            if side.dim_param:
                side.dim_param = symbols.get(side.dim_param, side.dim_param)
    kept = {value.name: value for value in graph.output}
    del graph.output[:]
    graph.output.extend(kept[name] for name in outputs)
    _prune(graph)


def _prune(graph: Any) -> None:
    """Drop nodes and weights that no output needs; the network's input is kept."""
    needed, nodes = {value.name for value in graph.output}, []
    for node in reversed(graph.node):
        if needed & set(node.output):
            needed |= set(node.input)
            nodes.append(node)
    # As bytes: deleting from a repeated field invalidates its messages.
    kept = [node.SerializeToString() for node in reversed(nodes)]
    del graph.node[:]
    for data in kept:
        graph.node.add().ParseFromString(data)
    for number in reversed(range(len(graph.initializer))):
        if graph.initializer[number].name not in needed:
            del graph.initializer[number]


def onnx_bytes(model: Any, metadata: Metadata) -> bytes:
    """Return a model's bytes, deterministic, with `metadata` in place of its own, and its checksum."""
    del model.metadata_props[:]
    entry = model.metadata_props.add()
    entry.key, entry.value = KEY, metadata.to_json()
    model.producer_name, model.producer_version = KEY, metadata.boxwright
    data: bytes = model.SerializeToString(deterministic=True)
    return seal([data])[0]


def with_output(data: bytes, name: str) -> bytes:
    """Return a model with an intermediate value, such as `PREPROCESSED`, as an additional output."""
    onnx = require_library("onnx", "onnx")
    model = onnx.load_model_from_string(data)
    model.graph.output.append(onnx.helper.make_tensor_value_info(name, onnx.TensorProto.FLOAT, None))
    more: bytes = model.SerializeToString()
    return more
