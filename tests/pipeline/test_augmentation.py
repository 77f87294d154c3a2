"""Every step of `PreprocessingStep` on whatever comes, and what is wrong with its numbers."""

from __future__ import annotations

import numpy as np
import pytest

from boxwright.base.errors import ConfigError
from boxwright.config.load import parse_message
from boxwright.data.augmentation.transform import Transform
from boxwright.data.batch import collate, to_input
from boxwright.data.shapes import ShapesDataset
from boxwright.nn.preprocessing import FixedShapeResizer
from boxwright.pipeline import messages as m
from boxwright.pipeline.augmentation import build_steps
from boxwright.types import Sample

SHAPES = ShapesDataset(12, seed=4, size=(40, 48))
# What a step cannot do without.
NEEDED = {
    "normalize_image": "original_maxval: 255 target_maxval: 1",
    "random_resize_method": "target_height: 24 target_width: 20",
    "resize_image": "new_height: 24 new_width: 20",
    "subtract_channel_mean": "means: [1, 2, 3]",
    "random_downscale_to_target_pixels": "min_target_pixels: 100 max_target_pixels: 500",
    "remap_labels": "original_labels: 2 new_label: 1",
    "drop_label_probabilistically": "label: 1 drop_probability: 0.5",
    "random_scale_crop_and_pad_to_square": "output_size: 40",
    "random_interpolation_resize": "height: 24 width: 20",
    "user_augmentation": 'callable: "torchvision.transforms.v2:RandomHorizontalFlip"',
    "large_scale_jitter": "height: 40 width: 30",
}
STEPS = list(m.PreprocessingStep.oneofs["preprocessing_step"])


def build(text: str) -> Transform:
    return build_steps([parse_message(text, m.PreprocessingStep)], SHAPES)


def test_how_many_steps_there_are() -> None:
    """39 of TensorFlow's, four of Caffe's SSD, eleven more."""
    assert len(STEPS) == 39 + 4 + 11
    assert set(NEEDED) <= set(STEPS)


def with_everything(sample: Sample) -> Sample:
    """Return a sample of which everything is known."""
    count = len(sample.boxes)
    sample.keypoints = np.ones((count, 2, 3), np.float32)
    sample.class_scores = np.ones((count, 4), np.float32)
    sample.confidences = np.ones((count, 4), np.float32)
    sample.track_ids = np.arange(count)
    return sample


@pytest.mark.slow_cases("random_square_patch")
@pytest.mark.parametrize("name", STEPS)
def test_what_is_known_of_an_object_stays_with_it(name: str) -> None:
    step = build(f"{name} {{ {NEEDED.get(name, '')} }}")
    for index in range(8):
        given = with_everything(SHAPES[index])
        before = given.image.copy()
        found = step(given, np.random.default_rng(index))
        height, width = found.image.shape[:2]
        assert found.image.dtype in (np.uint8, np.float32)
        assert all(len(rows) == len(found.boxes) for rows in found.of_objects().values())
        assert found.boxes.dtype == np.float32
        if len(found.boxes) and found.masks is not None:
            assert found.masks.shape[1:] == (height, width)
        assert np.array_equal(given.image, before), "the sample that it was given is as it was"
        batch = collate([to_input(found, FixedShapeResizer(32, 32))])
        assert bool(np.isfinite(batch.images.numpy()).all())


@pytest.mark.slow_cases("size0-random_square_patch", "size3-random_square_patch")
@pytest.mark.parametrize("name", STEPS)
@pytest.mark.parametrize(
    "size", [(1, 1), *(pytest.param(size, marks=pytest.mark.slow) for size in ((1, 9), (9, 1))), (5, 7)]
)
def test_images_without_objects_and_of_few_pixels(name: str, size: tuple[int, int]) -> None:
    step = build(f"{name} {{ {NEEDED.get(name, '')} }}")
    for seed in range(4):
        for boxes in (np.zeros((0, 4)), np.array([[0, 0, size[1], size[0]]])):
            image = np.random.default_rng(seed).integers(0, 256, (*size, 3)).astype(np.uint8)
            masks = np.ones((len(boxes), *size), np.uint8)
            given = with_everything(Sample(image, boxes, np.zeros(len(boxes), np.int64), masks=masks))
            found = step(given, np.random.default_rng(seed))
            assert min(found.image.shape[:2]) >= 1
            collate([to_input(found, FixedShapeResizer(8, 8))])


@pytest.mark.slow_cases("random_square_patch")
@pytest.mark.parametrize("name", STEPS)
def test_the_same_seed_gives_the_same_sample(name: str) -> None:
    step = build(f"{name} {{ {NEEDED.get(name, '')} }}")
    first, second = (step(with_everything(SHAPES[2]), np.random.default_rng(3)) for _ in range(2))
    assert np.array_equal(first.image, second.image)
    assert np.array_equal(first.boxes, second.boxes)


def test_a_sample_that_a_step_empties_is_learnt_from_as_background() -> None:
    step = build("drop_label_probabilistically { label: 1 drop_probability: 1.0 }")
    circles = next(sample for sample in SHAPES if (sample.labels == 0).all() and len(sample.labels))
    found = step(circles, np.random.default_rng(0))
    assert len(found.boxes) == 0
    assert found.annotated
    batch = collate([to_input(found, FixedShapeResizer(32, 32))])
    assert not bool(batch.targets.valid.any())


@pytest.mark.parametrize(
    ("text", "wanted"),
    [
        ("random_adjust_contrast { min_delta: 2.0 max_delta: 1.0 }", "min_delta: 2.0 is over max_delta"),
        ("random_pixel_value_scale { minval: 2.0 }", "minval: 2.0 is over maxval"),
        ("random_image_scale { min_scale_ratio: 3.0 }", "min_scale_ratio: 3.0 is over"),
        ("normalize_image { }", "original_minval and original_maxval are the same"),
        ("random_pad_image { min_image_height: 3 }", "set min_image_height and min_image_width, or neither"),
        ("random_pad_image { pad_color: 3 }", "expected three numbers"),
        ("random_absolute_pad_image { max_height_padding: -1 }", "greater|at least 0"),
        ("random_crop_pad_image { min_padded_size_ratio: 1 }", "expected two numbers"),
        ("random_crop_to_aspect_ratio { aspect_ratio: 0 }", "above 0|greater"),
        ("resize_image { }", "new_height and new_width"),
        ("random_resize_method { }", "target_height and target_width"),
        (
            "random_downscale_to_target_pixels { min_target_pixels: 9 max_target_pixels: 3 }",
            "min_target_pixels: 9 is not below max_target_pixels 3",
        ),
        ("random_square_crop_by_scale { scale_min: 2.0 }", "scale_min: 2.0 is over"),
        ("random_square_crop_by_scale { num_scales: 0 }", "num_scales of at least 1|greater"),
        ("random_scale_crop_and_pad_to_square { output_size: 0 }", "output_size|greater"),
        ("random_jpeg_quality { min_jpeg_quality: 90 max_jpeg_quality: 10 }", "min_jpeg_quality"),
        ("random_patch_gaussian { min_patch_size: 9 max_patch_size: 3 }", "min_patch_size"),
        ("autoaugment_image { policy_name: 'v9' }", "v9"),
        ("autoaugment_image { sub_policy { operation { name: 'Blur' } } }", "Blur.*Posterize"),
        ("remap_labels { original_labels: 1 new_label: 99 }", "no class has the id 99"),
        ("subtract_channel_mean { }", "means|three"),
        ("convert_class_logits_to_softmax { temperature: 0 }", "temperature|greater"),
        ("random_distort_color { color_ordering: 7 }", "expected 0 or 1"),
        ("random_horizontal_flip { probability: 2 }", "less than or equal|probability"),
    ],
)
def test_bad_numbers(text: str, wanted: str) -> None:
    with pytest.raises(ConfigError, match=wanted):
        build(text)
