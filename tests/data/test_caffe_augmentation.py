"""The augmentation of Caffe's detectors: by hand, by properties that always hold, and by how often each choice comes."""

from __future__ import annotations

from collections import Counter
from fractions import Fraction
from itertools import chain as chained
from typing import Any

import cv2
import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

import boxwright as bw
from boxwright.config.load import parse_message
from boxwright.data.augmentation.caffe import CaffeDistort, OverlapCrop, RandomExpand, RandomInterpolationResize
from boxwright.data.augmentation.expanded_crop import ExpandedCrop
from boxwright.data.augmentation.flip import RandomHorizontalFlip
from boxwright.data.augmentation.functional.pixels import scale_levels, shift_levels
from boxwright.data.shapes import ShapesDataset
from boxwright.pipeline import messages as m
from boxwright.pipeline.augmentation import build_steps
from boxwright.types import Sample

CHAIN = """
data_augmentation_options { caffe_distort { } }
data_augmentation_options { random_expand { } }
data_augmentation_options { overlap_crop { } }
data_augmentation_options { random_interpolation_resize { height: 64 width: 96 } }
data_augmentation_options { random_horizontal_flip { } }
"""


class Chosen(np.random.Generator):
    """Gives chosen numbers, in order; one that is drawn many times at once is the same each time, unless it is a list."""

    def __init__(self, *numbers: Any) -> None:
        super().__init__(np.random.PCG64(0))
        self.numbers = list(numbers)

    def random(self, *_: object, **__: object) -> float:  # type: ignore[override]
        return self.numbers.pop(0)

    def uniform(self, low: Any = 0, high: Any = 1, size: Any = None) -> Any:
        value = self.numbers.pop(0)
        assert (np.asarray(low) <= value).all()
        assert (value <= np.asarray(high)).all()
        shape = np.broadcast_shapes(np.shape(low), np.shape(high), size or ())
        return np.broadcast_to(value, shape).copy() if shape else value

    def integers(self, *_: object, **__: object) -> int:  # type: ignore[override]
        return int(self.numbers.pop(0))


def sample_of(boxes: list[list[float]], height: int = 40, width: int = 60) -> Sample:
    image = np.random.default_rng(0).integers(0, 256, (height, width, 3)).astype(np.uint8)
    return Sample(image, np.array(boxes, np.float32).reshape(-1, 4), np.arange(len(boxes), dtype=np.int64))


NEVER, ALWAYS = 0.99, 0.0


def test_brightness_and_contrast_saturate_and_round() -> None:
    """Contrast multiplies levels themselves, not their distance from a mean; each change ends in 8 bits."""
    sample = Sample(np.array([[[250, 100, 3]]], np.uint8), np.zeros((0, 4)), np.zeros(0))
    # Contrast second: brightness +10.4, contrast × 1.5, then neither saturation nor hue.
    out = CaffeDistort()(sample, Chosen(NEVER, ALWAYS, 10.4, ALWAYS, 1.5, NEVER, NEVER))
    # 250 + 10.4 is cut at 255; 110.4 → 110, 13.4 → 13; × 1.5 is 382.5 (cut), 165, 19.5 → 20 (half to even).
    assert out.image.tolist() == [[[255, 165, 20]]]
    # Contrast last: nothing of the first three, × 0.5.
    out = CaffeDistort()(sample, Chosen(ALWAYS, NEVER, NEVER, NEVER, ALWAYS, 0.5))
    assert out.image.tolist() == [[[125, 50, 2]]]


@pytest.mark.parametrize("shape", [(1, 256, 1), (256, 1, 1), (4, 64, 1), (64, 4, 1), (16, 4, 4), (1, 1, 256)])
@pytest.mark.parametrize("amount", [0.0, 0.4375, 0.5625, 12.25, 31.875])  # their products with levels are exact
def test_levels_of_images_of_any_shape_are_rounded_and_cut(shape: tuple[int, ...], amount: float) -> None:
    image, exact = np.arange(256, dtype=np.uint8).reshape(shape), Fraction(amount)
    changed = [
        (shift_levels(image, amount), [level + exact for level in range(256)]),
        (shift_levels(image, -amount), [level - exact for level in range(256)]),
        (scale_levels(image, amount), [level * exact for level in range(256)]),
    ]
    for levels, expected in changed:
        assert (levels.shape, levels.dtype) == (shape, np.uint8)
        assert levels.ravel().tolist() == [min(max(round(level), 0), 255) for level in expected]


@pytest.mark.parametrize("shape", [(1, 1, 1), (4, 1, 1), (1, 4, 1), (2, 2, 1), (1, 1, 3), (4, 1, 3), (1, 1, 5)])
def test_images_of_few_pixels_change_in_every_channel(shape: tuple[int, ...]) -> None:
    image = np.full(shape, 7, np.uint8)
    for changed, level in (
        (shift_levels(image, 3.2), 10),
        (shift_levels(image, -3.2), 4),
        (scale_levels(image, 2), 14),
    ):
        assert changed.shape == shape
        assert (changed == level).all()


def test_hue_is_in_half_degrees_and_stops_at_zero() -> None:
    red_and_green = Sample(np.array([[[255, 0, 0], [0, 255, 0]]], np.uint8), np.zeros((0, 4)), np.zeros(0))
    turned = CaffeDistort()(red_and_green, Chosen(NEVER, NEVER, NEVER, NEVER, ALWAYS, 15.0)).image
    # Half degrees: 15 are 30°, from red to orange (255, 128, 0), from green (120°) to 150°.
    assert np.abs(turned.astype(int) - [[[255, 128, 0], [0, 255, 128]]]).max() <= 1
    back = CaffeDistort()(red_and_green, Chosen(NEVER, NEVER, NEVER, NEVER, ALWAYS, -15.0)).image
    # Red has hue 0, and 8 bits have nothing below; green goes to 90°.
    assert np.abs(back.astype(int) - [[[255, 0, 0], [128, 255, 0]]]).max() <= 1


def test_saturation() -> None:
    image = np.array([[[200, 100, 100]]], np.uint8)
    sample = Sample(image, np.zeros((0, 4)), np.zeros(0))
    out = CaffeDistort()(sample, Chosen(NEVER, NEVER, NEVER, ALWAYS, 0.5, NEVER)).image
    # Saturation of (200, 100, 100) is one half; halved, the low channels come up to 150.
    assert np.abs(out.astype(int) - [[[200, 150, 150]]]).max() <= 1


def test_order_is_seen_to_differ() -> None:
    sample = sample_of([])
    second = CaffeDistort()(sample, Chosen(NEVER, ALWAYS, 30.0, ALWAYS, 0.5, NEVER, NEVER)).image
    last = CaffeDistort()(sample, Chosen(ALWAYS, ALWAYS, 30.0, NEVER, NEVER, ALWAYS, 0.5)).image
    assert np.array_equal(second, last), "with neither between, contrast follows brightness both times"
    second = CaffeDistort()(sample, Chosen(NEVER, NEVER, ALWAYS, 1.5, ALWAYS, 1.5, NEVER)).image
    last = CaffeDistort()(sample, Chosen(ALWAYS, NEVER, ALWAYS, 1.5, NEVER, ALWAYS, 1.5)).image
    assert not np.array_equal(second, last)


def test_expansion_by_hand() -> None:
    sample = sample_of([[10, 5, 30, 25]], 20, 40)
    out = RandomExpand()(sample, Chosen(0.49, 2.5, 7.9, 11.2))
    assert out.image.shape == (50, 100, 3)
    assert np.array_equal(out.image[7:27, 11:51], sample.image)
    outside = np.ones((50, 100), bool)
    outside[7:27, 11:51] = False
    assert (out.image[outside] == (123, 117, 104)).all()
    assert out.boxes.tolist() == [[21, 12, 41, 32]]
    assert RandomExpand()(sample, Chosen(0.5)) is sample
    assert RandomExpand(max_ratio=1.009)(sample, Chosen(0.1)) is sample


def test_crop_by_hand() -> None:
    """Objects stay by their centres; boxes follow the window, though its pixels are whole ones."""
    sample = sample_of([[0, 0, 20, 20], [30, 10, 60, 30], [0, 30, 10, 40]], 40, 60)
    crop = OverlapCrop(min_overlaps=(0.1,))
    # Scale 0.56, ratio 1: a window of 33.6×22.4 pixels from 24.6, 4.4; then it is taken, not the whole image.
    out = crop(sample, Chosen(0.56, 1.0, [0.41, 0.11], 1))
    assert out.image.shape == (22, 33, 3)
    assert np.array_equal(out.image, sample.image[4:26, 24:57])
    assert out.labels.tolist() == [1]
    assert np.allclose(out.boxes, [[5.4 * 33 / 33.6, 5.6 * 22 / 22.4, 33, 22]], atol=1e-4)
    assert crop(sample, Chosen(0.56, 1.0, [0.41, 0.11], 0)) is sample


def test_window_beside_the_image_is_all_canvas() -> None:
    """A canvas of twice the size with the image in its upper left quarter, and a window in the lower right one."""
    steps = ExpandedCrop(CaffeDistort(), RandomExpand(), OverlapCrop(min_overlaps=(0.0,)), RandomHorizontalFlip())
    drawn = (*[NEVER] * 4, ALWAYS, 18.0), (0.1, 2.0, 0.0, 0.0), (0.41, 1.0, [0.55, 0.55], 1), (0.1,)
    out = steps(sample_of([[0, 0, 30, 20]], 20, 30), Chosen(*chained.from_iterable(drawn)))
    assert out.image.shape == (16, 24, 3)
    assert (out.image == (123, 117, 104)).all()
    assert len(out.boxes) == 0


def test_windows_that_overlap_too_little_are_drawn_again() -> None:
    sample = sample_of([[0, 0, 30, 20]], 40, 60)
    crop = OverlapCrop(min_overlaps=(0.9,))
    # The object is the image's first quarter: the first window lies elsewhere, the second on it.
    corners = np.zeros((1, 50, 2))
    corners[0, 0] = 0.5
    out = crop(sample, Chosen(0.5, 1.0, corners, 1))
    assert out.image.shape == (20, 30, 3)
    tiny = sample_of([[0, 0, 1, 1]], 40, 60)
    assert crop(tiny, np.random.default_rng(0)) is tiny, "no window found: the whole image"


@pytest.mark.parametrize(
    ("number", "interpolation"),
    list(enumerate((cv2.INTER_LINEAR, cv2.INTER_AREA, cv2.INTER_NEAREST, cv2.INTER_CUBIC, cv2.INTER_LANCZOS4))),
)
def test_resize(number: int, interpolation: int) -> None:
    sample = sample_of([[30, 10, 60, 40]])
    out = RandomInterpolationResize((20, 90))(sample, Chosen(number))
    assert np.array_equal(out.image, cv2.resize(sample.image, (90, 20), interpolation=interpolation))
    assert out.boxes.tolist() == [[45, 5, 90, 20]]
    assert out.areas.tolist() == [45 * 15]


# How often, over many draws; five deviations wide.


def within(found: int, of: int, probability: float) -> None:
    deviation = (of * probability * (1 - probability)) ** 0.5
    assert abs(found - of * probability) < 5 * deviation, f"{found} of {of}, expected {of * probability:.0f}"


@pytest.mark.slow
def test_how_often_and_how_far_brightness_and_contrast_change() -> None:
    """Two greys, far from both ends, tell the factor and what was added before it; hue and saturation spare grey."""
    sample = Sample(np.array([[[130] * 3, [70] * 3]], np.uint8), np.zeros((0, 4)), np.zeros(0))
    rng, draws = np.random.default_rng(0), 4000
    greys = np.array([CaffeDistort()(sample, rng).image[0, :, 0] for _ in range(draws)], float)
    factors = (greys[:, 0] - greys[:, 1]) / 60
    added = greys.mean(1) / factors - 100
    # Half stay, and of those that change 4 % by too little to see; a measured factor is right to a sixtieth.
    within(int((np.abs(factors - 1) < 0.02).sum()), draws, 0.5 + 0.5 * 0.04)
    assert (factors.min(), factors.max()) == pytest.approx((0.5, 1.5), abs=0.03)
    within(int((factors < 0.75).sum()), draws, 0.5 * 0.25)
    assert (added.min(), added.max()) == pytest.approx((-32, 32), abs=2)
    within(int((added > 16).sum()), draws, 0.5 * 0.25)
    within(int((added < -16).sum()), draws, 0.5 * 0.25)


@pytest.mark.slow
def test_how_often_and_how_far_hue_and_saturation_change() -> None:
    hsv = np.array([[[90, 128, 200]]], np.uint8)
    sample = Sample(np.asarray(cv2.cvtColor(hsv, cv2.COLOR_HSV2RGB), np.uint8), np.zeros((0, 4)), np.zeros(0))
    rng, draws, step = np.random.default_rng(1), 4000, CaffeDistort(brightness=0, contrast=(1, 1))
    found = [cv2.cvtColor(step(sample, rng).image, cv2.COLOR_RGB2HSV)[0, 0].astype(float) for _ in range(draws)]
    hues, saturations = np.array(found)[:, 0] - 90, np.array(found)[:, 1] / 128
    assert (hues.min(), hues.max()) == pytest.approx((-18, 18), abs=1)
    within(int((hues > 9.5).sum()), draws, 0.5 * 8.5 / 36)
    within(int((hues < -9.5).sum()), draws, 0.5 * 8.5 / 36)
    assert (saturations.min(), saturations.max()) == pytest.approx((0.5, 1.5), abs=0.02)
    within(int((saturations < 0.75).sum()), draws, 0.5 * 0.25)
    within(int((saturations > 1.25).sum()), draws, 0.5 * 0.25)


def test_how_often_contrast_comes_last() -> None:
    sample, rng, draws = sample_of([], 5, 5), np.random.default_rng(2), 2000
    step = CaffeDistort(probability=1, brightness=0, contrast=(1.5, 1.5), saturation=(1.5, 1.5), hue=0)
    images = Counter(step(sample, rng).image.tobytes() for _ in range(draws))
    assert len(images) == 2
    within(max(images.values()), draws, 0.5)


def test_windows_that_are_sought() -> None:
    """Six searches, of 50 trials each; a trial draws scale, ratio and place."""

    class Counting(np.random.Generator):
        trials: list[int] = []  # noqa: RUF012
        windows: list[int] = []  # noqa: RUF012

        def uniform(self, low: Any = 0, high: Any = 1, size: Any = None) -> Any:
            drawn = super().uniform(low, high, size)
            self.trials.append(drawn.size)
            return drawn

        def integers(self, low: Any, *_: Any, **__: Any) -> Any:
            self.windows.append(low)
            return super().integers(low)

    rng = Counting(np.random.PCG64(0))
    assert OverlapCrop().min_overlaps == (0.1, 0.3, 0.5, 0.7, 0.9, 0.0)
    tiny = sample_of([[0, 0, 0.1, 0.1]], 40, 60)
    OverlapCrop()(tiny, rng)
    assert rng.trials == [6 * 50, 6 * 50, 6 * 50 * 2]
    # No window overlaps so small an object enough, but any will do for the last search: that, or the whole image.
    assert rng.windows == [2]


def test_how_far_images_expand_and_where() -> None:
    sample, rng, draws = sample_of([[0, 0, 60, 40]]), np.random.default_rng(1), 3000
    outs = [RandomExpand()(sample, rng) for _ in range(draws)]
    grown = [out for out in outs if out is not sample]
    within(len(grown), draws, 0.5)
    ratios = np.array([out.image.shape[0] / 40 for out in grown])
    assert abs(ratios.mean() - 2.5) < 0.1
    within(int((ratios > 3).sum()), len(grown), 1 / 3)
    places = np.array([out.boxes[0, 0] / (out.image.shape[1] - 60) for out in grown if out.image.shape[1] > 100])
    assert abs(places.mean() - 0.5) < 0.05
    assert places.min() < 0.05
    assert places.max() > 0.9


@pytest.mark.slow
def test_how_often_the_whole_image_stays_and_each_interpolation_comes() -> None:
    """An object that fills the image: every window is found, so the whole image is one of seven."""
    sample, rng, draws = sample_of([[0, 0, 60, 40]]), np.random.default_rng(2), 3000
    crop = OverlapCrop(scales=(0.96, 1.0))
    whole = sum(crop(sample, rng) is sample for _ in range(draws))
    within(whole, draws, 1 / 7)
    small = sample_of([], 4, 4)
    images = Counter(RandomInterpolationResize((5, 7))(small, rng).image.tobytes() for _ in range(draws))
    assert len(images) == 5
    for count in images.values():
        within(count, draws, 1 / 5)


def test_shapes_of_windows() -> None:
    crop, rng = OverlapCrop(), np.random.default_rng(3)
    windows = np.array([crop._draw_windows((4000, 1), rng)]).reshape(-1, 4)
    sides = windows[:, 2:] - windows[:, :2]
    scales, ratios = np.sqrt(sides.prod(1)), sides[:, 0] / sides[:, 1]
    assert windows.min() >= 0
    assert windows.max() <= 1
    assert abs(scales.mean() - 0.65) < 0.02
    assert scales.min() > 0.299
    assert (ratios >= np.maximum(0.5, scales**2) - 1e-3).all()
    assert (ratios <= np.minimum(2, 1 / scales**2) + 1e-3).all()
    small = ratios[scales < 0.7]
    assert small.min() < 0.55
    assert small.max() > 1.9


# Whatever is drawn.


@pytest.mark.slow
@settings(max_examples=60, deadline=None)
@example(1_420_845_802, 4)
@example(2146, 17)
@given(st.integers(0, 2**32 - 1), st.integers(0, 30))
def test_what_always_holds(seed: int, index: int) -> None:
    chain = build_steps(parse_message(CHAIN, m.TrainConfig).data_augmentation_options)
    sample = ShapesDataset(31, seed=9, size=(50, 70))[index]
    before = sample.image.copy()
    out = chain(sample, np.random.default_rng(seed))
    assert np.array_equal(sample.image, before), "the sample stays as it is"
    assert out.image.shape == (64, 96, 3)
    assert out.image.dtype == np.uint8
    assert len(out.boxes) == len(out.labels) == len(out.areas) <= len(sample.boxes)
    # Each step rounds to float32: an edge on the border may lie a few 1e-6 pixels beyond it.
    assert (out.boxes >= -1e-4).all()
    assert (out.boxes <= np.array([96, 64, 96, 64]) + 1e-4).all()
    assert (out.boxes[:, 2:] > out.boxes[:, :2]).all()
    assert out.masks is not None
    assert out.masks.shape == (len(out.boxes), 64, 96)
    again = chain(sample, np.random.default_rng(seed))
    assert np.array_equal(out.image, again.image), "all randomness is the generator's"


@pytest.mark.slow
@settings(max_examples=60, deadline=None)
@given(st.integers(0, 2**32 - 1), st.integers(0, 30))
def test_masks_follow_their_boxes(seed: int, index: int) -> None:
    """Within the pixel that a window's border is cut at."""
    sample = ShapesDataset(31, seed=9, size=(50, 70))[index]
    rng = np.random.default_rng(seed)
    out = OverlapCrop()(RandomExpand(probability=0.5)(sample, rng), rng)
    assert out.masks is not None
    assert out.masks.shape == (len(out.boxes), *out.image.shape[:2])
    for mask, (left, top, right, bottom) in zip(out.masks, out.boxes, strict=True):
        rows, columns = np.nonzero(mask)
        if len(rows):
            assert left - 2 <= columns.min() <= columns.max() <= right + 2
            assert top - 2 <= rows.min() <= rows.max() <= bottom + 2


def test_images_without_objects_pass() -> None:
    chain = build_steps(parse_message(CHAIN, m.TrainConfig).data_augmentation_options)
    for seed in range(50):
        out = chain(sample_of([]), np.random.default_rng(seed))
        assert out.image.shape == (64, 96, 3)
        assert len(out.boxes) == 0


def test_keypoints_go_along_and_are_not_seen_outside() -> None:
    sample = sample_of([[30, 10, 60, 30]], 40, 60)
    sample.keypoints = np.array([[[31, 11, 1], [59, 29, 1]]], np.float32)
    out = OverlapCrop(min_overlaps=(0.1,))(sample, Chosen(0.56, 1.0, [0.41, 0.11], 1))
    assert out.keypoints is not None
    wide, high = 33 / 33.6, 22 / 22.4
    assert np.allclose(out.keypoints, [[[6.4 * wide, 6.6 * high, 1], [34.4 * wide, 24.6 * high, 0]]], atol=1e-4)


@pytest.mark.parametrize(
    ("step", "message"),
    [
        ("caffe_distort { min_contrast: 2 }", "caffe_distort.min_contrast: 2.0 is over max_contrast 1.5"),
        ("random_expand { colour: [1, 2] }", "expected three numbers"),
        ("overlap_crop { min_scale: 0.9 max_scale: 0.5 }", "min_scale: 0.9 is over max_scale"),
        ("overlap_crop { min_overlap: [0.5, 1.5] }", "less than or equal to 1"),
        ("random_interpolation_resize { height: 3 }", "expected height and width, found 3 and 0"),
    ],
)
def test_errors(step: str, message: str) -> None:
    with pytest.raises(bw.ConfigError, match=message):
        build_steps(parse_message(f"data_augmentation_options {{ {step} }}", m.TrainConfig).data_augmentation_options)
