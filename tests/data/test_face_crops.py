"""Crops for faces: which sizes they get, where they lie, which stay."""

from __future__ import annotations

import tracemalloc

import numpy as np
import pytest

from boxwright.data.augmentation.crop import DataAnchorSampling, RandomSquarePatch
from boxwright.types import Sample


def image_of(height: int, width: int, *boxes: tuple[float, ...]) -> Sample:
    """Return a picture whose red is its row and whose green is its column, with faces."""
    image = np.zeros((height, width, 3), np.uint8)
    image[..., 0], image[..., 1] = np.arange(height)[:, None], np.arange(width)
    rows = np.array(boxes, np.float32).reshape(-1, 4)
    return Sample(image=image, boxes=rows, labels=np.arange(len(rows)))


@pytest.mark.slow
@pytest.mark.parametrize(
    ("side", "anchors"), [(4, (4, 8)), (8, (4, 8, 16)), (25, (4, 8, 16, 32, 64)), (38, (4, 8, 16, 32, 64))]
)
def test_faces_get_sizes_up_to_the_next_anchor(side: int, anchors: tuple[int, ...]) -> None:
    """The anchors are drawn alike, and a size between half and twice of each; a window is a whole number of pixels."""
    step, sides = DataAnchorSampling(96, (4.0, 8.0, 16.0, 32.0, 64.0, 128.0)), []
    for seed in range(400):
        sample = image_of(80, 80, (20, 30, 20 + side, 30 + side))
        found = step(sample, np.random.default_rng(seed))
        assert found.image.shape == (96, 96, 3)
        assert len(found.boxes) == 1
        sides.append(float(found.boxes[0, 3] - found.boxes[0, 1]))
    # Rounding the window changes a size by one part in as many as the window has pixels; what is larger is clipped.
    assert min(sides) > 2 * 0.9
    assert min(anchors[-1], 90) < max(sides) < 2 * anchors[-1] * 1.2
    # What is below half of the second anchor came from the first alone: a third of its sizes.
    share = (4 - 2) / (8 - 2) / len(anchors)
    assert np.mean(np.array(sides) < 4) == pytest.approx(share, abs=4 * np.sqrt(share / 400))


def test_the_face_lies_where_its_pixels_are() -> None:
    """The red and green at its centre are its row and column, wherever the crop lies and however large it is."""
    sample = image_of(240, 250, (100, 90, 140, 140))
    for seed in range(30):
        found = DataAnchorSampling(120, (10.0, 20.0, 40.0))(sample, np.random.default_rng(seed))
        (box,) = found.boxes
        x, y = int((box[0] + box[2]) / 2), int((box[1] + box[3]) / 2)
        # A pixel of the result, and the rounding of its place, stand for so many of the picture.
        off = 1 + 1.5 * 50 / float(box[3] - box[1])
        assert int(found.image[y, x, 0]) == pytest.approx(115, abs=off)
        assert int(found.image[y, x, 1]) == pytest.approx(120, abs=off)


def test_others_stay_if_their_centre_is_seen() -> None:
    sample = image_of(64, 64, (0, 0, 10, 10), (20, 20, 30, 30), (54, 54, 64, 64))
    for seed in range(40):
        found = RandomSquarePatch(64, (0.3, 0.5))(sample, np.random.default_rng(seed))
        assert found.image.shape == (64, 64, 3)
        assert (found.boxes >= 0).all()
        assert (found.boxes <= 64).all()
        # The corners' colours say which square was cut; a resized pixel mixes its neighbours.
        low, high = found.image[0, 0, 0], found.image[-1, -1, 0]
        whole = [n for n, centre in ((0, 5), (1, 25), (2, 59)) if low + 1 <= centre <= high - 1]
        assert set(whole) & {0, 2} <= set(found.labels.tolist()) or len(found.labels) <= len(whole)


def test_sides_of_patches() -> None:
    """Every other is the shorter side; the others are spread between the two bounds."""
    step, sides = RandomSquarePatch(100, (0.5, 0.5)), []
    for seed in range(200):
        found = step(image_of(100, 200), np.random.default_rng(seed))
        sides.append(int(found.image[-1, 0, 0]) - int(found.image[0, 0, 0]) + 1)
    assert set(np.round(np.array(sides) / 50)) == {1, 2}
    assert 60 < sum(side > 75 for side in sides) < 140


def test_large_faces_cost_no_large_canvas() -> None:
    """A face that fills the picture becomes 16 pixels: the square around it is forty times the picture."""
    sample = image_of(200, 200, (0, 0, 200, 200))
    tracemalloc.start()
    found = DataAnchorSampling(640, (16.0,))(sample, np.random.default_rng(0))
    assert tracemalloc.get_traced_memory()[1] < 30e6
    tracemalloc.stop()
    assert found.image.shape == (640, 640, 3)
    assert 7 < float(found.boxes[0, 2] - found.boxes[0, 0]) < 33


def test_crowds_are_not_chosen() -> None:
    sample = image_of(60, 60, (5, 5, 15, 15))
    sample.is_crowd[:] = True
    assert DataAnchorSampling(30)(sample, np.random.default_rng(0)).boxes.tolist() == [[2.5, 2.5, 7.5, 7.5]]


def test_boxes_without_area_and_outside_are_no_reason_to_fail() -> None:
    sample = image_of(20, 30, (5, 5, 5, 9), (500, 500, 520, 520))
    for seed in range(20):
        found = DataAnchorSampling(40)(sample, np.random.default_rng(seed))
        assert found.image.shape == (40, 40, 3)
    empty = DataAnchorSampling(40)(image_of(20, 30), np.random.default_rng(0))
    assert empty.image.shape == (40, 40, 3)
    assert (empty.image[30:] == 114).all()
