"""A served CenterNet: what it predicts besides boxes reaches every client."""

from __future__ import annotations

import base64
import io
import json
from pathlib import Path

import numpy as np
import orjson
import pytest
from PIL import Image

import boxwright as bw
from boxwright.exporters.export import export
from boxwright.inference.serving.app import _objects
from boxwright.runtime.exported import open_exported
from boxwright.types import Detections
from tests.center_nets import (
    KEYPOINT_LABEL_MAP,
    SIZE,
    deep_mask_variants,
    with_every_task,
    with_identities,
    with_surface,
)
from tests.exporters.small_detectors import SQUARE, build, pictures
from tests.inference.serving.test_server import b64, client_of, png


def test_detections_have_x_y_and_score_of_each_keypoint() -> None:
    boxes, points = np.array([[1, 2, 11, 22]], np.float32), np.array([[[5.5, 6.25], [7, 8]]], np.float32)
    found = Detections(boxes, np.array([0.9], np.float32), np.array([0]), (40, 60), keypoints=points)
    assert _objects(found)["detections"][0]["keypoints"] == [[5.5, 6.25, 1], [7, 8, 1]]
    scored = Detections(**vars(found) | {"keypoint_scores": np.array([[0.25, 0.125]], np.float32)})
    assert _objects(scored)["detections"][0]["keypoints"] == [[5.5, 6.25, 0.25], [7, 8, 0.125]]
    boxes_alone = Detections(**vars(found) | {"keypoints": None})
    assert "keypoints" not in _objects(boxes_alone)["detections"][0]
    moved = Detections(**vars(found) | {"temporal_offsets": np.array([[0.5, -2]], np.float32)})
    assert _objects(moved)["detections"][0]["temporal_offset"] == [0.5, -2]


def test_detections_have_masks_surfaces_and_embeddings() -> None:
    """As in predict's files: masks as COCO's run lengths, surfaces as pictures of part, u and v."""
    parts = np.array([[[24, 0]]], np.uint8)
    found = Detections(
        np.array([[0, 0, 4, 2]], np.float32),
        np.array([0.9], np.float32),
        np.array([0]),
        (2, 4),
        masks=np.array([[[1, 1], [1, 1]]], np.float32),
        surface_parts=parts,
        surface_coordinates=np.array([[[[0.2, 1], [0, 0]]]], np.float32),
        embeddings=np.array([[0.6, -0.8]], np.float32),
    )
    (one,) = _objects(found)["detections"]
    assert one["segmentation"] == {"size": [2, 4], "counts": "08"}, "all of the picture's 8 pixels"
    assert one["embedding"] == [0.6, -0.8]
    assert one["surface"]["size"] == [1, 2]
    picture = np.asarray(Image.open(io.BytesIO(base64.b64decode(one["surface"]["iuv"]))))
    assert picture.tolist() == [[[24, 255, 51], [0, 0, 0]]]
    assert json.loads(orjson.dumps(_objects(found)))["detections"] == [one]


# What a detector predicts → its text, and what is compared.
OTHERS = {
    "deep masks": (deep_mask_variants()[0], ("segmentation",)),
    "surface": (with_surface(), ("segmentation", "surface")),
    "identities": (with_identities(), ("embedding",)),
}


@pytest.mark.slow
@pytest.mark.parametrize("tasks", OTHERS)
def test_a_server_answers_what_the_exported_file_predicts(tasks: str, tmp_path: Path) -> None:
    text, keys = OTHERS[tasks]
    export(build(text.replace(SIZE, SQUARE)), tmp_path / "detector.onnx", images=pictures(), nms="operator")
    image = pictures()[0]
    wanted = bw.load(tmp_path / "detector.onnx")(image).to_coco()
    assert len(wanted) > 5
    for client in client_of(tmp_path / "detector.onnx"):
        answer = client.post("/detect?min_score=0", content=png(image)).json()["detections"]
        assert len(answer) == len(wanted)
        for key in keys:
            assert [one[key] for one in answer] == [one[key] for one in wanted]
        drawn = client.post("/detect?min_score=0&draw=1", content=png(image))
        assert drawn.headers["content-type"] == "image/png"


@pytest.mark.slow
def test_every_protocol_answers_with_keypoints(tmp_path: Path) -> None:
    (tmp_path / "keypoints.pbtxt").write_text(KEYPOINT_LABEL_MAP)
    detector = build(with_every_task(tmp_path / "keypoints.pbtxt").replace(SIZE, SQUARE))
    export(detector, tmp_path / "detector.onnx", images=pictures(), nms="operator")
    image = pictures()[0]
    (wanted,) = open_exported(tmp_path / "detector.onnx").detect([image])
    assert len(wanted) > 5
    assert wanted.keypoint_scores is not None
    for client in client_of(tmp_path / "detector.onnx"):
        answer = client.post("/detect?min_score=0", content=png(image)).json()["detections"]
        np.testing.assert_allclose([one["keypoints"] for one in answer], wanted.scored_keypoints(), atol=2e-3)
        drawn = client.post("/detect?min_score=0", content=png(image), headers={"Accept": "image/png"})
        assert drawn.headers["content-type"] == "image/png"
        body = {"instances": [b64(image)]}
        (row,) = client.post("/v1/models/detector:predict", json=body).json()["predictions"]
        rows = np.array(row["detection_keypoint_scores"])[: len(wanted)]
        np.testing.assert_allclose(rows, wanted.keypoint_scores, atol=1e-5)
        assert np.array(row["detection_keypoints"]).shape == (20, 3, 2)
