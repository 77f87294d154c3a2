"""Detections of one image: the same methods on arrays and on tensors."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch

from boxwright.types import Array, Categories, Category, Detections, RawDetections

NAMED = Categories((Category(0, 1, "cat"), Category(1, 2, "dog")))
KINDS = pytest.mark.parametrize("kind", [np.array, torch.tensor])


def detections(kind: Callable[..., Any], **known: Any) -> Detections[Any]:
    """Three objects of an image of 40×20 pixels."""
    return Detections(
        boxes=kind([[0.0, 0, 10, 20], [5, 10, 15, 30], [0, 0, 20, 40]]),
        scores=kind([0.75, 0.5, 0.25]),
        labels=kind([0, 1, 2]),
        image_size=(40, 20),
        categories=NAMED,
        tracks=kind([7, 8, 9]),
        **known,
    )


@KINDS
def test_select(kind: Callable[..., Any]) -> None:
    whole = detections(kind, keypoints=kind([[[1.0, 2]], [[3, 4]], [[5, 6]]]))
    picked = whole.select(kind([2, 0]))
    assert type(picked.boxes) is type(whole.boxes)
    assert picked.boxes.tolist() == [[0, 0, 20, 40], [0, 0, 10, 20]]
    assert picked.keypoints.tolist() == [[[5, 6]], [[1, 2]]]
    assert picked.tracks.tolist() == [9, 7]
    assert picked.names() == ["class 3", "cat"]
    assert (picked.image_size, picked.categories, picked.masks) == ((40, 20), NAMED, None)
    assert whole.above(0.5).labels.tolist() == [0, 1]
    assert whole.first(1).labels.tolist() == [0]
    assert len(whole.select(kind([False, False, False]))) == 0


@KINDS
def test_arrays_leave_out_what_only_the_network_uses(kind: Callable[..., Any]) -> None:
    features = kind(np.zeros((3, 2, 1, 1)).tolist())
    raw = RawDetections(torch.zeros(5, 4), torch.zeros(5, 3), (64, 32))
    arrays = detections(kind, masks=kind([[[1.0]]] * 3), features=features, rpn_features=features, raw=raw).arrays()
    assert (arrays.features, arrays.rpn_features, arrays.raw) == (None, None, None)
    values: list[Array | None] = [arrays.boxes, arrays.scores, arrays.labels, arrays.masks, arrays.tracks]
    assert {type(value) for value in values} == {np.ndarray}
    assert (arrays.image_size, arrays.categories, arrays.keypoints) == ((40, 20), NAMED, None)


def test_tensors_with_a_gradient_become_arrays() -> None:
    boxes = torch.zeros(1, 4, requires_grad=True)
    assert Detections(boxes, torch.ones(1), torch.zeros(1), (9, 9)).arrays().boxes.tolist() == [[0, 0, 0, 0]]


@KINDS
def test_scored_keypoints(kind: Callable[..., Any]) -> None:
    points = kind([[[1.0, 2]], [[3, 4]], [[5, 6]]])
    assert detections(kind).scored_keypoints() is None
    unscored = detections(kind, keypoints=points).scored_keypoints()
    assert unscored is not None
    assert unscored.dtype == np.float32
    assert unscored.tolist() == [[[1, 2, 1]], [[3, 4, 1]], [[5, 6, 1]]]
    scored = detections(kind, keypoints=points, keypoint_scores=kind([[0.5], [0.25], [0.0]])).scored_keypoints()
    assert scored is not None
    assert scored.tolist() == [[[1, 2, 0.5]], [[3, 4, 0.25]], [[5, 6, 0]]]


@KINDS
def test_outputs_of_tensorflow(kind: Callable[..., Any]) -> None:
    raw = RawDetections(torch.tensor([[8.0, 16, 16, 32]]), torch.tensor([[0.5, 0.25]]), (64, 32))
    outputs = detections(kind, features=kind(np.arange(6.0).reshape(3, 2, 1, 1).tolist()), raw=raw).to_tf()
    assert outputs["detection_boxes"].tolist() == [[0, 0, 0.5, 0.5], [0.25, 0.25, 0.75, 0.75], [0, 0, 1, 1]]
    assert outputs["detection_classes"].tolist() == [1, 2, 3]
    assert outputs["detection_scores"].tolist() == [0.75, 0.5, 0.25]
    assert outputs["num_detections"].shape == ()
    assert outputs["num_detections"] == 3
    assert outputs["detection_features"].tolist() == [[[[0, 1]]], [[[2, 3]]], [[[4, 5]]]]
    assert outputs["raw_detection_boxes"].tolist() == [[0.25, 0.25, 0.5, 0.5]]
    assert outputs["raw_detection_scores"].tolist() == [[0.5, 0.25]]
    assert {values.dtype for values in outputs.values()} == {np.dtype(np.float32)}


def test_arrays_need_no_pytorch() -> None:
    program = """
import sys
sys.modules["torch"] = None  # an import of it raises
import numpy as np
from boxwright.types import Array, DetectFunction, Detections
found = Detections(np.zeros((1, 4)), np.ones(1), np.zeros(1, np.int64), (9, 9), keypoints=np.zeros((1, 2, 2)))
found.first(1).arrays().scored_keypoints()
print(len(found.to_tf()))
"""
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout.strip()) == (0, "5"), done.stderr
