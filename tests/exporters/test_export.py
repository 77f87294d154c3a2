"""One exported detector: what the gate refuses, what the file says, what damaged files do."""

from __future__ import annotations

import copy
import json
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from numpy.typing import NDArray

import boxwright as bw
from boxwright.base.errors import DataError, ExportError, OutputError
from boxwright.config.load import parse_message
from boxwright.exporters.export import FORMATS, ExportDescription, export, report_path, verify
from boxwright.exporters.graph import PREPROCESSED
from boxwright.exporters.onnx_file import with_output
from boxwright.exporters.parity import compare
from boxwright.exporters.resizing import resizing
from boxwright.nn.ops.resize import resize_half_pixel
from boxwright.nn.preprocessing import FixedShapeResizer, ImageResizer, KeepAspectRatioResizer
from boxwright.pipeline import messages as m
from boxwright.runtime.export_file import ExportFile
from boxwright.runtime.exported import open_exported
from boxwright.runtime.metadata import Metadata
from boxwright.runtime.sessions import OnnxSession, Session, open_session, read_metadata
from boxwright.types import Array, Detections
from boxwright.weights.exports import open_export
from tests.api.models import DATA, STEPS
from tests.exporters.exported import exported_detector
from tests.exporters.small_detectors import FEW_LAYERS, build, pictures
from tests.parity.recordings import FOLDER

Outputs = dict[str, NDArray[np.float32]]


@pytest.fixture(scope="module")
def detector() -> bw.Detector:
    return exported_detector().detector


@pytest.fixture(scope="module")
def file() -> Path:
    return exported_detector().file


class Faulty:
    """An export in which something is wrong."""

    def __init__(
        self, session: Session, change: Callable[[NDArray[Any]], NDArray[Any]], spoil: Callable[[Outputs], Outputs]
    ) -> None:
        self.session, self.change, self.spoil = session, change, spoil
        self.metadata, self.output_names = session.metadata, session.output_names

    def run(self, images: NDArray[Any], names: Sequence[str] = ()) -> Outputs:
        return self.spoil({**self.session.run(self.change(images), names)})


def same(values: Any) -> Any:
    return values


def changed(name: str, change: Callable[[NDArray[np.float32]], NDArray[np.float32]]) -> Callable[[Outputs], Outputs]:
    return lambda outputs: {**outputs, name: change(outputs[name])} if name in outputs else outputs


def without_best(outputs: Outputs) -> Outputs:
    found = {**outputs}
    for name in ("detection_boxes", "detection_scores", "detection_classes", "detection_anchor_indices"):
        found[name] = np.roll(outputs[name], -1, axis=1)
    return {**found, "num_detections": outputs["num_detections"] - 1}


FAULTS: dict[str, tuple[Callable[..., Any], Callable[[Outputs], Outputs], str]] = {
    "colours in another order": (lambda images: np.ascontiguousarray(images[..., ::-1]), same, "preprocessing"),
    "pixels shifted by a half": (
        lambda images: np.ascontiguousarray(np.roll(images, 1, axis=2)),
        same,
        "preprocessing",
    ),
    "scores off": (same, changed("raw_detection_scores", lambda v: v + 0.01), "raw outputs"),
    "boxes off": (same, changed("raw_detection_boxes", lambda v: v * 1.01), "raw outputs"),
    "classes in another order": (same, changed("raw_detection_scores", lambda v: v[..., ::-1].copy()), "raw outputs"),
    "not a number": (same, changed("raw_detection_scores", lambda v: np.where(v > 0.99, np.nan, v)), "raw outputs"),
    "another shape": (same, changed("raw_detection_boxes", lambda v: v[:, :-1]), "raw outputs"),
    "one is dropped": (same, without_best, "suppression"),
    "classes count from 0": (same, changed("detection_classes", lambda v: v - 1), "suppression"),
    "another score": (same, changed("detection_scores", lambda v: v * 0.99), "suppression"),
    "boxes as x, y": (same, changed("detection_boxes", lambda v: v[..., [1, 0, 3, 2]]), "suppression"),
    "too few candidates": (same, changed("detections_complete", lambda v: v * 0), "detections"),
}


# Of each stage one, and what is no number or has another shape.
_SOME = {
    "colours in another order",
    "scores off",
    "not a number",
    "another shape",
    "one is dropped",
    "too few candidates",
}


@pytest.mark.slow_cases("colours in another order", "scores off", "one is dropped")
@pytest.mark.parametrize(
    "fault", [fault if fault in _SOME else pytest.param(fault, marks=pytest.mark.slow) for fault in FAULTS]
)
def test_the_gate_names_the_stage_of_a_fault(fault: str, detector: bw.Detector, file: Path) -> None:
    change, spoil, stage = FAULTS[fault]
    seen = OnnxSession(ExportFile(file, with_output(file.read_bytes(), PREPROCESSED)))
    # Boxes that lie elsewhere but have the same anchor are found by their places.
    stages = compare(
        detector,
        Faulty(open_session(file), change, spoil),
        pictures()[:3],
        preprocessed=lambda images: seen.run(change(images), [PREPROCESSED])[PREPROCESSED],
    )
    assert next(one.name for one in stages if not one.passed) == stage


@pytest.mark.slow_cases("0.0-True", "5e-05-False")
@pytest.mark.parametrize(("off", "passes"), [(0.0, True), (2e-5, True), (5e-5, False)])
def test_what_the_last_digit_of_a_place_makes_is_allowed(
    off: float, passes: bool, detector: bw.Detector, file: Path
) -> None:
    """In a picture of 128 pixels: 2 · 2⁻¹⁶ of its range, as float32 has 2⁻¹⁶ between 128 and its neighbour."""
    seen = OnnxSession(ExportFile(file, with_output(file.read_bytes(), PREPROCESSED)))

    def preprocessed(images: NDArray[np.uint8]) -> NDArray[np.float32]:
        exact = seen.run(images, [PREPROCESSED])[PREPROCESSED]
        exact[..., 3, 5] += off * np.ptp(exact)
        return exact

    picture = next(one for one in pictures() if one.shape == (96, 128, 3))
    (stage, *_) = compare(detector, open_session(file), [picture], preprocessed=preprocessed)
    assert (stage.name, stage.passed) == ("preprocessing", passes)
    assert stage.largest == pytest.approx(off / (2 * 2**-16), abs=0.2)


def test_nothing_is_written_that_differs(
    detector: bw.Detector, file: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    import onnx

    # The detector's graph is made already; what follows is compared and refused, or written.
    made = replace(FORMATS["onnx"], make=lambda *_: onnx.load(file))
    monkeypatch.setitem(FORMATS, "onnx", made)
    real = OnnxSession.run
    worse = changed("raw_detection_scores", lambda values: values + 0.01)
    monkeypatch.setattr(OnnxSession, "run", lambda self, images, names=(): worse(real(self, images, names)))
    path = tmp_path / "out" / "d.onnx"
    with pytest.raises(ExportError, match=r"was not written: .* raw outputs: picture \d+, .*differs by 0.01"):
        export(detector, path, images=pictures()[:2])
    assert [one.name for one in path.parent.iterdir()] == [report_path(path).name]
    assert json.loads(report_path(path).read_text())["verdict"] == "failed"
    about = ExportDescription(config="model { }", step=7, metric={"AP": 0.5}, source="shapes")
    report = export(detector, path, images=pictures()[:2], allow_difference=True, about=about)
    assert not report.passed
    assert json.loads(report_path(path).read_text())["images"]["source"] == "shapes"
    metadata = open_session(path).metadata
    assert metadata.parity["verdict"] == "differs"
    assert "differs by 0.01" in metadata.parity["problem"]
    assert (metadata.step, metadata.metric, metadata.config) == (7, {"AP": 0.5}, "model { }")


@pytest.mark.slow  # test_parity compares empty lists; the gate reads what it says
def test_a_detector_that_finds_nothing_passes_no_gate(tmp_path: Path) -> None:
    torch.manual_seed(0)
    fresh = bw.build_detector(parse_message(FEW_LAYERS, m.DetectionModel))
    with pytest.raises(
        ExportError, match="nothing scores 0.05 or more in any picture: the detector may need more training"
    ):
        export(fresh, tmp_path / "d.pt2", images=pictures()[:2], format="pt2")  # the quickest to make


def test_what_cannot_begin_is_said_at_once(detector: bw.Detector, tmp_path: Path) -> None:
    with pytest.raises(ExportError, match="ends in .onnx"):
        export(detector, tmp_path / "d.pt", images=pictures())
    with pytest.raises(ExportError, match="no pictures: an export is compared"):
        export(detector, tmp_path / "d.onnx", images=[])
    (tmp_path / "f.onnx").mkdir()
    with pytest.raises(ExportError, match="is a folder"):
        export(detector, tmp_path / "f.onnx", images=pictures())
    (tmp_path / "file").write_text("")
    with pytest.raises(OutputError):
        export(detector, tmp_path / "file" / "d.onnx", images=pictures())


def test_the_file_says_what_it_is(detector: bw.Detector, file: Path) -> None:
    metadata = read_metadata(file)
    assert (metadata.format, metadata.step, metadata.metric) == ("onnx", STEPS, {})
    assert metadata.classes() == DATA.categories
    assert metadata.suppression["iou_threshold"] == 0.5
    assert metadata.input["resizer"].startswith("FixedShapeResizer to (96, 96)")
    assert set(metadata.outputs) == set(open_session(file).output_names)
    report = json.loads(report_path(file).read_text())
    assert report["verdict"] == "passed"
    assert report["images"]["source"] == "eval_input_reader"
    assert report["weights_sha256"] == metadata.weights_sha256
    import hashlib

    assert hashlib.sha256(report_path(file).read_bytes()).hexdigest() == metadata.parity["report_sha256"]
    assert Metadata.from_json(metadata.to_json(), "here") == metadata


def test_the_file_says_nothing_of_its_author(file: Path) -> None:
    import onnx

    import boxwright

    model = onnx.load(file)
    del model.metadata_props[:]
    # Where the data lie is in the configuration, of which the file has all.
    data = model.SerializeToString() + replace(read_metadata(file), config="").to_json().encode()
    for place in (
        str(Path(boxwright.__file__).parent),
        str(Path.home()),
        str(file.parent),
        "site-packages",
        "stack_trace",
    ):
        assert place.encode() not in data


@pytest.mark.slow
def test_the_same_bytes_twice(detector: bw.Detector, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SOURCE_DATE_EPOCH", "1700000000")
    for name in ("a", "b"):
        export(detector, tmp_path / name / "d.onnx", images=pictures()[:2])
    assert (tmp_path / "a" / "d.onnx").read_bytes() == (tmp_path / "b" / "d.onnx").read_bytes()
    assert open_session(tmp_path / "a" / "d.onnx").metadata.created == "2023-11-14T22:13:20Z"


def test_verifying_again(detector: bw.Detector, file: Path) -> None:
    assert verify(detector, file, pictures()[:2]).passed
    other = copy.deepcopy(detector)
    with torch.no_grad():
        next(other.parameters()).add_(1)
    with pytest.raises(ExportError, match="other weights"):
        verify(other, file, pictures()[:2])


def by_class_and_anchor(found: Detections[Array]) -> Detections[Array]:
    assert found.anchor_indices is not None
    assert found.multiclass_scores is not None
    order = np.lexsort((found.anchor_indices, found.labels))
    return Detections(
        found.boxes[order],
        found.scores[order],
        found.labels[order],
        found.image_size,
        found.categories,
        multiclass_scores=found.multiclass_scores[order],
    )


def test_detects_as_the_detector(detector: bw.Detector, file: Path) -> None:
    exported = open_exported(file)
    for found, theirs in zip(exported.detect(pictures()), detector.detect(pictures()), strict=True):
        # Scores that are as good as equal may change places.
        ours, wanted = (by_class_and_anchor(one) for one in (found, theirs.arrays()))
        assert ours.labels.tolist() == wanted.labels.tolist()
        assert ours.names() == wanted.names()
        np.testing.assert_allclose(ours.boxes, wanted.boxes, atol=1e-3)
        np.testing.assert_allclose(ours.scores, wanted.scores, atol=1e-4)
        assert ours.multiclass_scores is not None
        assert wanted.multiclass_scores is not None
        np.testing.assert_allclose(ours.multiclass_scores, wanted.multiclass_scores, atol=1e-4, rtol=1e-3)
    grey = pictures()[0][..., 0]
    assert len(exported.detect([grey])[0]) == len(exported.detect([np.stack([grey] * 3, -1)])[0])
    assert exported.detect([]) == []
    for wrong in (np.zeros((4, 4, 2), np.uint8), np.zeros((0, 4, 3), np.uint8)):
        with pytest.raises(DataError, match="image 0: expected a HWC array with 1, 3 or 4 channels and some pixels"):
            exported.detect([wrong])
    with pytest.raises(DataError, match="floats of which none is above 0.5, as if they were in 0..1"):
        exported.detect([np.full((4, 4, 3), 0.5, np.float32)])


def said(path: Path) -> str:
    try:
        open_session(path)
    except ExportError as error:
        return str(error)
    return ""


def test_damaged_files_are_an_error_in_a_line(file: Path, tmp_path: Path) -> None:
    data = file.read_bytes()
    generator = np.random.default_rng(0)
    refused = 0
    for number in range(25):
        broken = bytearray(data)
        if number % 2:
            broken = broken[: int(generator.integers(1, len(data)))]
        else:
            for place in generator.integers(0, len(data), 200):
                broken[place] ^= 0xFF
        path = tmp_path / "broken.onnx"
        path.write_bytes(broken)
        problem = said(path)
        assert "\n" not in problem
        refused += bool(problem)
    assert refused == 25
    (tmp_path / "none.onnx").write_bytes(b"")
    with pytest.raises(ExportError, match="none.onnx is empty: nothing was written to it"):
        open_session(tmp_path / "none.onnx")
    with pytest.raises(ExportError, match="no such file"):
        open_session(tmp_path / "nowhere.onnx")
    with pytest.raises(ExportError, match="expected .onnx or .xml or .tflite"):
        open_session(tmp_path / "x.engine")


def test_a_strangers_file_is_told_apart(tmp_path: Path) -> None:
    import onnx

    value = onnx.helper.make_tensor_value_info("x", onnx.TensorProto.FLOAT, [1])
    other = onnx.helper.make_tensor_value_info("y", onnx.TensorProto.FLOAT, [1])
    graph = onnx.helper.make_graph([onnx.helper.make_node("Identity", ["x"], ["y"])], "g", [value], [other])
    model = onnx.helper.make_model(graph, opset_imports=[onnx.helper.make_opsetid("", 20)], ir_version=10)
    onnx.save(model, tmp_path / "theirs.onnx")
    for allowed in (False, True):
        with pytest.raises(ExportError, match="not written by Boxwright: run it with ONNX Runtime"):
            open_session(tmp_path / "theirs.onnx", allow_edited=allowed)
    entry = model.metadata_props.add()
    for text, wanted in (
        ("{", "damaged"),
        ("[]", "damaged"),
        ('{"schema": 2}', "schema 2, expected 1"),
        ('{"schema": 1}', "damaged"),
    ):
        entry.key, entry.value = "boxwright", text
        onnx.save(model, tmp_path / "theirs.onnx")
        with pytest.raises(ExportError, match=wanted):
            open_session(tmp_path / "theirs.onnx", allow_edited=True)


RESIZERS: dict[str, ImageResizer] = {
    "stretched": FixedShapeResizer(40, 56),
    "stretched, between centres": FixedShapeResizer(40, 56, resize=resize_half_pixel),
    "grey": FixedShapeResizer(40, 56, convert_to_grayscale=True),
    "in a square": KeepAspectRatioResizer(48, 48, pad_to_max_dimension=True),
    "in a square, coloured": KeepAspectRatioResizer(
        32, 64, pad_to_max_dimension=True, per_channel_pad_value=(1.0, 2.0, 3.0)
    ),
    "in a square, grey": KeepAspectRatioResizer(32, 64, pad_to_max_dimension=True, convert_to_grayscale=True),
    "in a square, between centres": KeepAspectRatioResizer(
        48, 64, resize=resize_half_pixel, pad_to_max_dimension=True, to_whole=np.floor
    ),
}


@pytest.mark.parametrize(
    "size", [(48, 48), (20, 30), (90, 61), (1, 70), (70, 1), (64, 64), (101, 300), (1, 1), (33, 47)]
)
@pytest.mark.parametrize("kind", RESIZERS)
def test_resizing_in_a_graph_is_resizing(kind: str, size: tuple[int, int]) -> None:
    resizer = RESIZERS[kind]
    image = torch.from_numpy(np.random.default_rng(1).integers(0, 256, (*size, 3), dtype=np.uint8))
    expected, true_size = resizer(image)
    with torch.no_grad():
        found = resizing(resizer)(torch.stack([image, image.flip(0)]))
    assert found.true_sizes.tolist() == [list(true_size)] * 2
    torch.testing.assert_close(found.pixels[0], expected, atol=2e-3, rtol=0)


def signatures() -> Iterator[Any]:
    for case in json.loads((FOLDER / "export" / "signatures.json").read_text()):
        if case["exporter"] == "exporter_lib_v2" and case["input_type"] == "image_tensor":
            yield pytest.param(case, id=case["model"], marks=pytest.mark.slow)


# TF's signature of Mask R-CNN has its intermediate tensors besides; they are not outputs of a detector.
INTERMEDIATE = {
    "anchors", "box_classifier_features", "class_predictions_with_background", "final_anchors", "image_shape",
    "mask_predictions", "num_proposals", "proposal_boxes", "proposal_boxes_normalized", "refined_box_encodings",
    "rpn_box_encodings", "rpn_objectness_predictions_with_background",
}  # fmt: skip


@pytest.mark.parametrize("case", list(signatures()))
def test_signatures_are_tensorflows(case: dict[str, Any], tmp_path: Path) -> None:
    """Names, types and ranks; where TF fixes the batch to 1, it is free."""
    import onnxruntime

    torch.manual_seed(0)
    detector = bw.build_detector(parse_message(case["model_text"], m.DetectionModel))
    export(detector, tmp_path / "d.onnx", images=pictures()[:1], allow_difference=True)
    session = onnxruntime.InferenceSession(str(tmp_path / "d.onnx"), providers=["CPUExecutionProvider"])
    (given,) = session.get_inputs()
    wanted = case["inputs"]["input_tensor"]
    assert (given.name, given.type) == ("input_tensor", f"tensor({wanted['dtype']})")
    assert given.shape == ["batch", "height", "width", 3]
    assert wanted["shape"][1:] == [None, None, 3]
    found = {output.name: output for output in session.get_outputs()}
    expected = {name: value for name, value in case["outputs"].items() if name not in INTERMEDIATE}
    assert set(expected) <= set(found)
    # CenterNet has no anchors: TF has no outputs of them, ours are its cells.
    of_cells = {"detection_anchor_indices", "raw_detection_boxes", "raw_detection_scores"}
    assert set(found) - set(expected) <= {"detections_complete"} | (of_cells if case["model"] == "centernet" else set())
    for name, value in expected.items():
        assert found[name].type == "tensor(float)", name
        assert found[name].shape[1:] == value["shape"][1:], name
        assert found[name].shape[0] == "batch", name


@pytest.mark.slow
def test_a_pytorch_program_needs_pytorch_alone(detector: bw.Detector, tmp_path: Path) -> None:
    path = tmp_path / "d.pt2"
    export(detector, path, images=pictures()[:2], format="pt2")
    program = torch.export.load(path)
    assert "boxwright" not in str(program.graph)
    found = program.module()(torch.from_numpy(pictures()[0][None]))
    assert found["detection_boxes"].shape == (1, 100, 4)
    assert read_metadata(path).format == open_export(path).session.metadata.format == "pt2"
    path.write_bytes(path.read_bytes()[:5000])
    with pytest.raises(ExportError):
        open_export(path)
    with pytest.raises(ExportError):
        read_metadata(path)


@pytest.mark.slow_cases("a.png-str", "image1-float32 \\\\(4, 4, 3\\\\)")
@pytest.mark.parametrize(
    ("image", "found"),
    [
        ("a.png", "str"),
        (np.zeros((4, 4, 3), np.float32), r"float32 \(4, 4, 3\)"),
        (np.zeros((4, 4), np.uint8), r"uint8 \(4, 4\)"),
    ],
)
def test_what_is_no_picture_is_named(tmp_path: Path, image: Any, found: str) -> None:
    wanted = rf"images\[0\]: expected a picture, uint8 \[height, width, 3\], found {found}; .*read_image reads a file"
    with pytest.raises(bw.ExportError, match=wanted):
        bw.export(build(FEW_LAYERS), tmp_path / "x.onnx", images=[image])
