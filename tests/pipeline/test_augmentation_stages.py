"""Augmentation from and until a training step."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from boxwright.base.errors import ConfigError
from boxwright.config.load import parse_message
from boxwright.data.augmentation.mosaic import Mosaic
from boxwright.data.augmentation.transform import Chain, DrawnOthers, Stages
from boxwright.data.loader import TrainingExamples, training_batches
from boxwright.data.order import StreamSettings
from boxwright.data.shapes import ShapesDataset
from boxwright.nn.preprocessing import FixedShapeResizer
from boxwright.pipeline import messages as m
from boxwright.pipeline.augmentation import build_augmentation
from boxwright.pipeline.load import load_config
from boxwright.training.examples import preview_training

SHAPES = ShapesDataset(12, seed=4, size=(40, 48))
STEPS = (
    "random_horizontal_flip { probability: 1 } until_step: 3",
    "random_vertical_flip { probability: 1 } from_step: 2",
    "random_mosaic { } from_step: 1 until_step: 4",
    "random_rgb_to_gray { probability: 1 }",
)


def stages(*steps: str, data: ShapesDataset | None = SHAPES) -> Stages:
    text = " ".join(f"data_augmentation_options {{ {step} }}" for step in steps)
    return build_augmentation(parse_message(f"train_config {{ {text} }}", m.TrainEvalPipelineConfig), data)


def names(chain: Chain) -> list[str]:
    return [type(one).__name__ for one in chain.transforms]


def test_what_is_in_use_at_each_step() -> None:
    found = stages(*STEPS)
    left, up, mosaic, gray = "RandomHorizontalFlip", "RandomVerticalFlip", "Mosaic", "RandomGray"
    wanted = [[left, gray], [left, mosaic, gray], [left, up, mosaic, gray], [up, mosaic, gray], [up, gray]]
    assert [names(found.at(step)) for step in range(5)] == wanted
    assert found.at(10**9) is found.at(4)
    assert names(stages().at(7)) == []


def test_others_are_changed_by_what_is_in_use_before_them() -> None:
    found = stages(*STEPS)
    for step, before in ((1, ["RandomHorizontalFlip"]), (3, ["RandomVerticalFlip"])):
        mosaic = next(one for one in found.at(step).transforms if isinstance(one, Mosaic))
        assert isinstance(mosaic.others, DrawnOthers)
        assert isinstance(mosaic.others.before, Chain)
        assert names(mosaic.others.before) == before


def batches(
    augmentation: Chain | Stages, first: int, count: int, *, samples: int, workers: int = 0
) -> list[torch.Tensor]:
    examples = TrainingExamples(SHAPES, augmentation, FixedShapeResizer(40, 48), seed=5)
    settings = StreamSettings(batch_size=3, seed=5, workers=workers)
    stream = iter(training_batches(examples, settings, samples, first_step=first))
    return [next(stream).images for _ in range(count)]  # type: ignore[union-attr]


# That a stream is the same whatever the workers is asserted by tests/data/test_augmentation_and_batches.py.
@pytest.mark.parametrize("workers", [0, pytest.param(2, marks=pytest.mark.slow)])
def test_a_stream_goes_on_at_its_step(workers: int) -> None:
    staged = stages(*STEPS)
    whole = batches(staged, 0, 6, samples=0, workers=workers)
    later = batches(staged, 2, 4, samples=6, workers=workers)
    assert all(torch.equal(one, other) for one, other in zip(whole[2:], later, strict=True))
    # Each batch is what its stage alone would have made of it.
    for step, images in enumerate(whole):
        assert torch.equal(images, batches(staged.at(step), 0, 1, samples=3 * step)[0])


def test_the_step_is_not_the_number_of_samples() -> None:
    """A run that goes on with another batch size has seen as many samples in fewer steps."""
    staged = stages("random_horizontal_flip { probability: 1 } from_step: 5")
    plain, flipped = batches(Chain(), 0, 1, samples=6)[0], batches(staged, 5, 1, samples=6)[0]
    assert torch.equal(plain.flip(3), flipped)
    assert torch.equal(plain, batches(staged, 4, 1, samples=6)[0])


def test_a_preview_shows_a_step(small_config: Path) -> None:
    text = small_config.read_text()
    first = "data_augmentation_options { random_horizontal_flip { } }"
    small_config.write_text(text.replace(first, " ".join(f"data_augmentation_options {{ {step} }}" for step in STEPS)))
    config = load_config(small_config)
    shown = [
        [line.split(":")[0] for line in preview_training(config, 1, step=step)[1][0].choices[:-1]] for step in (0, 4)
    ]
    assert shown == [["random_horizontal_flip", "random_rgb_to_gray"], ["random_vertical_flip", "random_rgb_to_gray"]]


@pytest.mark.parametrize(
    ("step", "problem"),
    [
        ("random_mosaic { } from_step: 5 until_step: 5", "until_step: 5 is not after from_step 5"),
        ("random_mosaic { } until_step: 0", "until_step: 0 is not after from_step 0"),
        ("random_mosaic { } from_step: -1", "from_step: should be greater than or equal to 0, found -1"),
        ("from_step: 5", "PreprocessingStep: empty|data_augmentation_options\\[0\\]: empty"),
    ],
)
def test_steps_that_cannot_be(step: str, problem: str, tmp_path: Path) -> None:
    path = tmp_path / "a.config"
    path.write_text(f"train_config {{\n  data_augmentation_options {{\n {step} }} }}")
    with pytest.raises(ConfigError, match=problem) as found:
        build_augmentation(load_config(path))
    assert "a.config:" in str(found.value)
