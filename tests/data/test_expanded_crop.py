"""Caffe's steps as one: the samples that they give one after the other, to the bit."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from boxwright.config.load import parse_message
from boxwright.data.augmentation.expanded_crop import ByOrigin, ExpandedCrop
from boxwright.data.loader import TrainingExamples
from boxwright.data.shapes import ShapesDataset
from boxwright.nn.preprocessing import IdentityResizer
from boxwright.pipeline import messages as m
from boxwright.pipeline.augmentation import build_augmentation
from boxwright.types import Sample

DISTORT, FLIP = (
    "data_augmentation_options { caffe_distort { } }",
    "data_augmentation_options { random_horizontal_flip { } }",
)
CROPS = "data_augmentation_options { random_expand { } %s } data_augmentation_options { overlap_crop { } %s }"
# Odd sides: OpenCV computes the last pixels of a row otherwise than the others.
DATA = ShapesDataset(4, seed=3, size=(61, 77))


def examples(steps: str) -> TrainingExamples:
    config = parse_message(f"train_config {{ {steps} }}", m.TrainEvalPipelineConfig)
    return TrainingExamples(DATA, build_augmentation(config, DATA), IdentityResizer(), seed=0)


def assert_same(one: Sample, other: Sample) -> None:
    assert one.image.dtype == other.image.dtype
    assert np.array_equal(one.image, other.image)
    for name, values in one.of_objects().items():
        assert np.array_equal(values, other.of_objects()[name], equal_nan=True), name


@pytest.mark.parametrize("is_mosaic", [False, True])
@pytest.mark.parametrize(
    ("steps", "kind"),
    [
        (DISTORT + CROPS % ("", "") + FLIP, ExpandedCrop),
        (DISTORT + CROPS % ("", ""), ExpandedCrop),
        (DISTORT + CROPS % ("skip_mosaics: true", "skip_mosaics: true") + FLIP, ByOrigin),
    ],
)
def test_steps_as_one_are_those_after_one_another(steps: str, kind: type, is_mosaic: bool) -> None:
    joined = examples(steps).augmentation.at(0)
    alone = build_augmentation(parse_message(f"train_config {{ {steps} }}", m.TrainEvalPipelineConfig)).at(0)
    assert [type(transform) for transform in joined.transforms] == [kind]
    for seed in range(25):
        sample = replace(DATA[seed % len(DATA)], is_mosaic=is_mosaic)
        sample.keypoints = np.stack([sample.boxes[:, :2], sample.boxes[:, 2:]], 1)
        sample.keypoints = np.concatenate([sample.keypoints, np.ones_like(sample.keypoints[..., :1])], -1)
        before = sample.image.copy()
        rngs = [np.random.default_rng(seed) for _ in range(2)]
        one, other = joined(sample, rngs[0]), alone(sample, rngs[1])
        assert_same(one, other)
        assert np.array_equal(sample.image, before), "the sample stays as it is"
        assert rngs[0].random() == rngs[1].random(), "nothing more is drawn"
