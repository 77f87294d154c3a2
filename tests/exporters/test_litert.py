"""LiteRT: the operator behind a network, what its file says, and whole detectors where the converter is there."""

from __future__ import annotations

import io
import json
import os
import subprocess
import sys
import zipfile
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from ai_edge_litert import schema_py_generated as schema
from flatbuffers.number_types import Float32Flags, Int8Flags, UOffsetTFlags
from flatbuffers.table import Table
from numpy.typing import NDArray

import boxwright as bw
from boxwright.base.errors import ExportError
from boxwright.exporters.export import ExportDescription, describe, export
from boxwright.exporters.litert_file import (
    PYTHON,
    LiteDetector,
    _converted,
    litert_input,
    litert_model,
    save_litert,
    whole_program,
)
from boxwright.exporters.litert_operator import Lite, with_operator, with_outputs
from boxwright.nn.ops.boxes import FasterRcnnBoxCoder
from boxwright.nn.ops.resize import resize_antialiased
from boxwright.nn.postprocessing.nms import Nms, PerClass
from boxwright.runtime.export_file import read_export_file
from boxwright.runtime.exported import ExportedDetector
from boxwright.runtime.litert_session import LABELS, LitertSession, _antialiased
from boxwright.runtime.sessions import open_session
from boxwright.types import Categories
from tests.center_nets import CENTER_NET, KEYPOINT_LABEL_MAP, of_one_class, with_masks, with_temporal_offsets
from tests.center_nets import SIZE as SIZE_OF_CENTER_NET
from tests.d_fines import D_FINE
from tests.exporters.small_detectors import CATEGORIES, FAMILIES, SQUARE, build, fresh, pictures
from tests.rf_detrs import RF_DETR, RF_DETR_MASKS

SIZE, ANCHORS, COLUMNS = (8, 6), 16, 5  # 8·6·3 = 16·(4 + 5)
Floats = NDArray[np.float32]


def passing_network() -> bytes:
    """A network that computes nothing: its input's numbers are 4 codes and 5 scores of each of 16 anchors."""
    model, graph = schema.ModelT(), schema.SubGraphT()
    model.version, model.buffers = 3, [schema.BufferT(), schema.BufferT(), schema.BufferT()]
    model.buffers[1].data = np.frombuffer(np.array([4, COLUMNS], "<i4").tobytes(), np.uint8)
    model.buffers[2].data = np.frombuffer(np.array([2], "<i4").tobytes(), np.uint8)
    graph.tensors = []

    def tensor(name: str, shape: list[int], kind: int = schema.TensorType.FLOAT32, buffer: int = 0) -> int:
        made = schema.TensorT()
        made.name, made.shape, made.type, made.buffer = name.encode(), shape, kind, buffer
        graph.tensors.append(made)
        return len(graph.tensors) - 1

    image, rows = tensor("image", [1, *SIZE, 3]), tensor("rows", [1, ANCHORS, 4 + COLUMNS])
    sizes, axis = tensor("sizes", [2], schema.TensorType.INT32, 1), tensor("axis", [], schema.TensorType.INT32, 2)
    codes, scores = tensor("codes", [1, ANCHORS, 4]), tensor("scores", [1, ANCHORS, COLUMNS])
    model.operatorCodes = []
    for kind in (schema.BuiltinOperator.RESHAPE, schema.BuiltinOperator.SPLIT_V):
        code = schema.OperatorCodeT()
        code.builtinCode = code.deprecatedBuiltinCode = kind
        code.version = 1
        model.operatorCodes.append(code)
    shape, split = schema.ReshapeOptionsT(), schema.SplitVOptionsT()
    shape.newShape, split.numSplits = [1, ANCHORS, 4 + COLUMNS], 2
    graph.operators = []
    for number, given, found, options, kind in (
        (0, [image], [rows], shape, schema.BuiltinOptions.ReshapeOptions),
        (1, [rows, sizes, axis], [codes, scores], split, schema.BuiltinOptions.SplitVOptions),
    ):
        step = schema.OperatorT()
        step.opcodeIndex, step.inputs, step.outputs = number, given, found
        step.builtinOptions, step.builtinOptionsType = options, kind
        graph.operators.append(step)
    # As the converter may: the graph has the outputs in another order than the program.
    graph.inputs, graph.outputs, model.subgraphs = [image], [scores, codes], [graph]
    signature = schema.SignatureDefT()
    signature.signatureKey, signature.subgraphIndex = b"serving_default", 0
    signature.inputs, signature.outputs = (
        [named("args_0", image)],
        [named("output_1", scores), named("output_0", codes)],
    )
    model.signatureDefs = [signature]
    return Lite(model, schema).packed({}, {})


def named(name: str, index: int) -> Any:
    made = schema.TensorMapT()
    made.name, made.tensorIndex = name.encode(), index
    return made


def lite(**more: Any) -> tuple[Lite, Floats]:
    """Columns: background, then four classes."""
    rng = np.random.default_rng(3)
    anchors = np.concatenate([rng.uniform(0.2, 0.8, (ANCHORS, 2)), rng.uniform(0.2, 0.5, (ANCHORS, 2))], 1).astype(
        np.float32
    )
    options = {
        "max_detections": 10, "max_classes_per_detection": 1, "detections_per_class": 5, "use_regular_nms": True,
        "nms_score_threshold": 0.3, "nms_iou_threshold": 0.5, "num_classes": COLUMNS - 1, "y_scale": 10.0,
        "x_scale": 10.0, "h_scale": 5.0, "w_scale": 5.0, **more,
    }  # fmt: skip
    return with_operator(passing_network(), anchors, options), anchors


def metadata(detector: bw.Detector) -> Any:
    from dataclasses import replace

    told = describe(detector, "litert", "operator", ExportDescription(step=1))
    told = replace(told, parity={"verdict": "passed"})
    about = {"size": list(SIZE), "pixel centre": 0.5, "scaling": {"scale": [2 / 255, 1.0, 1.0], "offset": [-1.0, 0, 0]}}
    return replace(told, input={**told.input, **litert_input(detector), **about})


@pytest.fixture(scope="module")
def detector() -> bw.Detector:
    return build(FAMILIES["ssd"])


@pytest.mark.parametrize("threads", [0, 1, 2, 3])
def test_the_operator_suppresses_as_our_own_does(detector: bw.Detector, tmp_path: Path, threads: int) -> None:
    """Random codes and scores through TensorFlow Lite's kernel and through `Nms`: the same boxes, classes, scores."""
    model, anchors = lite()
    save_litert(model, metadata(detector), tmp_path / "a.tflite")
    session = LitertSession(read_export_file(tmp_path / "a.tflite"), threads, raw_outputs=True)
    corners = torch.from_numpy(
        np.concatenate([anchors[:, :2] - anchors[:, 2:] / 2, anchors[:, :2] + anchors[:, 2:] / 2], 1)
    )
    nms = Nms(PerClass(0.5, 5), 0.3, 10)
    counted = 0
    for seed in range(30):
        rng = np.random.default_rng(seed)
        codes, scores = rng.normal(0, 2, (ANCHORS, 4)), rng.uniform(0, 1, (ANCHORS, COLUMNS))
        rows = np.concatenate([codes, scores], 1).astype(np.float32)
        found = session._run(rows.reshape(1, *SIZE, 3))
        boxes = FasterRcnnBoxCoder().decode(torch.from_numpy(rows[:, :4]), corners[:, [1, 0, 3, 2]])
        np.testing.assert_allclose(found["raw_detection_boxes"][0], boxes[:, [1, 0, 3, 2]], atol=1e-6)
        np.testing.assert_array_equal(found["raw_detection_scores"][0], rows[:, 4:])
        # Far outside, so that nothing is clipped; the kernel does not.
        expected = nms(boxes[None] + 50, torch.from_numpy(rows[None, :, 5:]), torch.tensor([[100.0, 100.0]]))
        count = int(expected.valid.sum())
        counted += count
        assert int(found["num_detections"][0]) == count
        np.testing.assert_array_equal(found["detection_scores"][0, :count], expected.scores[0, :count])
        np.testing.assert_array_equal(found["detection_classes"][0, :count], expected.labels[0, :count] + 1)
        clipped = (expected.boxes[0, :count] - 50)[:, [1, 0, 3, 2]].clamp(0, 1)
        np.testing.assert_allclose(found["detection_boxes"][0, :count], clipped, atol=1e-5)
        assert not found["detection_scores"][0, count:].any()
    assert counted > 100


def test_outputs_are_in_the_order_that_readers_expect(detector: bw.Detector, tmp_path: Path) -> None:
    from ai_edge_litert.interpreter import Interpreter

    save_litert(lite()[0], metadata(detector), tmp_path / "a.tflite")
    interpreter = Interpreter(model_path=str(tmp_path / "a.tflite"))
    interpreter.allocate_tensors()
    names = ["detection_boxes", "detection_classes", "detection_scores", "num_detections"]
    assert [one["name"] for one in interpreter.get_output_details()] == names
    assert [one["shape"].tolist() for one in interpreter.get_output_details()] == [[1, 10, 4], [1, 10], [1, 10], [1]]
    assert interpreter.get_signature_list()["serving_default"] == {
        "inputs": ["normalized_input_image_tensor"], "outputs": sorted(names),
    }  # fmt: skip


def test_pictures_are_resized_and_scaled(detector: bw.Detector, tmp_path: Path) -> None:
    """Halving with pixel centres at 0.5 is the mean of two; red is scaled to -1..1."""
    save_litert(lite()[0], metadata(detector), tmp_path / "a.tflite")
    session = LitertSession(read_export_file(tmp_path / "a.tflite"))
    image = np.zeros((16, 6, 3), np.uint8)
    image[::2] = 255
    found = session.preprocessed(image[None])
    assert found.shape == (1, *SIZE, 3)
    np.testing.assert_allclose(found[0, :, :, 0], 2 / 255 * 127.5 - 1, atol=1e-6)
    np.testing.assert_allclose(found[0, :, :, 1], 127.5)


def field(table: Table, number: int) -> int:
    """Return where a table's field is; 0 where it has none."""
    place = table.Offset(4 + 2 * number)
    return int(table.Pos + place) if place else 0


def child(table: Table, number: int) -> Table:
    return Table(table.Bytes, table.Indirect(field(table, number)))


def first(table: Table, number: int) -> Table:
    vector = table.Vector(table.Offset(4 + 2 * number))
    return Table(table.Bytes, table.Indirect(vector))


def text(table: Table, number: int) -> str:
    return str(table.String(field(table, number)).decode())


def test_other_libraries_find_scaling_and_labels(detector: bw.Detector, tmp_path: Path) -> None:
    """By the field numbers of metadata_schema.fbs: (2·v/255 - 1) is (v - 127.5) / 127.5."""
    path = tmp_path / "a.tflite"
    save_litert(lite()[0], metadata(detector), path)
    with zipfile.ZipFile(path) as archive:
        assert archive.read(LABELS).decode() == "circle\nsquare\nstar\nring\n"
    model = schema.ModelT.InitFromPackedBuf(path.read_bytes(), 0)
    (place,) = [one.buffer for one in model.metadata if one.name == b"TFLITE_METADATA"]
    data = bytes(model.buffers[place].data)
    assert data[4:8] == b"M001"
    root = Table(bytearray(data), Table(bytearray(data), 0).Get(UOffsetTFlags, 0))
    graph = first(root, 3)
    image = first(graph, 2)
    assert text(image, 0) == "image"
    unit = first(image, 4)
    assert unit.Get(Int8Flags, field(unit, 0)) == 1
    for number, value in ((0, 127.5), (1, 127.5)):
        options = child(unit, 1)
        start = options.Vector(options.Offset(4 + 2 * number))
        assert options.Get(Float32Flags, start) == pytest.approx(value)
    vector = graph.Vector(graph.Offset(4 + 2 * 3))
    tensors = [Table(graph.Bytes, graph.Indirect(vector + 4 * number)) for number in range(4)]
    assert [text(one, 0) for one in tensors] == ["location", "category", "score", "number of detections"]
    assert text(first(tensors[1], 6), 0) == LABELS


def test_the_same_bytes_twice_and_weights_where_vectors_load_them(detector: bw.Detector, tmp_path: Path) -> None:
    told = metadata(detector)
    model, _ = lite()
    for name in ("a", "b"):
        save_litert(model, told, tmp_path / f"{name}.tflite")
    data = (tmp_path / "a.tflite").read_bytes()
    assert data == (tmp_path / "b.tflite").read_bytes()
    view = schema.Model.GetRootAsModel(data, 0)
    for number in range(view.BuffersLength()):
        buffer = view.Buffers(number)
        if buffer.DataLength():
            start = buffer._tab.Vector(buffer._tab.Offset(4))
            assert start % 16 == 0


@pytest.mark.slow
def test_damaged_and_strange_files(detector: bw.Detector, tmp_path: Path) -> None:
    path = tmp_path / "a.tflite"
    save_litert(lite()[0], metadata(detector), path)
    whole = path.read_bytes()
    (tmp_path / "none.tflite").unlink(missing_ok=True)
    with pytest.raises(ExportError, match="no such file"):
        open_session(tmp_path / "none.tflite")
    path.write_bytes(passing_network())
    with pytest.raises(ExportError, match="no checksum: it was written by another program"):
        open_session(path)
    with pytest.raises(ExportError, match="boxwright"):
        open_session(path, allow_edited=True)
    script = "import sys; from boxwright.runtime.sessions import open_session; from boxwright.base.errors import ExportError\n"
    script += (
        "for p in sys.argv[1:]:\n try: open_session(p, allow_edited=True)\n except ExportError: print('refused')\n"
    )
    paths = []
    for number, damaged in enumerate((b"", b"rubbish", whole[:100], whole[: len(whole) // 2])):
        paths.append(tmp_path / f"{number}.tflite")
        paths[-1].write_bytes(damaged)
    done = subprocess.run([sys.executable, "-c", script, *map(str, paths)], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert done.stdout.count("refused") == 4


# Each family: why the operator cannot serve it; that the converter is absent where it can.
SERVED = {
    "ssd": "uv pip install",
    "ssd, softmax": "uv pip install",
    "ssd, class-agnostic": "only supports per-class suppression",
    "ssd, soft": "only supports per-class suppression",
    "ssd, grey": "in color",
    "ssd, keypoints": "box coder",
    "efficientdet": "fixed_shape_resizer",
    "srn": "only for one-stage detectors",
    "align_det": "only for one-stage detectors",
}


@pytest.mark.slow_cases("efficientdet", "refinedet", "srn", "ssd", "ssd, softmax", "faster_rcnn")
@pytest.mark.parametrize(
    "family",
    [
        one if one in SERVED or one in ("refinedet", "faster_rcnn") else pytest.param(one, marks=pytest.mark.slow)
        for one in FAMILIES
    ],
)
def test_what_the_operator_cannot_serve_is_refused(family: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(PYTHON, raising=False)
    with pytest.raises(ExportError, match=SERVED.get(family, "only for one-stage detectors")):
        litert_model(fresh(FAMILIES[family]).eval(), "operator", 1, torch.uint8)


@pytest.mark.parametrize("keypoints", [False, True])
def test_the_graph_of_a_center_net_finds_what_its_detector_finds(keypoints: bool, tmp_path: Path) -> None:
    """From pixels to TensorFlow's outputs in its order, then what the gate compares, in PyTorch."""
    (tmp_path / "map.pbtxt").write_text(KEYPOINT_LABEL_MAP)
    text = of_one_class(tmp_path / "map.pbtxt", "") if keypoints else CENTER_NET
    detector = fresh(text, Categories(CATEGORIES.items[:1]) if keypoints else CATEGORIES).eval()
    image = np.random.default_rng(0).integers(0, 256, (64, 96, 3), dtype=np.uint8)
    with torch.no_grad():
        boxes, classes, scores, count, *rest = LiteDetector(detector, (64, 96))(torch.from_numpy(image[None]).float())
        (found,) = detector.detect([image])
    most = int(count)
    assert most == len(found) > 0
    np.testing.assert_allclose(scores[0, :most], found.scores, rtol=1e-5)
    np.testing.assert_array_equal(classes[0, :most], found.labels)
    height, width = 64, 96
    wanted = found.boxes[:, [1, 0, 3, 2]] / torch.tensor([height, width, height, width])
    np.testing.assert_allclose(boxes[0, :most], wanted, atol=1e-5)
    if keypoints:
        points, marks = rest[:2]
        assert found.keypoints is not None
        np.testing.assert_allclose(
            points[0, :most].flip(-1) * torch.tensor([width, height]), found.keypoints, atol=1e-3
        )
        np.testing.assert_allclose(marks[0, :most], found.keypoint_scores, atol=1e-5)
    assert [tuple(one.shape[1:]) for one in rest[-2:]] == [(16 * 24, 4), (16 * 24, 1 if keypoints else 4)]


@pytest.mark.slow_cases("model3-uv pip install")  # as of other detectors, below
@pytest.mark.parametrize(
    ("model", "line"),
    [
        (with_masks(), "boxes and keypoints, as in TensorFlow, not masks; use --format onnx"),
        (with_temporal_offsets(CENTER_NET), "not temporal offsets; use --format onnx"),
        (CENTER_NET.replace(SIZE_OF_CENTER_NET, SQUARE), "image_resizer: only fixed_shape_resizer"),
        (CENTER_NET, "uv pip install"),
    ],
)
def test_what_a_center_net_lacks_for_litert(model: str, line: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(PYTHON, raising=False)
    with pytest.raises(ExportError, match=line) as caught:
        litert_model(fresh(model).eval(), "operator", 1, torch.uint8)
    assert len(str(caught.value).splitlines()) == 1


def test_the_outputs_of_a_whole_graph_are_named_and_others_kept() -> None:
    lite = with_outputs(passing_network(), ["detection_boxes"], ["raw_scores"])
    assert lite.output_names == ("detection_boxes",)
    model = schema.ModelT.InitFromPackedBuf(lite.packed({}, {}), 0)
    assert {b"detection_boxes", b"raw_scores"} <= {one.name for one in model.subgraphs[0].tensors}
    assert [one.name for one in model.signatureDefs[0].outputs] == [b"detection_boxes"]


@pytest.mark.slow
def test_without_a_converter_the_way_is_told(detector: bw.Detector, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(PYTHON, raising=False)
    with pytest.raises(ExportError, match="uv pip install"):
        litert_model(detector.eval(), "operator", 1, torch.uint8)
    monkeypatch.setenv(PYTHON, "/nowhere/python")
    program = torch.export.export(torch.nn.Identity(), (torch.zeros(1),))
    with monkeypatch.context() as patch, pytest.raises(ExportError, match="/nowhere/python cannot be run"):
        patch.setattr(torch.export, "export", lambda *_, **__: program)
        litert_model(detector.eval(), "operator", 1, torch.uint8)
    monkeypatch.setenv(PYTHON, sys.executable)
    with pytest.raises(ExportError, match="could not convert the network: .*litert_torch"):
        litert_model(detector.eval(), "operator", 1, torch.uint8)


@pytest.mark.slow
@pytest.mark.skipif(PYTHON not in os.environ, reason=f"{PYTHON} names no interpreter with litert-torch")
@pytest.mark.parametrize("family", ["ssd", "ssd, softmax"])
def test_a_whole_detector(family: str, tmp_path: Path) -> None:
    detector = build(FAMILIES[family])
    path = tmp_path / "detector.tflite"
    report = export(detector, path, images=pictures(), format="litert", about=ExportDescription(source="shapes"))
    assert report.passed
    assert [stage.name for stage in report.stages] == [
        "preprocessing", "raw outputs", "suppression", "detections", "batches",
    ]  # fmt: skip
    found = ExportedDetector(LitertSession(read_export_file(path))).detect(pictures()[:2])
    assert all(len(one) for one in found)
    told = json.loads((tmp_path / "detector.tflite.parity.json").read_text())
    assert told["verdict"] == "passed"
    assert io.BytesIO(path.read_bytes()).read().find(str(tmp_path).encode()) == -1


@pytest.mark.slow
@pytest.mark.skipif(PYTHON not in os.environ, reason=f"{PYTHON} names no interpreter with litert-torch")
@pytest.mark.parametrize("keypoints", [False, True])
def test_a_whole_center_net(keypoints: bool, tmp_path: Path) -> None:
    (tmp_path / "map.pbtxt").write_text(KEYPOINT_LABEL_MAP)
    text = of_one_class(tmp_path / "map.pbtxt", "") if keypoints else CENTER_NET
    detector = build(text, Categories(CATEGORIES.items[:1]) if keypoints else CATEGORIES)
    path = tmp_path / "detector.tflite"
    assert export(detector, path, images=pictures(), format="litert").passed
    session = LitertSession(read_export_file(path))
    names = ("detection_boxes", "detection_classes", "detection_scores", "num_detections")
    points = ("detection_keypoints", "detection_keypoint_scores")
    assert session.output_names == (names + points if keypoints else names)
    (found,) = ExportedDetector(session).detect(pictures()[:1])
    assert len(found)
    assert (found.keypoints is not None) == keypoints


@pytest.mark.slow  # the converter takes minutes
@pytest.mark.skipif(PYTHON not in os.environ, reason=f"{PYTHON} names no interpreter with litert-torch")
@pytest.mark.parametrize("model", [D_FINE, RF_DETR], ids=["d_fine", "rf_detr"])
def test_whole_detectors(model: str, tmp_path: Path) -> None:
    path = tmp_path / "detector.tflite"
    report = export(build(model), path, images=pictures(), format="litert")
    assert report.passed
    assert "raw outputs" in [stage.name for stage in report.stages]
    session = LitertSession(read_export_file(path))
    assert session.output_names == ("detection_boxes", "detection_classes", "detection_scores", "num_detections")
    (found,) = ExportedDetector(session).detect(pictures()[:1])
    assert len(found) == 80


def test_the_graph_of_a_d_fine_finds_what_its_detector_finds() -> None:
    detector = build(D_FINE).eval()
    image = np.random.default_rng(0).integers(0, 256, (64, 96, 3), dtype=np.uint8)
    with torch.no_grad():
        boxes, classes, scores, count, anchors, raw_boxes, raw_scores = LiteDetector(detector, (64, 96))(
            torch.from_numpy(image[None]).float()
        )
        (found,) = detector.detect([image])
    assert int(count) == len(found) == 80
    np.testing.assert_allclose(scores[0], found.scores, atol=2e-5)  # another memory format rounds otherwise
    np.testing.assert_array_equal(classes[0], found.labels)
    wanted = found.boxes[:, [1, 0, 3, 2]] / torch.tensor([64, 96, 64, 96])
    np.testing.assert_allclose(boxes[0], wanted, atol=1e-5)
    assert raw_boxes.shape == (1, 20, 4)
    assert torch.equal(raw_scores[0][anchors[0].long(), classes[0].long()], scores[0])


def test_the_graph_of_an_rf_detr_finds_what_its_detector_finds() -> None:
    """Its scores have a column of no class before the others, which is never detected."""
    detector = build(RF_DETR).eval()
    image = np.random.default_rng(0).integers(0, 256, (64, 64, 3), dtype=np.uint8)
    with torch.no_grad():
        boxes, classes, scores, count, _, _, raw_scores = LiteDetector(detector, (64, 64))(
            torch.from_numpy(image[None]).float()
        )
        (found,) = detector.detect([image])
    assert int(count) == len(found) == 80
    np.testing.assert_allclose(scores[0], found.scores, atol=2e-5)
    np.testing.assert_array_equal(classes[0], found.labels)
    np.testing.assert_allclose(boxes[0], found.boxes[:, [1, 0, 3, 2]] / 64, atol=1e-5)
    assert raw_scores.shape == (1, 20, 5)


@pytest.mark.slow
def test_no_program_splits_a_tensor_into_one_part() -> None:
    """Which the converter cannot; attention over a single map did."""
    detector = build(RF_DETR).eval()
    program, _, _ = whole_program(detector, (64, 64))
    assert not any("split_with_sizes" in str(node.target) for node in program.graph.nodes)
    image = torch.rand(1, 64, 64, 3, generator=torch.Generator().manual_seed(0)) * 255
    with torch.no_grad():
        for made, expected in zip(program.module()(image), LiteDetector(detector, (64, 64))(image), strict=True):
            torch.testing.assert_close(made, expected, atol=1e-4, rtol=1e-4)


def test_the_error_of_a_converter_is_found_in_what_it_prints(tmp_path: Path) -> None:
    python = tmp_path / "python"
    python.write_text(
        "#!/bin/sh\nprintf 'Traceback\\nValueError: no such layer\\n\\nUse tlparse to see it\\n' >&2\nexit 1\n"
    )
    python.chmod(0o755)
    program = torch.export.export(torch.nn.Identity(), (torch.zeros(1),))
    with pytest.raises(ExportError, match="could not convert the network: ValueError: no such layer$"):
        _converted(program, str(python))


def test_masks_of_an_rf_detr_are_refused() -> None:
    with pytest.raises(ExportError, match=r"litert: only for .* D-FINE and RF-DETR without masks; use --format onnx"):
        litert_model(fresh(RF_DETR_MASKS).eval(), "operator", 1, torch.uint8)


@pytest.mark.parametrize("size", [(31, 45), (64, 96), (80, 50), (200, 333)])
def test_antialiased_resizing_without_pytorch(size: tuple[int, int]) -> None:
    """As PyTorch's, where images shrink, grow, or one side each."""
    images = np.random.default_rng(1).integers(0, 256, (2, *size, 3)).astype(np.float32)
    found = _antialiased(_antialiased(images, 1, 64), 2, 96)
    wanted = resize_antialiased(torch.from_numpy(images), 64, 96).numpy()
    np.testing.assert_allclose(found, wanted, atol=2e-3)


def test_suppression_of_queries_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    text = D_FINE.replace("denoising {", "post_processing { batch_non_max_suppression { } } denoising {")
    with pytest.raises(ExportError, match="of a detector without anchors only without; use --format onnx"):
        litert_model(fresh(text).eval(), "operator", 1, torch.uint8)
