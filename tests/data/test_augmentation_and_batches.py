from __future__ import annotations

from colorsys import hsv_to_rgb, rgb_to_hsv
from itertools import islice

import numpy as np
import pytest
import torch

from boxwright.base.errors import ConfigError
from boxwright.config.load import parse_message
from boxwright.data.augmentation.color import RandomBrightness, RandomContrast, RandomGray, RandomHue, RandomSaturation
from boxwright.data.augmentation.crop import SSD_CROPS, RandomCrop, crop, overlapping
from boxwright.data.augmentation.flip import RandomHorizontalFlip, RandomRotation90, RandomVerticalFlip
from boxwright.data.augmentation.functional import warp
from boxwright.data.augmentation.transform import Chain, OneOf
from boxwright.data.batch import Batch, collate, to_input
from boxwright.data.loader import TrainingExamples, training_batches
from boxwright.data.order import StreamSettings, sample_keys
from boxwright.data.shapes import ShapesDataset
from boxwright.nn.preprocessing import FixedShapeResizer, KeepAspectRatioResizer
from boxwright.pipeline import messages as m
from boxwright.pipeline.augmentation import build_steps
from boxwright.types import Sample
from boxwright.types.packing import collect_tensors, packed
from tests.conftest import GOLDEN
from tests.cuda.fake import CUDA, fake_cuda

RNG = np.random.default_rng(0)


def sample() -> Sample:
    """A 6 × 10 image with a bright rectangle that its box and mask outline."""
    image = np.zeros((6, 10, 3), np.uint8)
    image[1:3, 2:6] = 200
    mask = (image[..., 0] > 0).astype(np.uint8)
    points = np.array([[[2, 1, 1], [6, 3, 1]]], np.float32)
    return Sample(image, np.array([[2, 1, 6, 3]]), np.array([3]), masks=mask[None], keypoints=points)


@pytest.mark.parametrize(
    ("transform", "box", "first_point"),
    [
        (RandomHorizontalFlip(1.0), [4, 1, 8, 3], [8, 1, 1]),
        (RandomHorizontalFlip(1.0, (1, 0)), [4, 1, 8, 3], [4, 3, 1]),
        (RandomVerticalFlip(1.0), [2, 3, 6, 5], [2, 5, 1]),
        (RandomRotation90(1.0), [1, 4, 3, 8], [1, 8, 1]),
    ],
)
def test_flips_by_hand(transform: RandomHorizontalFlip, box: list[int], first_point: list[int]) -> None:
    found = transform(sample(), RNG)
    assert found.boxes.tolist() == [box]
    assert found.keypoints is not None
    assert found.keypoints[0, 0].tolist() == first_point
    assert found.masks is not None
    assert np.array_equal(found.masks[0] > 0, found.image[..., 0] > 0)
    rows, columns = np.nonzero(found.masks[0])
    assert [columns.min(), rows.min(), columns.max() + 1, rows.max() + 1] == box


@pytest.mark.parametrize("turn", [-0.5, -0.2, -0.01, 0.0, 0.02, 0.5])
def test_hues_turn_as_in_pythons_own_colorsys(turn: float) -> None:
    class Fixed:
        def uniform(self, low: float, high: float) -> float:
            assert (low, high) == (-0.5, 0.5)
            return turn

    colors = np.random.default_rng(0).uniform(0, 255, (6, 7, 3)).astype(np.float32)
    colors[0], colors[1, :, 1:] = colors[0, :, :1], 0  # grays, and pure reds
    hsv = [rgb_to_hsv(*color) for color in colors.reshape(-1, 3).tolist()]
    expected = np.array([hsv_to_rgb((hue + turn) % 1, *rest) for hue, *rest in hsv]).reshape(6, 7, 3)
    for image, tolerance in ((colors, 1e-3), (colors.astype(np.uint8), 2.0)):
        one = Sample(image, np.zeros((0, 4)), np.zeros(0))
        found = RandomHue(0.5)(one, Fixed()).image  # type: ignore[arg-type]
        assert found.dtype == image.dtype
        assert np.abs(found - expected).max() < tolerance
    gray = Sample(colors[..., :1], np.zeros((0, 4)), np.zeros(0))
    assert RandomHue(0.5)(gray, Fixed()) is gray  # type: ignore[arg-type]


def test_every_channel_has_its_own_color_beyond_the_border() -> None:
    image = np.arange(2 * 3 * 6, dtype=np.uint8).reshape(2, 3, 6)
    moved = warp.warp(image, warp.translation(1, 0), (91, 92, 93, 94, 95, 96.9))
    assert np.array_equal(moved[:, :2], image[:, 1:])
    assert moved[:, 2].tolist() == [[91, 92, 93, 94, 95, 96]] * 2


def cropped(window: tuple[int, int, int, int], least: float, *, clip_boxes: bool = True) -> Sample:
    return crop(sample(), window, overlapping(sample().boxes, window, least), clip_boxes=clip_boxes)


def test_crop_by_hand() -> None:
    found = cropped((4, 0, 10, 6), 0.5)
    assert found.boxes.tolist() == [[0, 1, 2, 3]]
    assert found.keypoints is not None
    assert found.keypoints[0, :, 2].tolist() == [0, 1]
    assert cropped((4, 0, 10, 6), 0.5, clip_boxes=False).boxes.tolist() == [[-2, 1, 2, 3]]
    assert len(cropped((4, 0, 10, 6), 0.51).boxes) == 0
    assert len(cropped((6, 0, 10, 6), 0.0).boxes) == 0


@pytest.mark.parametrize("seed", range(30))
def test_random_crops_keep_boxes_on_their_objects(seed: int) -> None:
    whole = ShapesDataset(30, seed=9)[seed]
    found = OneOf(SSD_CROPS)(whole, np.random.default_rng(seed))
    height, width = found.image.shape[:2]
    assert height >= 1
    assert width >= 1
    assert (found.boxes >= 0).all()
    assert (found.boxes <= [width, height, width, height]).all()
    assert found.masks is not None
    assert found.masks.shape[1:] == (height, width)
    if len(found.boxes):
        assert found.masks.sum() > 0


def test_crop_of_an_image_without_objects_and_of_one_pixel() -> None:
    empty = Sample(np.zeros((1, 1, 3), np.uint8), np.zeros((0, 4)), np.zeros(0))
    for seed in range(20):
        assert OneOf(SSD_CROPS)(empty, np.random.default_rng(seed)).image.shape == (1, 1, 3)


def test_full_cover_keeps_the_object_whole() -> None:
    for seed in range(20):
        found = RandomCrop(min_object_covered=1.0, areas=(0.2, 1.0))(sample(), np.random.default_rng(seed))
        assert found.masks is not None
        assert found.masks.sum() == 8


class Fixed:
    """A generator whose every draw is the upper end."""

    def uniform(self, low: float, high: float) -> float:
        return high


def test_colours_by_hand() -> None:
    image = np.array([[[100, 50, 0], [200, 150, 250]]], np.uint8)
    one = Sample(image, np.zeros((0, 4)), np.zeros(0))
    assert RandomBrightness(0.2)(one, Fixed()).image[0, 0].tolist() == [151, 101, 51]  # type: ignore[arg-type]
    contrast = RandomContrast(1.0, 2.0)(one, Fixed()).image  # type: ignore[arg-type]
    assert contrast[0, :, 0].tolist() == [50, 250]
    assert contrast[0, :, 2].tolist() == [0, 255]
    saturation = RandomSaturation(1.0, 1.5)(one, Fixed()).image  # type: ignore[arg-type]
    assert saturation[0, 0].tolist() == [100, 50, 0], "already full"
    assert saturation[0, 1].tolist() == [175, 100, 250]


def test_gray_keeps_alpha_as_tf_does() -> None:
    """0.2989 · 100 + 0.587 · 50 + 0.114 · 200 = 82.04."""
    image = np.array([[[100, 50, 200, 77]]], np.uint8)
    sample = Sample(image, np.zeros((0, 4), np.float32), np.zeros(0, np.int64))
    found = RandomGray(1.0)(sample, np.random.default_rng(0))
    assert found.image.tolist() == [[[82, 82, 82, 77]]]


@pytest.mark.parametrize(
    ("clip_boxes", "seen", "box"), [(True, [0, 1, 0], [0, 0, 6, 6]), (False, [1, 1, 0], [-1, -1, 7, 7])]
)
def test_keypoints_outside_a_crop_that_clips_nothing_stay(clip_boxes: bool, seen: list[int], box: list[int]) -> None:
    """As in TF: what leaves the window is hidden only where boxes are clipped, too."""
    points = np.array([[[1, 1, 1], [5, 5, 1], [5, 5, 0]]], np.float32)
    sample = Sample(
        np.zeros((10, 10, 3), np.uint8), np.array([[1, 1, 9, 9]], np.float32), np.zeros(1, np.int64), keypoints=points
    )
    found = crop(sample, (2, 2, 8, 8), np.ones(1, np.bool_), clip_boxes=clip_boxes)
    assert found.boxes.tolist() == [box]
    assert found.keypoints is not None
    assert found.keypoints[0].tolist() == [[-1, -1, seen[0]], [3, 3, seen[1]], [3, 3, seen[2]]]


def test_rotations_of_odd_sides_round_as_tf_does() -> None:
    """Pixels halfway between two others; recorded from TensorFlow 2.15's ImageProjectiveTransformV3."""
    recorded = np.load(GOLDEN / "rotations.npz")
    assert len(recorded.files) == 6
    for name in recorded.files:
        size, degrees = name.split("/")
        height, width = map(int, size.split("x"))
        numbers = np.arange(height * width, dtype=np.int16).reshape(height, width, 1)
        turned = warp.warp(numbers, warp.rotation(float(degrees), height, width), -1)
        assert np.array_equal(turned[..., 0], recorded[name]), name


@pytest.mark.slow
def test_every_step_leaves_a_valid_sample() -> None:
    text = """random_horizontal_flip random_vertical_flip random_rotation90 random_adjust_brightness random_adjust_contrast
    random_adjust_hue random_adjust_saturation random_distort_color random_crop_image ssd_random_crop"""
    steps = [parse_message(f"{name} {{ }}", m.PreprocessingStep) for name in text.split()]
    chain = build_steps(steps)
    assert len(chain.transforms) == 10
    for index in range(10):
        found = chain(ShapesDataset(10, seed=2)[index], np.random.default_rng(index))
        assert found.image.dtype == np.uint8
        assert found.image.flags.c_contiguous
        assert len(found.boxes) == len(found.labels) == len(found.weights) == len(found.is_crowd)


@pytest.mark.parametrize(
    ("text", "wanted"),
    [
        ("random_crop_image { min_area: 0.9 max_area: 0.5 }", "min_area: 0.9 is over max_area 0.5"),
        ("random_distort_color { color_ordering: 4 }", "expected 0 or 1"),
        ("ssd_random_crop { operations { } }", "ssd_random_crop.operations\\[0\\]: aspect ratios and areas above 0"),
        ("", "PreprocessingStep: empty"),
    ],
)
def test_bad_steps(text: str, wanted: str) -> None:
    with pytest.raises(ConfigError, match=wanted):
        build_steps([parse_message(text, m.PreprocessingStep)])


def test_examples_leave_out_what_cannot_be_learnt() -> None:
    boxes = np.array([[0, 0, 10, 6], [2, 2, 2, 5], [-9, -9, -1, -1], [8, 4, 20, 20], [1, 1, 2, 2]], np.float32)
    crowd = np.array([False, False, False, False, False])
    one = Sample(np.zeros((6, 10, 3), np.uint8), boxes, np.arange(5), is_crowd=crowd)
    example = to_input(one, FixedShapeResizer(12, 40))
    assert example.labels.tolist() == [0, 3, 4], "without area, and outside, left out; crossing, clipped"
    assert example.boxes.tolist() == [[0, 0, 40, 12], [32, 8, 40, 12], [4, 2, 8, 4]]
    one.is_crowd[:] = True
    assert len(to_input(one, FixedShapeResizer(12, 40)).boxes) == 0


def test_collation_pads_boxes_and_images() -> None:
    resizer = KeepAspectRatioResizer(8, 16)
    examples = [
        to_input(Sample(np.full((8, 8, 3), 9, np.uint8), np.array([[0, 0, 4, 4]] * 9), np.ones(9)), resizer),
        to_input(Sample(np.full((8, 16, 3), 9, np.uint8), np.zeros((0, 4)), np.zeros(0)), resizer),
    ]
    batch = collate(examples)
    assert batch.images.shape == (2, 3, 8, 16)
    assert batch.images[0, 0, 0].tolist() == [9] * 8 + [0] * 8
    assert batch.true_sizes.tolist() == [[8, 8], [8, 16]]
    assert batch.targets.boxes.shape == (2, 16, 4)
    assert batch.targets.valid.sum(1).tolist() == [9, 0]
    assert collate(examples[1:]).targets.boxes.shape == (1, 0, 4)


def test_stream_uses_each_sample_once_an_epoch_and_starts_anywhere() -> None:
    settings = StreamSettings(batch_size=4, seed=3)
    keys = list(islice(sample_keys((10,), settings), 40))
    for epoch in range(4):
        assert sorted(i for e, i in keys if e == epoch) == list(range(10))
    assert list(islice(sample_keys((10,), settings, 27), 13)) == keys[27:]
    assert [i for _, i in keys[:10]] != [i for _, i in keys[10:20]]
    once = StreamSettings(batch_size=4, shuffle=False, num_epochs=1, every_nth=2)
    assert list(sample_keys((10,), once)) == [(0, 0), (0, 2), (0, 4), (0, 6), (0, 8)]


@pytest.mark.parametrize("workers", [pytest.param(1, marks=pytest.mark.slow), 2])
def test_stream_is_the_same_whatever_the_workers(workers: int) -> None:
    def images(count: int, start: int) -> list[torch.Tensor]:
        augmentation = Chain((RandomHorizontalFlip(), OneOf(SSD_CROPS)))
        examples = TrainingExamples(ShapesDataset(9, seed=1), augmentation, FixedShapeResizer(32, 32), seed=5)
        stream = iter(training_batches(examples, StreamSettings(batch_size=2, seed=5, workers=count), start))
        return [next(stream).images for _ in range(3)]

    assert all(torch.equal(a, b) for a, b in zip(images(0, 4), images(workers, 4), strict=True))


def masked_batch() -> Batch:
    return collate([to_input(sample(), FixedShapeResizer(8, 12)) for _ in range(3)])


def test_a_batch_is_one_block_and_none_of_its_numbers_moves() -> None:
    batch = masked_batch()
    tensors = collect_tensors(batch)
    assert len(tensors) >= 10
    block = packed(tensors)
    assert len(block) == sum(one.numel() * one.element_size() for one in tensors)
    views = batch._views_in(block)
    for one, other in zip(tensors, collect_tensors(views), strict=True):
        assert one.dtype == other.dtype
        assert torch.equal(one.nan_to_num(), other.nan_to_num())
        assert one.numel() == 0 or other.untyped_storage().data_ptr() == block.untyped_storage().data_ptr()
    assert views.images.stride() == batch.images.stride(), "channels lie last, as they were read"
    assert (views.ids, views.keys, views.problems) == (batch.ids, batch.keys, batch.problems)


def test_a_batch_goes_to_a_gpu_in_one_copy_that_is_not_waited_for() -> None:
    batch = masked_batch()
    with fake_cuda() as recorder:
        pinned = batch.pin_memory()
        recorder.clear()
        there = pinned.to(CUDA)
        assert dict(recorder.kernels) == {"_to_copy": 1}
        assert not recorder.waits
    assert {one.device for one in collect_tensors(there)} == {CUDA}
    assert [one.shape for one in collect_tensors(there)] == [one.shape for one in collect_tensors(batch)]
    assert there.block is None
