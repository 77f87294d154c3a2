"""Transforms of users: of torchvision, of Albumentations, and of their own."""

from __future__ import annotations

import random
from typing import Any

import numpy as np
import pytest
import torch
from torchvision.transforms import v2

from boxwright.base.errors import ConfigError, DataError
from boxwright.config.load import parse_message
from boxwright.data.augmentation.functional.compose import mask_boxes
from boxwright.data.augmentation.transform import Transform
from boxwright.data.shapes import ShapesDataset
from boxwright.pipeline import messages as m
from boxwright.pipeline.augmentation import build_steps
from boxwright.types import Sample

SHAPES = ShapesDataset(12, seed=3, size=(48, 64))
HERE = __name__


def with_points(index: int) -> Sample:
    """Return a sample whose keypoints are the corners of its boxes."""
    sample = SHAPES[index]
    corners = sample.boxes[:, [0, 1, 2, 3]].reshape(-1, 2, 2)
    sample.keypoints = np.concatenate([corners, np.ones((*corners.shape[:2], 1))], -1).astype(np.float32)
    sample.weights = np.arange(len(sample.boxes), dtype=np.float32)
    return sample


def build(name: str, **arguments: str) -> Transform:
    given = "".join(f"arguments {{ key: '{key}' value: '{value}' }} " for key, value in arguments.items())
    text = f'user_augmentation {{ callable: "{name}" {given}}}'
    return build_steps([parse_message(text, m.PreprocessingStep)], SHAPES)


# What users write: functions that are called with the arguments.
def torchvision_pipeline(zoom: float) -> v2.Compose:
    return v2.Compose([v2.RandomHorizontalFlip(1.0), v2.RandomIoUCrop(), v2.ScaleJitter((40, 50), (zoom, zoom + 0.5))])


def torchvision_sanitized() -> v2.Compose:
    return v2.Compose([v2.RandomCrop((20, 20)), v2.ClampBoundingBoxes(), v2.SanitizeBoundingBoxes(min_size=4)])


def to_float() -> v2.ToDtype:
    return v2.ToDtype(torch.float32, scale=True)


def albumentations_pipeline(p: float) -> Any:
    import albumentations as A  # as its users write

    return A.Compose(
        [A.RandomCrop(30, 40), A.HorizontalFlip(p=p), A.RandomBrightnessContrast(p=1.0)],
        bbox_params=A.BboxParams(format="coco", min_visibility=0.3),
    )


def albumentations_flip() -> Any:
    import albumentations as A

    return A.HorizontalFlip(p=1.0)


def albumentations_float() -> Any:
    import albumentations as A

    return A.ToFloat()


def own(factor: float) -> Transform:
    def darker(sample: Sample, rng: np.random.Generator) -> Sample:
        return sample.moved((sample.image * (factor * rng.random())).astype(np.uint8))

    return darker


def nothing() -> None:
    return None


def test_torchvision_mirrors_as_ours() -> None:
    """Two implementations of one thing: theirs and `random_horizontal_flip`."""
    theirs = build("torchvision.transforms.v2:RandomHorizontalFlip", p="1.0")
    _compare_with_our_mirror(theirs)


@pytest.mark.slow
def test_albumentations_mirrors_as_ours() -> None:
    _compare_with_our_mirror(build(f"{HERE}:albumentations_flip"))


def _compare_with_our_mirror(theirs: Transform) -> None:
    ours = build_steps([parse_message("random_horizontal_flip { probability: 1.0 }", m.PreprocessingStep)])
    for index in range(12):
        sample, rng = with_points(index), np.random.default_rng(index)
        found, wanted = theirs(sample, rng), ours(sample, rng)
        assert np.array_equal(found.image, wanted.image)
        np.testing.assert_allclose(found.boxes, wanted.boxes, atol=1e-4)
        assert np.array_equal(found.masks, wanted.masks)  # type: ignore[arg-type]
        assert found.labels.tolist() == wanted.labels.tolist()
        assert found.weights.tolist() == wanted.weights.tolist()
        assert found.keypoints is not None
        assert wanted.keypoints is not None
        # Albumentations mirrors points about the middle of the last pixel, one less than the width.
        assert (np.abs(found.keypoints[..., :2] - wanted.keypoints[..., :2]) <= 1.001).all()


@pytest.mark.slow_cases("torchvision_pipeline-arguments0", "albumentations_pipeline-arguments2")
@pytest.mark.parametrize(
    ("name", "arguments"),
    [
        ("torchvision_pipeline", {"zoom": "1.0"}),
        ("torchvision_sanitized", {}),
        ("albumentations_pipeline", {"p": "0.5"}),
    ],
)
def test_what_belongs_together_stays_together(name: str, arguments: dict[str, str]) -> None:
    step = build(f"{HERE}:{name}", **arguments)
    changed = removed = 0
    for index in range(12):
        for seed in range(4):
            before = with_points(index)
            found = step(before, np.random.default_rng(seed))
            height, width = found.image.shape[:2]
            assert found.masks is not None
            assert found.masks.shape == (len(found.boxes), height, width)
            assert all(len(rows) == len(found.boxes) for rows in found.of_objects().values())
            # Weights number the objects: which class each has did not change.
            assert found.labels.tolist() == before.labels[found.weights.astype(int)].tolist()
            removed += len(before.boxes) - len(found.boxes)
            changed += not np.array_equal(before.image, found.image)
            seen = found.keep(found.masks.any((1, 2)))
            assert seen.masks is not None
            tight = mask_boxes(seen.masks)
            inside = np.clip(tight, seen.boxes[:, [0, 1, 0, 1]], seen.boxes[:, [2, 3, 2, 3]])
            assert (np.abs(inside - tight) < 2).all(), "masks lie in their boxes"
    assert changed == 48
    assert removed > 5


@pytest.mark.parametrize("name", ["torchvision_sanitized", "albumentations_pipeline"])
def test_the_samples_generator_decides(name: str) -> None:
    step = build(f"{HERE}:{name}", **({"p": "0.5"} if "albu" in name else {}))
    sample = with_points(0)
    states = random.getstate(), np.random.get_state()[1].tolist(), torch.get_rng_state().tolist()
    first = [step(sample, np.random.default_rng(seed)) for seed in range(8)]
    random.seed(1)
    np.random.seed(1)
    torch.manual_seed(1)
    second = [step(sample, np.random.default_rng(seed)) for seed in range(8)]
    assert all(np.array_equal(a.image, b.image) for a, b in zip(first, second, strict=True))
    assert len({found.image.tobytes() for found in first}) > 4, "and seeds differ"
    random.setstate(states[0])
    before = random.getstate(), np.random.get_state()[1].tolist(), torch.get_rng_state().tolist()
    step(sample, np.random.default_rng(9))
    after = random.getstate(), np.random.get_state()[1].tolist(), torch.get_rng_state().tolist()
    assert before == after, "nobody else's generators move"


@pytest.mark.parametrize("name", ["torchvision_pipeline", "torchvision_sanitized", "albumentations_pipeline"])
def test_images_without_objects(name: str) -> None:
    arguments = {"torchvision_pipeline": {"zoom": "1.0"}, "albumentations_pipeline": {"p": "1.0"}}.get(name, {})
    sample = with_points(0).keep(np.zeros(0, np.int64))
    found = build(f"{HERE}:{name}", **arguments)(sample, np.random.default_rng(0))
    assert found.boxes.shape == (0, 4)
    assert found.masks is not None
    assert found.masks.shape[1:] == found.image.shape[:2]


def test_a_function_of_ones_own() -> None:
    found = build(f"{HERE}:own", factor="0.5")(with_points(0), np.random.default_rng(0))
    rng = np.random.default_rng(0)
    rng.integers(0, 2**32)  # the seed of other generators
    wanted = with_points(0).image * (0.5 * rng.random())
    assert np.array_equal(found.image, wanted.astype(np.uint8))


@pytest.mark.parametrize("name", ["to_float", "albumentations_float"])
def test_pixels_stay_levels(name: str) -> None:
    with pytest.raises(DataError, match=r"images became float32; they must stay uint8, 0 to 255"):
        build(f"{HERE}:{name}")(with_points(0), np.random.default_rng(0))


@pytest.mark.parametrize(
    ("name", "arguments", "wanted"),
    [
        ("os.path", {}, "expected package.module:function, found os.path"),
        ("", {}, "expected package.module:function"),
        (
            "no_such_package:f",
            {},
            "No module named 'no_such_package'; modules are imported as in Python",
        ),
        ("torchvision.transforms.v2:NoSuch", {}, "has no attribute 'NoSuch'"),
        (f"{HERE}:own", {"wrong": "1"}, "raised TypeError: own.. got an unexpected keyword argument 'wrong'"),
        (f"{HERE}:own", {"factor": "half"}, "factor: expected JSON such as 0.5"),
        (f"{HERE}:own", {"not a name": "1"}, "expected a name, found not a name"),
        (f"{HERE}:nothing", {}, "returned NoneType; expected a transform of torchvision"),
    ],
)
def test_what_is_wrong_is_said(name: str, arguments: dict[str, str], wanted: str) -> None:
    with pytest.raises(ConfigError, match=wanted):
        build(name, **arguments)


def test_checking_runs_nobodys_code() -> None:
    text = 'user_augmentation { callable: "no_such_package:f" }'
    step = build_steps([parse_message(text, m.PreprocessingStep)])
    with pytest.raises(ConfigError, match="without the data"):
        step(with_points(0), np.random.default_rng(0))


def test_floats_do_not_become_black() -> None:
    """Of floats torchvision expects 0 to 1; ours go to 255."""
    sample = with_points(0)
    wanted = build("torchvision.transforms.v2:RandomPosterize", bits="4", p="1.0")(sample, np.random.default_rng(0))
    sample.image = sample.image.astype(np.float32)
    found = build("torchvision.transforms.v2:RandomPosterize", bits="4", p="1.0")(sample, np.random.default_rng(0))
    assert np.array_equal(found.image, wanted.image)
    assert found.image.max() > 100


def test_boxes_without_area_are_left_out() -> None:
    image = np.zeros((40, 50, 3), np.uint8)
    boxes = np.array([[7, 7, 7, 12], [60, 60, 70, 70], [20, 20, 10, 10], [5, 5, 20, 20]])
    given = Sample(image, boxes, np.arange(4))
    found = build(f"{HERE}:albumentations_flip")(given, np.random.default_rng(0))
    assert found.labels.tolist() == [3]
    np.testing.assert_allclose(found.boxes, [[30, 5, 45, 20]], atol=1e-4)


def global_draws() -> Transform:
    def noisy(sample: Sample, rng: np.random.Generator) -> Sample:
        return sample.moved(np.full_like(sample.image, np.random.randint(256)))

    return noisy


def returns_nothing() -> Any:
    return lambda sample, rng: None


def test_own_transforms_repeat_whatever_they_draw_from() -> None:
    step = build(f"{HERE}:global_draws")
    levels = {int(step(with_points(0), np.random.default_rng(1)).image[0, 0, 0]) for _ in range(5)}
    assert len(levels) == 1
    others = {int(step(with_points(0), np.random.default_rng(seed)).image[0, 0, 0]) for seed in range(8)}
    assert len(others) > 4
    with pytest.raises(DataError, match="the transform returned NoneType; expected a Sample"):
        build(f"{HERE}:returns_nothing")(with_points(0), np.random.default_rng(0))


def test_masks_two_pixels_wide_are_masks() -> None:
    image, mask = np.zeros((6, 2, 3), np.uint8), np.ones((1, 6, 2), np.uint8)
    mask[0, :3] = 0
    given = Sample(image, np.array([[0, 3, 2, 6]]), np.zeros(1, np.int64), masks=mask)
    found = build("torchvision.transforms.v2:RandomVerticalFlip", p="1.0")(given, np.random.default_rng(0))
    assert np.array_equal(found.masks, mask[:, ::-1])  # type: ignore[arg-type]
    assert found.boxes.tolist() == [[0, 0, 2, 3]]
