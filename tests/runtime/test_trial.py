"""Files that end, stop or fill the process that opens them end a child instead."""

from __future__ import annotations

import re
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from ai_edge_litert import schema_py_generated as schema
from onnx import TensorProto, helper, numpy_helper

from boxwright.base.errors import ExportError
from boxwright.exporters.onnx_file import onnx_bytes
from boxwright.runtime import sessions
from boxwright.runtime.export_file import ExportFile, read_export_file
from boxwright.runtime.metadata import UNSEALED, Metadata, seal
from boxwright.runtime.sessions import read_metadata
from boxwright.runtime.trial import try_in_child
from boxwright.weights.exports import open_export
from tests.exporters.tiny_exports import ABOUT, tiny_export

OPENER = sessions.__name__


@pytest.mark.slow
def test_a_good_file_passes() -> None:
    for suffix in (".onnx", ".xml", ".tflite"):
        try_in_child(read_export_file(tiny_export(suffix)), OPENER)
    try_in_child(read_export_file(tiny_export(".pt2")), "boxwright.weights.exports")


def test_an_error_of_the_child_is_told_as_it_is() -> None:
    with pytest.raises(ExportError, match=r"^a\.onnx is not an ONNX file, or damaged"):
        try_in_child(ExportFile(Path("a.onnx"), b"rubbish"), OPENER)


def crashing_litert(path: Path) -> None:
    """Write a sealed .tflite whose split names no tensor for its axis, at which LiteRT ends by SIGSEGV."""
    import flatbuffers

    model = schema.ModelT.InitFromPackedBuf(tiny_export(".tflite").read_bytes(), 0)
    split = model.subgraphs[0].operators[1]
    split.inputs = [*list(split.inputs)[:2], -1]
    for entry in model.metadata:
        if entry.name == b"BOXWRIGHT":
            text = bytes(model.buffers[entry.buffer].data).decode()
            about = replace(Metadata.from_json(text, "it"), checksum=UNSEALED)
            model.buffers[entry.buffer].data = np.frombuffer(about.to_json().encode(), np.uint8)
    builder = flatbuffers.Builder(4096)
    builder.Finish(model.Pack(builder), b"TFL3")
    path.write_bytes(seal([bytes(builder.Output())])[0])


def crashing_openvino(path: Path) -> None:
    """Write a sealed .xml whose Slice lacks all but two inputs, at which OpenVINO ends by SIGSEGV."""
    source = tiny_export(".xml")
    checksum = read_metadata(source).checksum.encode()
    text = source.read_bytes().replace(checksum, UNSEALED.encode())
    (layer,) = re.findall(rb'<layer id="(\d+)" name="detection_scores" type="Slice"', text)
    text, removed = re.subn(rb'<edge [^>]*to-layer="%s" to-port="[2-9]" />' % layer, b"", text)
    assert removed == 3
    weights = source.with_suffix(".bin").read_bytes()
    path.write_bytes(seal([text, weights])[0])
    path.with_suffix(".bin").write_bytes(weights)


@pytest.mark.parametrize(("suffix", "write"), [(".tflite", crashing_litert), (".xml", crashing_openvino)])
def test_what_crashes_a_runtime_is_an_error_in_a_line(suffix: str, write: Any, tmp_path: Path) -> None:
    path = tmp_path / f"a{suffix}"
    write(path)
    with pytest.raises(
        ExportError, match=r"cannot be opened: its runtime crashes the process that opens it \(SIG[A-Z]+\)"
    ):
        open_export(path)


def graph(nodes: list[Any], constants: list[Any]) -> bytes:
    """Return a sealed ONNX model that finds what `nodes` make of it in "detection_boxes"."""
    shapes = {"detection_boxes": (2, 4), "detection_scores": (2,), "detection_classes": (2,), "num_detections": ()}
    outputs = [helper.make_tensor_value_info(name, TensorProto.FLOAT, ["b", *shape]) for name, shape in shapes.items()]
    image = helper.make_tensor_value_info("input_tensor", TensorProto.UINT8, ["b", "h", "w", 3])
    plain = [("ones", "detection_scores"), ("ones", "detection_classes"), ("two", "num_detections")]
    nodes = [*nodes, *(helper.make_node("Identity", [given], [found]) for given, found in plain)]
    constants = [*constants, constant("ones", np.ones((1, 2))), constant("two", np.full(1, 2))]
    made = helper.make_graph(nodes, "g", [image], outputs, constants)
    return onnx_bytes(helper.make_model(made, opset_imports=[helper.make_opsetid("", 20)], ir_version=9), ABOUT)


def constant(name: str, values: Any, dtype: Any = np.float32) -> Any:
    return numpy_helper.from_array(np.asarray(values, dtype), name)


def endless() -> bytes:
    """Return a model whose loop has no end: its condition is true, and it has no count."""
    boxes = ("v", TensorProto.FLOAT, [1, 2, 4])
    body = helper.make_graph(
        [helper.make_node("Identity", ["go"], ["going"]), helper.make_node("Identity", ["v"], ["w"])],
        "body",
        [helper.make_tensor_value_info("i", TensorProto.INT64, []), helper.make_tensor_value_info("go", TensorProto.BOOL, []), helper.make_tensor_value_info(*boxes)],
        [helper.make_tensor_value_info("going", TensorProto.BOOL, []), helper.make_tensor_value_info("w", TensorProto.FLOAT, [1, 2, 4])],
    )  # fmt: skip
    loop = helper.make_node("Loop", ["", "true", "boxes"], ["detection_boxes"], body=body)
    return graph([loop], [constant("true", True, np.bool_), constant("boxes", np.ones((1, 2, 4)))])


def enormous() -> bytes:
    """Return a model of a kilobyte whose constant has 10¹⁰ numbers."""
    nodes = [
        helper.make_node("ConstantOfShape", ["shape"], ["all"]),
        helper.make_node("ReduceSum", ["all"], ["sum"], keepdims=0),
        helper.make_node("Mul", ["boxes", "sum"], ["detection_boxes"]),
    ]
    return graph(nodes, [constant("shape", [10**5, 10**5], np.int64), constant("boxes", np.ones((1, 2, 4)))])


def test_a_loop_without_end_is_ended(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("BOXWRIGHT_MAX_TRIAL_SECONDS", "2")
    with pytest.raises(ExportError, match="not opened and run within 2 s .BOXWRIGHT_MAX_TRIAL_SECONDS"):
        try_in_child(ExportFile(Path("a.onnx"), endless()), OPENER)


def test_a_constant_of_forty_gigabytes_is_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("BOXWRIGHT_MAX_TRIAL_BYTES", "2000000000")
    with pytest.raises(ExportError, match="cannot be run by ONNX Runtime|more memory than"):
        try_in_child(ExportFile(Path("a.onnx"), enormous()), OPENER)


def test_what_is_stopped_leaves_no_child() -> None:
    asked: list[bool] = []

    def stopped() -> bool:
        asked.append(True)
        return len(asked) > 3

    with pytest.raises(ExportError, match="the server is shutting down"):
        try_in_child(ExportFile(Path("a.onnx"), endless()), OPENER, stopped)


GRANDCHILD = """
import subprocess, sys
from pathlib import Path
from types import SimpleNamespace

def open_bytes(file, threads):
    child = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"])
    Path(file.data.decode()).write_text(str(child.pid))
    return SimpleNamespace(run=lambda images: {}, metadata=SimpleNamespace(image_channels=3, image_size=()))
"""


def test_a_process_that_a_library_starts_neither_delays_nor_outlives_the_trial(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It has the child's standard output, whose end a reader of a pipe would await for ten minutes."""
    (tmp_path / "starts_another.py").write_text(GRANDCHILD)
    monkeypatch.syspath_prepend(tmp_path)
    try_in_child(ExportFile(Path("a.onnx"), str(tmp_path / "pid").encode()), "starts_another")
    status = Path("/proc") / (tmp_path / "pid").read_text() / "status"
    until = time.monotonic() + 120  # a killed process goes when the system has the time
    while status.is_file() and not re.search(r"State:\s+[ZX]", status.read_text()):
        assert time.monotonic() < until
        time.sleep(0.05)


OUTSIDE = {
    "an absolute path": "/etc/passwd",
    "a path upwards": "../../../../etc/passwd",
    "a neighbour": "weights.data",
    "the memory of the process": "*/_ORT_MEM_ADDR_/*",
}


@pytest.mark.parametrize("kind", OUTSIDE)
@pytest.mark.parametrize("place", ["a weight", "a constant in a loop"])
def test_data_outside_the_file_is_refused(kind: str, place: str, tmp_path: Path) -> None:
    weight = onnx.TensorProto(name="outside", data_type=TensorProto.FLOAT, data_location=TensorProto.EXTERNAL)
    weight.dims.extend([1, 2, 4])
    for key, value in (("location", OUTSIDE[kind]), ("offset", "64"), ("length", "32")):
        entry = weight.external_data.add()
        entry.key, entry.value = key, value
    if place == "a weight":
        data = graph([helper.make_node("Identity", ["outside"], ["detection_boxes"])], [weight])
    else:
        branches = {
            name: helper.make_graph(
                [helper.make_node("Constant", [], ["c"], value=weight)], name, [],
                [helper.make_tensor_value_info("c", TensorProto.FLOAT, [1, 2, 4])],
            )
            for name in ("then_branch", "else_branch")
        }  # fmt: skip
        data = graph(
            [helper.make_node("If", ["yes"], ["detection_boxes"], **branches)], [constant("yes", True, np.bool_)]
        )
    path = tmp_path / "a.onnx"
    path.write_bytes(data)
    (tmp_path / "weights.data").write_bytes(bytes(1000))
    with pytest.raises(ExportError, match="refers to data in other files, which Boxwright never writes"):
        open_export(path)


def test_numbers_of_objects_that_there_are_no_boxes_for(tmp_path: Path) -> None:
    nodes = [helper.make_node("Identity", ["boxes"], ["detection_boxes"])]
    path = tmp_path / "a.onnx"
    path.write_bytes(graph(nodes, [constant("boxes", np.ones((1, 1, 4)))]))
    with pytest.raises(ExportError, match="do not have a detector.s shapes"):
        open_export(path).detect([np.zeros((8, 8, 3), np.uint8)])
