"""What a graph computes in and takes: precision, opset, fixed numbers and sizes of pictures."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from numpy.typing import NDArray

import boxwright as bw
from boxwright.data.shapes import ShapesDataset
from boxwright.exporters.export import FORMATS, export
from boxwright.exporters.settings import ExportSettings, GraphOptions, Precision
from boxwright.runtime.metadata import Metadata
from boxwright.runtime.sessions import FixedShapeSession, with_fixed_shape
from boxwright.weights.exports import open_export
from tests.d_fines import D_FINE
from tests.exporters.exported import exported_detector
from tests.exporters.small_detectors import FAMILIES, build, pictures
from tests.exporters.tiny_exports import ABOUT, PICTURE, Tiny, program_of

OWN_INITIALIZERS = True  # with which no two scores tie at 1
# As many as the picture has cells: with fewer, those are taken that an untrained network ranks highest by almost nothing.
ALL_QUERIES = D_FINE.replace("num_queries: 20", "num_queries: 126")


class Summing:
    """Takes two pictures of 4x6 pixels, and returns each one's sum and place in the batch."""

    metadata = replace(ABOUT, input={**ABOUT.input, "fixed": {"batch": 2, "height": 4, "width": 6}})
    output_names = ("sum", "place")

    def run(self, images: NDArray[Any], names: Sequence[str] = ()) -> dict[str, NDArray[np.float32]]:
        assert images.shape == (2, 4, 6, 3)
        outputs = {"sum": images.sum((1, 2, 3), np.float32), "place": np.arange(2, dtype=np.float32)}
        return {name: outputs[name] for name in names or self.output_names}


@pytest.mark.parametrize("count", [1, 2, 3, 5])
def test_any_number_of_pictures_is_run_in_batches_of_the_files(count: int) -> None:
    session = with_fixed_shape(Summing())
    assert isinstance(session, FixedShapeSession)
    images = np.arange(count, dtype=np.uint8)[:, None, None, None] * np.ones((1, 4, 6, 3), np.uint8)
    outputs = session.run(images)
    assert outputs["sum"].tolist() == [72 * number for number in range(count)]
    assert outputs["place"].tolist() == [number % 2 for number in range(count)]
    assert session.run(images, ["sum"]).keys() == {"sum"}
    with pytest.raises(bw.DataError, match="takes pictures of 6x4 pixels alone, found 4x6; resize them"):
        session.run(np.zeros((1, 6, 4, 3), np.uint8))


@pytest.mark.parametrize(
    "fixed", [None, 3, [], {}, {"batch": 0}, {"batch": "2"}, {"height": 5}, {"batch": -1}, {"batch": 10**9}]
)
def test_hostile_metadata_fixes_nothing(fixed: Any) -> None:
    about = replace(ABOUT, input={**ABOUT.input, "fixed": fixed})
    again = Metadata.from_json(about.to_json(), "a.onnx")
    assert (again.batch, again.image_size) == (0, ())


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"precision": "half"}, "precision 'half': expected float32, float16, int8"),
        ({"opset": 17}, "opset 17: expected 18 to 23"),
        ({"opset": 99}, "expected 18 to 23"),
        ({"batch": -1}, "batch -1: expected 1 to 1024 pictures, or 0"),
        ({"batch": 5000}, "expected 1 to 1024"),
        ({"image_size": (480,)}, r"image_size \(480,\): expected \(height, width\)"),
        ({"image_size": (0, 5)}, "expected .height, width. in pixels"),
        ({"image_size": (480.0, 5)}, "expected .height, width. in pixels"),
    ],
)
def test_values_that_no_graph_has(options: dict[str, Any], message: str) -> None:
    with pytest.raises(bw.ExportError, match=message):
        GraphOptions(**options)


@pytest.mark.parametrize("size", ["640", "640x", "x480", "640X480", "0x0", "-1x5", "640x480x3"])
def test_sizes_that_are_none(size: str) -> None:
    with pytest.raises(bw.ExportError, match="image_size"):
        ExportSettings(image_size=size).to_graph_options()


@pytest.mark.parametrize(
    ("format", "nms", "options", "message"),
    [
        ("pt2", "operator", {"precision": "float16"}, "expected format onnx or openvino, found pt2"),
        ("litert", "operator", {"precision": "float16"}, "expected format onnx or openvino, found litert"),
        ("onnx", "none", {"precision": "float16"}, "no detections to compare"),
        ("onnx", "operator", {"precision": "int8"}, "int8 needs accuracy"),
        ("openvino", "operator", {"precision": "int8"}, "int8 requires --format onnx"),
        ("openvino", "operator", {"opset": 18}, "only ONNX files have one, found format openvino"),
        ("litert", "operator", {"batch": 1}, "a LiteRT file always takes one picture"),
        ("litert", "operator", {"image_size": (5, 5)}, "a LiteRT file always takes one picture"),
    ],
)
def test_what_a_format_cannot_have(format: str, nms: str, options: dict[str, Any], message: str) -> None:
    with pytest.raises(bw.ExportError, match=message):
        GraphOptions(**options).require_expressible(format, nms, measured=False)


def test_an_unknown_option_is_named(tmp_path: Path) -> None:
    arguments: Any = {"images": pictures(), "opsett": 18}
    with pytest.raises(bw.ConfigError, match="export has no option 'opsett'; did you mean opset"):
        export(exported_detector().detector, tmp_path / "a.onnx", **arguments)
    assert not list(tmp_path.iterdir())


def same_detections(detector: bw.Detector, path: Path, images: list[NDArray[np.uint8]]) -> None:
    """Compare an export's detections with the detector's, but for the rounding of float16."""
    pairs = list(zip(open_export(path).detect(images), detector.detect(images), strict=True))
    assert sum(len(other.above(0.1)) for _, other in pairs) > 3
    for one, other in pairs:
        expected, found = other.arrays().above(0.1), one.above(0.08)
        for box, label in zip(expected.boxes, expected.labels, strict=True):
            assert (np.abs(found.boxes[found.labels == label] - box).max(1) < 2).any()


@pytest.mark.slow
def test_a_detector_in_float16_of_fixed_shape(tmp_path: Path) -> None:
    """All at once, as each export takes seconds: half the size, the same detections, and a graph without open sizes."""
    exported, path = exported_detector(), tmp_path / "half.onnx"
    images = pictures(3)
    options: dict[str, Any] = {"precision": "float16", "opset": 18, "batch": 2, "image_size": (96, 128)}
    report = export(exported.detector, path, images=images, **options)
    assert report.passed
    assert (report.accuracy["metric"], report.accuracy["detector"]) == ("agreement with the detector", 1.0)
    assert 0.99 <= report.accuracy["export"] <= 1.0
    model = onnx.load(path)
    assert [entry.version for entry in model.opset_import if not entry.domain] == [18]
    assert [side.dim_value for side in model.graph.input[0].type.tensor_type.shape.dim] == [2, 96, 128, 3]
    assert path.stat().st_size < 0.7 * exported.file.stat().st_size
    about = open_export(path).metadata
    assert (about.precision, about.batch, about.image_size) == ("float16", 2, (96, 128))
    assert about.input["dtype"] == "uint8 [2, 96, 128, 3]"
    same_detections(exported.detector, path, [image for image in images if image.shape == (96, 128, 3)])
    with pytest.raises(bw.DataError, match="takes pictures of 128x96 pixels alone"):
        bw.load(path)(np.zeros((50, 60, 3), np.uint8))


@pytest.mark.slow
@pytest.mark.parametrize("format", ["onnx", "openvino"])
@pytest.mark.parametrize(
    "family", ["d_fine", "ssd", "efficientdet", "refinedet", "srn", "align_det", "faster_rcnn", "mask_rcnn"]
)
def test_every_family_in_float16(family: str, format: str, tmp_path: Path) -> None:
    """It is run in its runtime, and detects nearly what the detector does: untrained scores are decided by roundings."""
    detector = build(ALL_QUERIES if family == "d_fine" else FAMILIES[family])
    path, options = tmp_path / f"half{FORMATS[format].suffix}", {"precision": Precision.FLOAT16.value}
    report = export(detector, path, images=pictures(), format=format, allow_difference=True, **options)  # type: ignore[arg-type]
    assert report.accuracy["detector"] == 1
    assert report.accuracy["export"] >= 0.9
    assert open_export(path).metadata.precision == "float16"


@pytest.mark.slow
@pytest.mark.parametrize(
    ("family", "steps"),
    [
        *((family, 150) for family in ("d_fine", "ssd", "efficientdet", "refinedet", "align_det", "faster_rcnn")),
        ("srn", 400),
    ],
)
def test_what_has_learned_detects_the_same_in_float16(family: str, steps: int, tmp_path: Path) -> None:
    """It passes the gate that users' files have to pass.

    An untrained network's maps are nearly the same everywhere. Where its scores are made to spread by little differences
    in them, what float16 rounds off decides which of two boxes suppresses the other.
    """
    config = tmp_path / "pipeline.config"
    config.write_text(f"""model {{ {D_FINE if family == "d_fine" else FAMILIES[family]} }}
      train_config {{ batch_size: 8 num_steps: 1000 gradient_clipping_by_norm: 10
        optimizer {{ use_moving_average: false adam_optimizer {{ learning_rate {{
          constant_learning_rate {{ learning_rate: 0.002 }} }} }} }} }}""")
    learner = bw.Learner(config, dataset=ShapesDataset(64, seed=3, size=(96, 128)), device="cpu")
    for batch in islice(learner.batches(), steps):
        learner.step(batch)
    detector, images = learner.detector.eval(), pictures()
    report = export(detector, tmp_path / "half.onnx", images=images, precision=Precision.FLOAT16.value)
    assert report.accuracy["export"] >= 0.99
    detected = open_export(tmp_path / "half.onnx").detect(images)
    assert sum(len(detections.above(0.1)) for detections in detected) >= 10


@pytest.mark.slow
@pytest.mark.parametrize("opset", [18, 19, 21, 22, 23])
def test_every_opset_is_written_and_run(opset: int) -> None:
    import onnxruntime

    from boxwright.exporters.onnx_file import onnx_model

    model = onnx_model(program_of(Tiny()), opset)
    assert [entry.version for entry in model.opset_import if not entry.domain] == [opset]
    session = onnxruntime.InferenceSession(model.SerializeToString(), providers=["CPUExecutionProvider"])
    assert session.run(["num_detections"], {"input_tensor": PICTURE})[0].tolist() == [2]


@pytest.mark.slow
@pytest.mark.parametrize(
    ("format", "options"), [("pt2", {"batch": 1}), ("openvino", {"image_size": (96, 128), "batch": 1})]
)
def test_fixed_shapes_in_every_format(format: str, options: dict[str, Any], tmp_path: Path) -> None:
    exported, path = exported_detector(), tmp_path / f"fixed{FORMATS[format].suffix}"
    assert export(exported.detector, path, images=pictures(3), format=format, **options).passed  # type: ignore[arg-type]
    images = [image for image in pictures() if image.shape == (96, 128, 3)]
    same_detections(exported.detector, path, images)
