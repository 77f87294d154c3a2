"""Tiles, and merging what was found in them."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

import boxwright as bw
from boxwright.config.load import parse_message
from boxwright.inference.detect_functions import MERGES, View, Window, fused_boxes, in_tiles, suppressed, tile_windows
from boxwright.nn.ops.pasted_masks import whole_masks
from boxwright.pipeline import messages as m
from boxwright.types import Array, Detections
from tests.center_nets import KEYPOINT_LABEL_MAP, with_every_task
from tests.inference.blobs import find_blobs, picture_of


def view(*rows: tuple[float, ...], cut: Sequence[bool] = ()) -> View:
    """Rows are x_min, y_min, x_max, y_max, score, label."""
    table = np.array(rows, np.float32).reshape(-1, 6)
    found = Detections(table[:, :4], table[:, 4], table[:, 5].astype(np.int64), (100, 100))
    return View(found, np.array(cut or [False] * len(rows), bool))


@pytest.mark.slow
@settings(deadline=None)
@given(st.integers(1, 900), st.integers(1, 900), st.integers(8, 400), st.floats(0, 0.9))
def test_tiles_cover_every_pixel_and_overlap_as_asked(height: int, width: int, tile: int, overlap: float) -> None:
    windows = tile_windows(height, width, tile, overlap)
    covered = np.zeros((height, width), bool)
    for one in windows:
        assert (one.height, one.width) == (min(tile, height), min(tile, width))
        assert one.top >= 0
        assert one.left >= 0
        assert one.top + one.height <= height
        assert one.left + one.width <= width
        covered[one.top : one.top + one.height, one.left : one.left + one.width] = True
    assert covered.all()
    for starts in (sorted({one.top for one in windows}), sorted({one.left for one in windows})):
        for first, second in itertools.pairwise(starts):
            assert first + tile - second >= int(tile * overlap) - 1  # a pixel is lost to rounding


def test_tiles_by_hand() -> None:
    """1000 wide, tiles of 640, a fifth shared: two, at 0 and 360; 1200: 640 + 512 < 1200, so three."""
    assert [one.left for one in tile_windows(640, 1000, 640, 0.2)] == [0, 360]
    assert [one.left for one in tile_windows(100, 1200, 640, 0.2)] == [0, 280, 560]
    assert len(tile_windows(640, 640, 640, 0.2)) == 1


def compared_with_all(views: list[View]) -> list[int]:
    """Return the rows that suppression keeps, each compared with all that were kept before; slow, and plain."""
    found = [
        (one.detections.boxes[n], one.detections.scores[n], one.detections.labels[n], one.cut[n])
        for one in views
        for n in range(len(one.cut))
    ]
    kept: list[int] = []
    for row in sorted(range(len(found)), key=lambda row: (found[row][3], -found[row][1])):
        box, _, label, cut = found[row]
        if not any(label == found[other][2] and yields(box, found[other][0], cut) for other in kept):
            kept.append(row)
    return sorted(kept, key=lambda row: -found[row][1])


def yields(box: NDArray[np.float32], other: NDArray[np.float32], cut: bool) -> bool:
    sides = np.minimum(box[2:], other[2:]) - np.maximum(box[:2], other[:2])
    shared = float(np.prod(np.maximum(sides.astype(float), 0)))
    own, their = (float(np.prod((one[2:] - one[:2]).astype(float))) for one in (box, other))
    return shared / (own + their - shared) > 0.5 or bool(cut and shared / own >= 0.7)


@pytest.mark.parametrize("seed", range(2))
def test_boxes_are_compared_with_all_that_they_overlap(seed: int) -> None:
    random = np.random.default_rng(seed)
    views = []
    for _ in range(3):
        sides = np.exp(random.uniform(np.log(2), np.log(400 if seed % 2 else 40), (60, 2)))
        corners = random.uniform(-20, 600, (60, 2))
        boxes = np.concatenate([corners, corners + sides], 1).astype(np.float32)
        scores = random.permutation(60).astype(np.float32) / 60 + random.random(60).astype(np.float32) / 1000
        found = Detections(boxes, scores, random.integers(0, 2, 60), (640, 640))
        views.append(View(found, random.random(60) < 0.3))
    merged = suppressed(views)
    every = np.concatenate([one.detections.boxes for one in views])
    np.testing.assert_array_equal(merged.boxes, every[compared_with_all(views)])


@pytest.mark.parametrize("merge", sorted(MERGES))
def test_an_image_of_one_tile_is_looked_at_once_and_unchanged(merge: str) -> None:
    asked: list[tuple[int, ...]] = []

    def detect(images: Sequence[NDArray[np.uint8]]) -> list[Detections[Array]]:
        asked.extend(image.shape for image in images)
        return find_blobs(images)

    image = picture_of([(5, 5, 20, 30), (40, 10, 60, 20)], 64, 64)
    (plain,), (tiled,) = find_blobs([image]), in_tiles(detect, 64, 0.2, MERGES[merge])([image])
    assert asked == [(64, 64, 3)]
    for name in ("boxes", "scores", "labels"):
        np.testing.assert_array_equal(getattr(plain, name), getattr(tiled, name))


@pytest.mark.parametrize("merge", sorted(MERGES))
@pytest.mark.parametrize(("height", "width"), [(150, 200), (64, 200), (200, 33)])
def test_tiles_find_what_the_whole_image_has(merge: str, height: int, width: int) -> None:
    """A detector that is exact at any size finds the same in tiles: what a border cuts is not another object."""
    rng = np.random.default_rng(height + width)
    cells = [(x, y) for x in range(2, width - 29, 30) for y in range(2, height - 29, 30)]
    sides = rng.integers(4, 26, (len(cells), 2)).tolist()
    boxes = [(x, y, x + w, y + h) for (x, y), (w, h) in zip(cells, sides, strict=True)]
    image = picture_of(boxes, height, width)
    (found,) = in_tiles(find_blobs, 64, 0.3, MERGES[merge])([image])
    assert sorted(map(tuple, found.boxes.astype(int).tolist())) == sorted(boxes)
    assert found.image_size == (height, width)


def test_small_objects_are_found_only_in_tiles_and_large_ones_only_in_the_whole() -> None:
    """A detector that sees objects of 10 to 40 pixels of a picture scaled to 64, as a network of fixed size does."""
    import cv2

    def detect(images: Sequence[NDArray[np.uint8]]) -> list[Detections[Array]]:
        found = []
        for image in images:
            height, width = image.shape[:2]
            (small,) = find_blobs([cv2.resize(image, (64, 64), interpolation=cv2.INTER_AREA)])  # type: ignore[list-item]
            sides = small.boxes[:, 2:] - small.boxes[:, :2]
            seen = small.boxes[((sides >= 10) & (sides <= 40)).all(1)]
            scale = np.array([width / 64, height / 64] * 2, np.float32)
            found.append(
                Detections(seen * scale, np.ones(len(seen), np.float32), np.zeros(len(seen), np.int64), (height, width))
            )
        return found

    image = picture_of([(16, 16, 36, 36), (160, 160, 300, 300)], 320, 320)
    assert np.rint(detect([image])[0].boxes).tolist() == [[160, 160, 300, 300]]
    (found,) = in_tiles(detect, 64, 0.5, suppressed)([image])
    assert sorted(np.rint(found.boxes).tolist()) == [[16, 16, 36, 36], [160, 160, 300, 300]]


def test_suppression_by_hand() -> None:
    """[0, 0, 10, 10] and [0, 0, 10, 6]: IoU 60/100. Another class stays; a part of a border gives way to the whole."""
    merged = suppressed(
        [view((0, 0, 10, 10, 0.8, 0), (50, 50, 60, 60, 0.3, 0)), view((0, 0, 10, 6, 0.9, 0), (0, 0, 10, 10, 0.5, 1))]
    )
    assert merged.boxes.tolist() == [[0, 0, 10, 6], [0, 0, 10, 10], [50, 50, 60, 60]]
    assert merged.labels.tolist() == [0, 1, 0]
    merged = suppressed([view((0, 0, 10, 10, 0.8, 0)), view((0, 0, 3, 10, 0.9, 0), cut=[True])])
    assert merged.boxes.tolist() == [[0, 0, 10, 10]]
    merged = suppressed([view((0, 0, 10, 10, 0.8, 0)), view((8, 0, 18, 10, 0.9, 0), cut=[True])])  # a fifth in it
    assert len(merged) == 2


def test_fusion_by_hand() -> None:
    """Weights 0.75 and 0.25: the right border at 0.75·10 + 0.25·12 = 10.5; the score is the mean."""
    merged = fused_boxes([view((0, 0, 10, 10, 0.75, 0)), view((0, 0, 12, 10, 0.25, 0), (30, 30, 40, 40, 0.9, 0))])
    np.testing.assert_allclose(merged.boxes, [[30, 30, 40, 40], [0, 0, 10.5, 10]], rtol=1e-6)
    np.testing.assert_allclose(merged.scores, [0.9, 0.5], rtol=1e-6)


@pytest.mark.parametrize("merge", sorted(MERGES))
def test_nothing_found_anywhere(merge: str) -> None:
    merged = MERGES[merge]([view(), view()])
    assert len(merged) == 0
    assert merged.boxes.shape == (0, 4)


@pytest.mark.parametrize("merge", sorted(MERGES))
def test_boxes_without_area_and_scores_of_nought(merge: str) -> None:
    merged = MERGES[merge]([view((5, 5, 5, 5, 0, 0), (5, 5, 5, 5, 0, 0)), view((1, 1, 9, 9, 0, 0), (1, 1, 9, 9, 0, 0))])
    assert np.isfinite(merged.boxes).all()
    assert [1, 1, 9, 9] in merged.boxes.tolist()


def test_keypoints_move_with_their_tile_and_keep_their_scores() -> None:
    """A detector whose keypoints are the corners of its box, and their scores the box's size."""

    def detect(images: Sequence[NDArray[np.uint8]]) -> list[Detections[Array]]:
        return [
            replace(one, keypoints=one.boxes.reshape(-1, 2, 2), keypoint_scores=one.boxes[:, 2:] - one.boxes[:, :2])
            for one in find_blobs(images)
        ]

    image = picture_of([(10, 20, 30, 36), (140, 90, 160, 120)], 150, 200)
    for merge in MERGES.values():
        (found,) = in_tiles(detect, 64, 0.3, merge)([image])
        assert len(found) == 2
        assert found.keypoints is not None
        assert found.keypoint_scores is not None
        np.testing.assert_array_equal(found.keypoints.reshape(-1, 4), found.boxes)
        np.testing.assert_array_equal(found.keypoint_scores, found.boxes[:, 2:] - found.boxes[:, :2])


def test_masks_of_whole_tiles_move_with_their_tile() -> None:
    """A detector whose masks have a cell for each pixel of a tile, all of it beyond the box is 0."""

    def detect(images: Sequence[NDArray[np.uint8]]) -> list[Detections[Array]]:
        listed = []
        for detections in find_blobs(images):
            masks = np.zeros((len(detections), 200, 200), np.float32)
            for mask, (left, top, right, bottom) in zip(masks, detections.boxes.astype(int), strict=True):
                mask[top:bottom, left:right] = 1
            covered = np.tile(np.array([0, 0, 200, 200], np.float32), (len(detections), 1))
            listed.append(replace(detections, masks=masks, mask_boxes=covered))
        return listed

    image = picture_of([(10, 20, 30, 36), (140, 90, 160, 120)], 150, 200)
    for merge in MERGES.values():
        (found,) = in_tiles(detect, 64, 0.3, merge)([image])
        assert len(found) == 2
        for mask, (left, top, right, bottom) in zip(whole_masks(found), found.boxes.astype(int), strict=True):
            assert mask.sum() == (right - left) * (bottom - top)
            assert mask[top:bottom, left:right].all()


def test_a_center_net_in_tiles(tmp_path: Path) -> None:
    """Every detection is one of a view, with its keypoints, their scores and its mask, moved to where the view lies."""
    label_map = tmp_path / "keypoints.pbtxt"
    label_map.write_text(KEYPOINT_LABEL_MAP)
    torch.manual_seed(0)
    detector = bw.build_detector(parse_message(with_every_task(label_map), m.DetectionModel)).eval()
    image = np.random.default_rng(0).integers(0, 256, (100, 140, 3)).astype(np.uint8)

    def detect(images: Sequence[NDArray[np.uint8]]) -> list[Detections[Array]]:
        return [one.arrays() for one in detector.detect(list(images))]

    (found,) = in_tiles(detect, 96, 0.2, suppressed)([image])
    windows = [Window(0, 0, 100, 140), *tile_windows(100, 140, 96, 0.2)]
    views = []
    for window in windows:
        (one,) = detect([window.of(image)])
        corner = np.array([window.left, window.top], np.float32)
        assert one.keypoints is not None
        views.append(one.keypoints + corner)
    assert len(found) > 5
    assert found.keypoints is not None
    assert found.keypoint_scores is not None
    assert found.masks is not None
    away = np.abs(np.concatenate(views)[None] - found.keypoints[:, None]).max((2, 3)).min(1)
    assert away.max() < 1e-3  # whose batch is another, and with it the rounding
    assert found.keypoint_scores.shape == (len(found), 3)
    assert found.masks.shape == (len(found), 8, 6)
