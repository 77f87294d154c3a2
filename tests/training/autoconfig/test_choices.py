"""Choices, by hand-worked cases."""

from __future__ import annotations

import math

import pytest

from boxwright.base.errors import ConfigError
from boxwright.training.autoconfig.choices import (
    InitSettings,
    choose_augmentation,
    choose_batch,
    choose_input,
    choose_length,
)


@pytest.mark.parametrize(
    ("size", "small_side", "expected"),
    [
        # Blood cells: 640×480, the smallest tenth below 81 pixels; in 320 pixels they cover 40.
        ((480, 640), 81 / 640, (240, 320)),
        # Large objects: a small input suffices, and 256 is the least.
        ((480, 640), 0.5, (192, 256)),
        # Small objects: 12 pixels a side want 12 / 0.02 = 600 pixels, which 640 has.
        ((600, 800), 0.02, (480, 640)),
        # Tiny ones want 2400 pixels; the largest side that is tried is 1024.
        ((3000, 4000), 0.005, (768, 1024)),
        # No more than one and a half times the image's own 320: 448 of 480.
        ((320, 320), 0.02, (448, 448)),
        # Small images stay small: 40 / 0.4 = 100 pixels would do, their own side is the least.
        ((96, 96), 0.4, (128, 128)),
        # Upright.
        ((800, 600), 0.5, (256, 192)),
        # Wider than 2 to 1 counts as that.
        ((100, 1000), 0.5, (128, 256)),
    ],
)
def test_input(size: tuple[int, int], small_side: float, expected: tuple[int, int]) -> None:
    assert choose_input(size, small_side, size[1] / size[0]) == expected


@pytest.mark.parametrize(
    ("settings", "wanted"),
    [
        (InitSettings(epochs=1, minutes=1), "epochs and minutes both set the run's length"),
        (InitSettings(epochs=math.inf), "epochs inf: expected a finite number"),
        (InitSettings(minutes=math.nan), "minutes nan: expected a finite number"),
        (InitSettings(epochs="2"), "epochs '2': expected a finite number"),  # type: ignore[arg-type]
    ],
)
def test_lengths_that_no_run_has(settings: InitSettings, wanted: str) -> None:
    with pytest.raises(ConfigError, match=wanted):
        settings.check_length()
    InitSettings(minutes=0.5).check_length()


def test_every_object_size_has_an_input() -> None:
    for small_side in (0.0, 1e-9, 0.001, 0.01, 0.1, 0.3, 0.9, 1.0):
        for size in ((1, 1), (5, 2000), (2000, 5), (33, 47), (4000, 6000)):
            height, width = choose_input(size, small_side, size[1] / size[0])
            assert 32 <= height <= 1024
            assert 32 <= width <= 1024


@pytest.mark.parametrize(
    ("images", "batch", "steps", "epochs"),
    [
        (100, 16, 1250, 200),  # 200 times 100 images, 16 a step
        (292, 16, 2738, 150),
        (1000, 16, 9375, 150),
        (5000, 16, 18750, 60),
        (20_000, 16, 37500, 30),
        (100_000, 16, 90_000, 14.4),  # at most 90,000 steps
        (118_000, 32, 36_875, 10),
        (10, 2, 1000, 200),
        (10, 10, 600, 600),  # at least 600 steps
    ],
)
def test_length(images: int, batch: int, steps: int, epochs: float) -> None:
    length = choose_length(images, batch)
    assert length.steps == steps
    assert length.epochs == pytest.approx(epochs, rel=0.01)
    assert length.warmup == pytest.approx(steps / 20, abs=1)


def test_batch() -> None:
    assert [choose_batch(images) for images in (1, 4, 20, 64, 1000)] == [1, 1, 5, 16, 16]
    assert [choose_batch(images, on_cpu=True) for images in (20, 64, 1000)] == [5, 8, 8]


def test_augmentation() -> None:
    few, why = choose_augmentation(300, ["cat", "dog"], 1.5)
    assert [step.split(" ")[0] for step in few] == [
        "random_horizontal_flip",
        "random_crop_image",
        "random_adjust_brightness",
        "random_adjust_contrast",
    ]
    assert "300 images" in why
    assert "min_aspect_ratio: 1.125 max_aspect_ratio: 2.025" in few[1]
    assert len(choose_augmentation(10_000, ["cat"], 1.0)[0]) == 2
    assert len(choose_augmentation(50_000, ["cat"], 1.0)[0]) == 1


@pytest.mark.parametrize("name", ["left hand", "turn_right", "arrow-left", "R", "7", "LEFT"])
def test_what_a_mirror_changes_is_not_mirrored(name: str) -> None:
    steps, why = choose_augmentation(300, ["cat", name], 1.0)
    assert not any("flip" in step for step in steps)
    assert repr(name) in why


@pytest.mark.parametrize("name", ["bright", "cleft", "lr-schedule sign", "raccoon"])
def test_other_names_are(name: str) -> None:
    assert "random_horizontal_flip { }" in choose_augmentation(300, [name], 1.0)[0]
