"""Keypoints, depths and temporal offsets in result files: those of each class, with COCO's visibility where it asks."""

from __future__ import annotations

import base64
import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from pyarrow import parquet as pq
from pycocotools import mask as coco_mask
from pycocotools.coco import COCO

from boxwright.data.coco import CocoDataset
from boxwright.data.image_io import decode_image, encode_png
from boxwright.inference.predict import ResultFiles
from boxwright.inference.shards import parquet_bytes, to_row
from boxwright.inference.sources import Frame
from boxwright.types import Array, Categories, Category, Detections

# The square's corner is the third of all keypoints; the star has none.
CLASSES = Categories(
    (
        Category(0, 1, "circle", keypoints=("top", "bottom"), keypoint_ids=(0, 1)),
        Category(1, 2, "square", keypoints=("corner",), keypoint_ids=(2,)),
        Category(2, 5, "star"),
    )
)
POINTS = np.arange(18, dtype=np.float32).reshape(3, 3, 2)
SCORES = np.array([[0.9, 0.2, 0], [0, 0, 0.3], [0, 0, 0]], np.float32)
FOUND = Detections(
    np.array([[0, 0, 20, 10], [5, 5, 15, 25], [1, 2, 3, 4]], np.float32),
    np.array([0.9, 0.8, 0.7], np.float32),
    np.array([0, 1, 2]),
    (40, 60),
    CLASSES,
    keypoints=POINTS,
    keypoint_scores=SCORES,
    keypoint_depths=np.ones((3, 3), np.float32),
    temporal_offsets=np.array([[0.5, -1], [0, 0], [2, 3]], np.float32),
)


def written(found: Detections[Array], folder: Path) -> tuple[list[dict[str, Any]], Path]:
    """Write a picture's detections; return the rows, and the data set."""
    folder.mkdir()
    image = np.zeros((40, 60, 3), np.uint8)
    (folder / "a.png").write_bytes(encode_png(image))
    files = ResultFiles(folder, ["detections.json", "coco.json"])
    files.add(Frame(image, str(folder / "a.png")), found)
    files.close()
    return json.loads((folder / "detections.json").read_text()), folder / "coco.json"


def test_rows_have_the_keypoints_of_their_class(tmp_path: Path) -> None:
    rows, _ = written(FOUND, tmp_path / "out")
    assert rows[0]["keypoints"] == pytest.approx([0, 1, 0.9, 2, 3, 0.2])
    assert rows[1]["keypoints"] == pytest.approx([10, 11, 0.3])
    assert len(rows[2]["keypoints"]) == 9, "a class that names none: all"
    assert [row["temporal_offset"] for row in rows] == [[0.5, -1], [0, 0], [2, 3]]
    assert rows[1]["keypoint_depths"] == [1, 1, 1]


def test_a_detector_of_one_class_has_its_points_alone(tmp_path: Path) -> None:
    """Whatever ids the label map gives them."""
    square = replace(FOUND.first(1), labels=np.array([1]), keypoints=POINTS[:1, :1], keypoint_scores=SCORES[:1, :1])
    rows, _ = written(square, tmp_path / "out")
    assert rows[0]["keypoints"] == pytest.approx([0, 1, 0.9])


def test_the_data_set_can_be_read(tmp_path: Path) -> None:
    """By COCO's reader and ours; points of low scores are invisible."""
    _, path = written(FOUND, tmp_path / "out")
    coco = COCO(str(path))
    one, two, three = coco.anns.values()
    assert one["keypoints"] == [0, 1, 2, 0, 0, 0]
    assert (one["num_keypoints"], two["num_keypoints"], three["num_keypoints"]) == (1, 1, 0)
    assert two["keypoint_scores"] == pytest.approx([0.3])
    assert [cat.get("keypoints") for cat in coco.cats.values()] == [
        ["top", "bottom"],
        ["corner"],
        ["keypoint 1", "keypoint 2", "keypoint 3"],
    ]
    sample = CocoDataset(path, num_keypoints=None)[0]
    assert sample.keypoints is not None
    np.testing.assert_array_equal(sample.keypoints[1, 0], [10, 11, 1])


def test_without_scores_every_keypoint_is_visible(tmp_path: Path) -> None:
    _, path = written(replace(FOUND, keypoint_scores=None), tmp_path / "out")
    assert [one["num_keypoints"] for one in COCO(str(path)).anns.values()] == [2, 1, 3]


def test_without_keypoints_there_are_none(tmp_path: Path) -> None:
    bare = replace(FOUND, keypoints=None, keypoint_scores=None, keypoint_depths=None, temporal_offsets=None)
    rows, path = written(bare, tmp_path / "out")
    assert not {"keypoints", "keypoint_depths", "temporal_offset"} & set(rows[0])
    assert not any("keypoints" in cat for cat in COCO(str(path)).cats.values())


# A mask on the left half of the first object, whose upper left quarter is part 2 of the body's surface at v 0.2, u 1.
PARTS = np.zeros((3, 2, 2), np.uint8)
PARTS[0, 0, 0] = 2
PLACES = np.zeros((3, 2, 2, 2), np.float32)
PLACES[0, 0, 0] = 0.2, 1
LARGE = replace(
    FOUND,
    masks=np.repeat(np.array([[[1, 0], [1, 0]]], np.float32), 3, 0),
    surface_parts=PARTS,
    surface_coordinates=PLACES,
    embeddings=np.array([[0.6, 0.8], [1, 0], [0, -1]], np.float32),
)


def test_rows_and_annotations_have_masks_surfaces_and_embeddings(tmp_path: Path) -> None:
    rows, path = written(LARGE, tmp_path / "out")
    for found in (rows, [*COCO(str(path)).anns.values()]):
        assert [one["embedding"] for one in found] == [[0.6, 0.8], [1, 0], [0, -1]]
        assert found[0]["surface"]["size"] == [2, 2]
        picture = decode_image(base64.b64decode(found[0]["surface"]["iuv"]), "surface")
        assert picture.tolist() == [[[2, 255, 51], [0, 0, 0]], [[0, 0, 0], [0, 0, 0]]]
        inside = coco_mask.decode({**found[0]["segmentation"], "counts": found[0]["segmentation"]["counts"].encode()})
        # Half of the box (0, 0, 20, 10).
        assert inside[:10, :10].all()
        assert inside.sum() == 10 * 10


def test_parquet_rows_have_surfaces_and_embeddings() -> None:
    row = to_row("a", LARGE)
    (table,) = pq.read_table(pa.BufferReader(parquet_bytes([row], {}))).to_pylist()
    assert np.array(table["embeddings"]) == pytest.approx(np.array([[0.6, 0.8], [1, 0], [0, -1]]))
    assert decode_image(table["surfaces"][0], "surface")[0, 0].tolist() == [2, 255, 51]
    bare = to_row("a", FOUND)
    assert (bare["surfaces"], bare["embeddings"]) == (None, None)


def test_parquet_rows_have_keypoints() -> None:
    assert to_row("a", FOUND)["keypoints"][1] == pytest.approx([10, 11, 0.3])
    assert to_row("a", replace(FOUND, keypoints=None))["keypoints"] is None
