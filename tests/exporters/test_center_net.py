"""CenterNet as ONNX, OpenVINO and .pt2: what each task predicts passes the gate that other families pass."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any, Literal

import numpy as np
import pytest
import torch
from numpy.typing import NDArray
from torch import Tensor

import boxwright as bw
from boxwright.exporters.export import FORMATS, ExportDescription, describe, export
from boxwright.exporters.graph import named_outputs
from boxwright.exporters.matching import Matcher
from boxwright.exporters.parity import _ReferenceResults, compare
from boxwright.runtime.exported import open_exported, to_detections
from boxwright.types import Array, Categories, Detections, PaddedDetections, RawDetections
from boxwright.weights.exports import open_export
from tests.center_nets import (
    CENTER_NET,
    KEYPOINT_LABEL_MAP,
    SIZE,
    deep_mask_variants,
    of_one_class,
    with_every_task,
    with_identities,
    with_masks,
    with_surface,
    with_temporal_offsets,
)
from tests.exporters.small_detectors import CATEGORIES, SQUARE, build, pictures

Change = Callable[[dict[str, NDArray[Any]]], None]
OWN_INITIALIZERS = True  # with which no two scores tie at 1: of equal scores an export may take another first


KEYPOINTS = {"detection_keypoints", "detection_keypoint_scores"}
OF_TASKS = {
    "boxes": set[str](),
    "keypoints": KEYPOINTS | {"detection_keypoint_depths"},
    "masks": {"detection_masks"},
    "temporal offsets": {"detection_temporal_offsets"},
    "every": KEYPOINTS | {"detection_masks", "detection_temporal_offsets"},
}


def model_of(tasks: str, label_map: Path) -> str:
    label_map.write_text(KEYPOINT_LABEL_MAP)
    text = {
        "boxes": CENTER_NET,
        "keypoints": of_one_class(label_map, "predict_depth: true"),
        "masks": with_masks(),
        "temporal offsets": with_temporal_offsets(CENTER_NET),
        "every": with_temporal_offsets(with_every_task(label_map)),
    }[tasks]
    return text.replace(SIZE, SQUARE)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("tasks", "form"),
    [
        *((tasks, "onnx") for tasks in OF_TASKS),
        *((tasks, form) for form in ("openvino", "pt2") for tasks in ("boxes", "every")),
    ],
)
def test_an_export_does_what_its_detector_does(
    tasks: str, form: Literal["onnx", "openvino", "pt2"], tmp_path: Path
) -> None:
    categories = Categories(CATEGORIES.items[:1]) if tasks == "keypoints" else CATEGORIES
    detector = build(model_of(tasks, tmp_path / "keypoints.pbtxt"), categories)
    assert sum(len(one.above(0.05)) for one in detector.detect(pictures())) > 20, "a gate that compares nothing"
    path = tmp_path / f"detector{FORMATS[form].suffix}"
    report = export(detector, path, images=pictures(), format=form, nms="operator")
    assert report.passed
    assert "detections" in [stage.name for stage in report.stages]
    names = set(open_export(path).session.output_names)
    assert {"raw_detection_boxes", "raw_detection_scores", "detection_boxes"} <= names
    assert "detection_boxes_strided" in names
    assert names & set.union(*OF_TASKS.values()) == OF_TASKS[tasks]
    (found,) = open_exported(path).detect(pictures()[:1]) if form != "pt2" else (None,)
    if found is not None and tasks in ("every", "temporal offsets"):
        assert found.temporal_offsets is not None
        assert found.temporal_offsets.shape == (len(found), 2)


MASKS = {"detection_masks"}
# Tasks → the text, and what TF's exporter names of them.
OTHER_TASKS = {
    "deep masks of crops": (deep_mask_variants()[0], MASKS),
    "deep masks of whole images": (deep_mask_variants()[8], MASKS),
    "surface": (with_surface(), MASKS | {"detection_surface_coords"}),
    "identities": (with_identities(), {"detection_embeddings"}),
}


@pytest.mark.slow
@pytest.mark.parametrize("form", ["onnx", "pt2"])
@pytest.mark.parametrize("tasks", OTHER_TASKS)
def test_an_export_of_another_task(tasks: str, form: Literal["onnx", "pt2"], tmp_path: Path) -> None:
    """It passes the gate, and finds what the detector finds, under TF's names."""
    text, names = OTHER_TASKS[tasks]
    detector = build(text.replace(SIZE, SQUARE))
    path = tmp_path / f"detector{FORMATS[form].suffix}"
    report = export(detector, path, images=pictures(), format=form, nms="operator")
    assert report.passed
    session = open_export(path).session
    known = MASKS | {"detection_surface_coords", "detection_embeddings"}
    assert set(session.output_names) & known == names
    if form == "onnx":
        image = pictures()[0]
        (own,), (read,) = detector.detect([image]), open_exported(path).detect([image])
        for field in ("masks", "surface_parts", "surface_coordinates", "embeddings"):
            ours, theirs = getattr(own.arrays(), field), getattr(read, field)
            assert (ours is None) == (theirs is None)
            if ours is not None:
                assert ours.dtype == theirs.dtype
                assert np.isclose(ours[:3], theirs[:3], atol=1e-3).mean() > 0.99


class Planted:
    """A session that runs the detector itself, and changes what it found."""

    def __init__(self, detector: bw.Detector, change: Change) -> None:
        self.detector, self.change = detector, change
        self.metadata = describe(detector, "onnx", "none", ExportDescription(step=1))

    def run(self, images: NDArray[Any]) -> dict[str, NDArray[Any]]:
        post = self.detector.postprocessor
        inputs, sizes = self.detector.preprocess(torch.from_numpy(np.ascontiguousarray(images)))
        with torch.no_grad():
            predictions = self.detector.predict(inputs, sizes)
        raw = post.decode(predictions)
        found = named_outputs(inputs, raw, post.select(predictions, raw, sizes), sizes)
        outputs = {name: value.numpy().copy() for name, value in found.items()}
        self.change(outputs)
        return outputs


def nothing(outputs: dict[str, NDArray[Any]]) -> None:
    """Change nothing."""


def swap_axes(outputs: dict[str, NDArray[Any]]) -> None:
    outputs["detection_keypoints"] = outputs["detection_keypoints"][..., ::-1].copy()


def move_one_point(outputs: dict[str, NDArray[Any]]) -> None:
    outputs["detection_keypoints"][:, 0, 0] += 0.01


def lower_scores(outputs: dict[str, NDArray[Any]]) -> None:
    outputs["detection_keypoint_scores"] *= 0.99


def take_another_peak(outputs: dict[str, NDArray[Any]]) -> None:
    """Of one keypoint alone."""
    outputs["detection_keypoints"][:, 3, 1] = 0.5
    outputs["detection_keypoint_scores"][:, 3, 1] = 0.25


def change_depths(outputs: dict[str, NDArray[Any]]) -> None:
    outputs["detection_keypoint_depths"] += 0.01


def move_offsets(outputs: dict[str, NDArray[Any]]) -> None:
    outputs["detection_temporal_offsets"] += 0.01


def move_cells(outputs: dict[str, NDArray[Any]]) -> None:
    outputs["detection_boxes_strided"] += 0.1


def drop(outputs: dict[str, NDArray[Any]]) -> None:
    del outputs["detection_keypoint_scores"]


@pytest.fixture(scope="module")
def with_depths(tmp_path_factory: pytest.TempPathFactory) -> bw.Detector:
    label_map = tmp_path_factory.mktemp("map") / "keypoints.pbtxt"
    label_map.write_text(KEYPOINT_LABEL_MAP)
    text = with_temporal_offsets(of_one_class(label_map, "predict_depth: true per_keypoint_depth: true"))
    return build(text.replace(SIZE, SQUARE), Categories(CATEGORIES.items[:1])).eval()


@pytest.mark.slow_except(
    "swap_axes-keypoints of the same detections differ by",
    "lower_scores-keypoint scores of the same detections differ by",
)
@pytest.mark.parametrize(
    ("change", "problem"),
    [
        (nothing, ""),
        (swap_axes, "keypoints of the same detections differ by"),
        (move_one_point, "keypoints of the same detections differ by"),
        (take_another_peak, "keypoint scores of the same detections differ by"),
        (lower_scores, "keypoint scores of the same detections differ by"),
        (move_offsets, "temporal offsets of the same detections differ by"),
        (move_cells, "cell boxes of the same detections differ by"),
        (change_depths, "keypoint depths of the same detections differ by"),
        (drop, "keypoint scores of the same detections differ by inf"),
    ],
)
def test_an_error_in_keypoints_is_caught(change: Change, problem: str, with_depths: bw.Detector) -> None:
    stages = {stage.name: stage for stage in compare(with_depths, Planted(with_depths, change), pictures(1))}  # type: ignore[arg-type]
    assert stages["detections"].passed == (not problem)
    assert problem in str(stages["detections"].problems)


def test_keypoints_that_rounding_moves_are_not_compared() -> None:
    """The third of three points is another peak in the second list: counted, unless it is known to be unsteady."""

    def of(third: float, score: float) -> Detections[Array]:
        points = np.array([[[1, 1], [2, 2], [third, 9]]], np.float32)
        scores = np.array([[0.5, 0.5, score]], np.float32)
        one = np.ones(1, np.float32)
        box, anchor = np.array([[0, 0, 9, 9]], np.float32), np.array([7])
        return Detections(
            box, one, anchor * 0, (100, 100), anchor_indices=anchor, keypoints=points, keypoint_scores=scores
        )

    steady = Matcher(0.05, 0.5)(of(3, 0.5), of(50, 0.25)).largest
    assert steady["keypoints"] == pytest.approx(0.47 / (1e-4 + 0.5e-3))
    assert steady["keypoint_scores"] == pytest.approx(0.25 / (1e-4 + 0.25e-3))
    unsteady = Matcher(0.05, 0.5, unsteady_keypoints={7: np.array([False, False, True])})
    assert not any(unsteady(of(3, 0.5), of(50, 0.25)).largest.values())
    assert unsteady(of(3, 0.5), of(50, 0.25)).largest == unsteady(of(3, 0.5), of(3, 0.5)).largest
    wrong = replace(of(50, 0.25), keypoints=of(50, 0.25).keypoints + 1)  # type: ignore[operator]
    assert unsteady(of(3, 0.5), wrong).largest["keypoints"] > 1, "the others are still compared"


def test_between_peaks_of_the_same_height_rounding_decides() -> None:
    """The first point is another peak as soon as the image is brighter, the second one is always where it is."""
    image = np.full((4, 4, 3), 100, np.uint8)
    image[0] = 0

    class TwoPeaks:
        network = postprocessor = property(lambda self: self)

        def preprocess(self, images: Tensor) -> tuple[Tensor, Tensor]:
            return images.float() / 255, torch.tensor([[4, 4]])

        def predict(self, inputs: Tensor, sizes: Tensor) -> Tensor:
            return inputs

        def decode(self, inputs: Tensor) -> RawDetections:
            return RawDetections(torch.zeros(1, 1, 4), torch.zeros(1, 1, 1), (4, 4))

        def select(self, inputs: Tensor, raw: RawDetections, sizes: Tensor) -> PaddedDetections:
            brighter = inputs.double().sum() > (torch.from_numpy(image).float() / 255).double().sum()
            points = torch.tensor([[[[50.0 if brighter else 3.0, 2.0], [7.0, 8.0]]]])
            one = torch.ones(1, 1)
            return PaddedDetections(torch.zeros(1, 1, 4), one, one.long(), 5 * one.long(), one > 0, keypoints=points)

    assert _ReferenceResults(TwoPeaks(), image).unsteady_keypoints()[5].tolist() == [True, False]  # type: ignore[arg-type]


def test_keypoints_keep_their_scores_and_depths() -> None:
    """From a graph's outputs into what a file's reader returns; padding is 0."""
    torch.manual_seed(0)
    sizes, boxes = torch.tensor([[50, 80], [100, 40]]), torch.rand(2, 3, 4)
    valid = torch.tensor([[True, True, False], [True, False, False]])
    scores, depths = torch.rand(2, 3, 5), torch.rand(2, 3, 5) * 9
    found = PaddedDetections(
        boxes,
        torch.rand(2, 3),
        torch.zeros(2, 3, dtype=torch.int64),
        torch.zeros(2, 3, dtype=torch.int64),
        valid,
        keypoints=torch.rand(2, 3, 5, 2),
        keypoint_scores=scores,
        keypoint_depths=depths,
    )
    raw = RawDetections(boxes, torch.rand(2, 3, 1), (100, 80))
    outputs = {name: one.numpy() for name, one in named_outputs(torch.zeros(2, 3, 100, 80), raw, found, sizes).items()}
    assert not outputs["detection_keypoint_scores"][0, 2:].any()
    assert not outputs["detection_keypoint_depths"][1, 1:].any()
    for number, count in enumerate((2, 1)):
        read = to_detections(outputs, number, (50, 80), None)
        np.testing.assert_array_equal(read.keypoint_scores, scores[number, :count].numpy())
        np.testing.assert_array_equal(read.keypoint_depths, depths[number, :count].numpy())
    without = {name: value for name, value in outputs.items() if "keypoint" not in name}
    assert to_detections(without, 0, (50, 80), None).keypoint_scores is None
