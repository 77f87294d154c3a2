"""Batches of several sizes: which there are, and that every process and a resumed run draw the same."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

import numpy as np
import pytest
import torch

import boxwright as bw
from boxwright.base.distributed import ALONE, Processes
from boxwright.base.errors import BoxwrightError, ConfigError
from boxwright.config.load import parse_message
from boxwright.data.augmentation.transform import Chain
from boxwright.data.batch import Batch, DrawnSizes
from boxwright.data.loader import TrainingExamples, training_batches
from boxwright.data.order import StreamSettings
from boxwright.data.shapes import ShapesDataset
from boxwright.nn.preprocessing import FixedShapeResizer, IdentityResizer
from boxwright.pipeline import messages as m
from boxwright.pipeline.training import build_input_sizes, build_training, wants_pretrained
from boxwright.training.examples import preview_training


def sizes_of(text: str, height: int = 640, width: int = 640, seed: int = 0) -> DrawnSizes:
    config = parse_message(f"train_config {{ multi_scale {{ {text} }} }}", m.TrainEvalPipelineConfig)
    found = build_input_sizes(config, FixedShapeResizer(height, width), seed)
    assert found is not None
    return found


def size_of(resizer: object) -> tuple[int, int]:
    assert isinstance(resizer, FixedShapeResizer)
    return resizer.height, resizer.width


@pytest.mark.parametrize("weight", [20, 6, 4, 3])
def test_the_sizes_of_the_published_recipes(weight: int) -> None:
    """Each multiple of 32 from 480 to 800 once, and 640 as often as D-FINE's authors draw it."""
    found = Counter(size_of(one) for one in sizes_of(f"own_size_weight: {weight}").drawn)
    assert found == {(side, side): 1 if side != 640 else weight for side in range(480, 801, 32)}
    assert size_of(sizes_of("").largest) == (800, 800)


def test_inputs_are_resized_once_more_to_the_nearest_pixel() -> None:
    """As PyTorch's interpolation by default, which DETRs' authors use on batches of the resizer's size."""
    sizes = sizes_of("resize_method: NEAREST_AFTERWARDS own_size_weight: 2 min_scale: 0.5 multiple_of: 16", 64, 64)
    own = FixedShapeResizer(64, 64)
    assert list(sizes.drawn).count(own) == 2
    image = torch.from_numpy(np.random.default_rng(0).integers(0, 256, (50, 70, 3)).astype(np.uint8))
    at_own_size = own(image)[0].permute(2, 0, 1)[None]
    others = [resizer for resizer in sizes.drawn if resizer != own]
    for resizer, side in zip(others, (32, 48, 80), strict=True):
        pixels, true_size = resizer(image)
        assert true_size == (side, side)
        wanted = torch.nn.functional.interpolate(at_own_size, size=(side, side))  # to the nearest
        assert torch.equal(pixels, wanted[0].permute(1, 2, 0))


def test_inputs_of_the_largest_size_are_resized_bilinearly() -> None:
    """As RF-DETR's authors do with batches: PyTorch's interpolation without antialiasing, of the largest size."""
    sizes = sizes_of("resize_method: BILINEAR_AFTERWARDS min_scale: 0.5 multiple_of: 16", 64, 64)
    image = torch.from_numpy(np.random.default_rng(0).integers(0, 256, (50, 70, 3)).astype(np.uint8))
    largest = FixedShapeResizer(80, 80)
    assert sizes.largest == largest
    at_largest_size = largest(image)[0].permute(2, 0, 1)[None]
    for resizer, side in zip(sizes.drawn, (32, 48, 64, 80), strict=True):
        pixels, true_size = resizer(image)
        assert true_size == (side, side)
        wanted = torch.nn.functional.interpolate(at_largest_size, size=(side, side), mode="bilinear")
        assert torch.allclose(pixels, wanted[0].permute(1, 2, 0), atol=1e-3)


def test_the_shorter_side_follows() -> None:
    found = {size_of(one) for one in sizes_of("multiple_of: 16 min_scale: 0.5", 64, 96).drawn}
    assert found == {(32, 48), (48, 64), (48, 80), (64, 96), (80, 112)}
    assert {size_of(one) for one in sizes_of("own_size_weight: 0 multiple_of: 16", 64, 96).drawn} == {
        (48, 80),
        (80, 112),
    }
    # A size of its own that is no multiple stays among them.
    assert {size_of(one) for one in sizes_of("max_scale: 1", 300, 300).drawn} == {(s, s) for s in (256, 288, 300)}


def test_a_size_follows_from_step_and_seed() -> None:
    one, same, other = sizes_of("", seed=3), sizes_of("", seed=3), sizes_of("", seed=4)
    drawn = [size_of(one.at(step)) for step in range(300)]
    assert drawn == [size_of(same.at(step)) for step in range(300)]
    assert drawn != [size_of(other.at(step)) for step in range(300)]
    counts = Counter(drawn)
    assert len(counts) == 11
    assert max(counts.values()) < 50  # 27 each are expected


def test_sizes_begin_and_end() -> None:
    found = sizes_of("own_size_weight: 0 from_step: 5 until_step: 9")
    assert [size_of(found.at(step)) == (640, 640) for step in range(12)] == [True] * 5 + [False] * 4 + [True] * 3


def batches(sizes: DrawnSizes, first: int, count: int, processes: Processes = ALONE, workers: int = 0) -> list[Batch]:
    data, own = ShapesDataset(12, seed=4, size=(40, 48)), FixedShapeResizer(64, 64)
    examples = TrainingExamples(data, Chain(), own, 3, sizes=sizes)
    settings = StreamSettings(batch_size=4, seed=3, workers=workers)
    stream = iter(training_batches(examples, settings, 4 * first, processes, first_step=first))
    found = [next(stream) for _ in range(count)]
    assert not any(isinstance(one, BoxwrightError) for one in found)
    return found  # type: ignore[return-value]


# That a stream is the same whatever the workers is asserted by tests/data/test_augmentation_and_batches.py.
@pytest.mark.parametrize("workers", [0, pytest.param(2, marks=pytest.mark.slow)])
def test_one_size_a_batch_in_all_processes_and_after_resuming(workers: int) -> None:
    sizes = sizes_of("multiple_of: 8", 64, 64, seed=3)
    whole = batches(sizes, 0, 8, workers=workers)
    shapes = [tuple(one.images.shape[2:]) for one in whole]
    assert len(set(shapes)) > 2
    assert all(one.true_sizes.tolist() == [list(shape)] * 4 for one, shape in zip(whole, shapes, strict=True))
    later = batches(sizes, 3, 5, workers=workers)
    assert all(torch.equal(one.images, other.images) for one, other in zip(whole[3:], later, strict=True))
    for rank in range(2):
        part = batches(sizes, 0, 8, Processes(rank, 2), workers=workers)
        assert [tuple(one.images.shape[2:]) for one in part] == shapes


SCALED = ["train_config.multi_scale.multiple_of=32", "train_config.multi_scale.min_scale=0.5"]


@pytest.mark.slow  # the sizes of steps that follow are asserted above, and resuming to the bit by test_train.py
def test_an_interrupted_run_ends_as_one_that_was_not(small_config: Path, tmp_path: Path) -> None:
    """Of one whose sizes change from step to step, and its augmentation within."""
    flip = "data_augmentation_options { random_horizontal_flip { } }"
    later = "data_augmentation_options { random_mosaic { } from_step: 1 until_step: 3 }"
    text = small_config.read_text().replace(flip, f"{flip} {later}")
    small_config.write_text(text)
    settings = bw.RunSettings(workers=0, evaluate=False, preflight=False)
    for steps, folder in ((2, "parts"), (4, "parts"), (4, "whole")):
        config = bw.load_config(small_config, [f"train_config.num_steps={steps}", *SCALED])
        bw.train(config, tmp_path / folder, settings)
    one, other = (bw.restore_detector(tmp_path / name)[0].network.state_dict() for name in ("parts", "whole"))
    assert all(torch.equal(value, other[name]) for name, value in one.items())
    # The sizes were others indeed.
    shown = {preview_training(config, 1, step=step)[1][0].sample.image.shape[:2] for step in range(4)}
    assert len(shown) > 1


@pytest.mark.parametrize(
    ("scales", "problem"),
    [
        ("min_scale: 0", "min_scale: should be greater than 0"),
        ("max_scale: 0.9", "max_scale: should be greater than or equal to 1"),
        ("from_step: 4 until_step: 3", "until_step: 3 is not after from_step 4"),
        ("multiple_of: 64 min_scale: 0.9", "no multiple of 64 beside 64 lies in 57.6 to 80 pixels; widen"),
    ],
)
def test_what_is_refused(small_config: Path, scales: str, problem: str) -> None:
    text = small_config.read_text()
    small_config.write_text(text.replace("train_config {", f"train_config {{\n multi_scale {{ {scales} }}", 1))
    with pytest.raises(ConfigError, match=problem) as found:
        build_training(bw.load_config(small_config))
    assert "pipeline.config:" in str(found.value)


def test_sizes_are_multiples_of_what_the_network_needs() -> None:
    """RF-DETR's base has patches of 14 pixels in four windows a side; a wrong size would end a run at some later step."""
    reader = "train_input_reader={ external_input_reader { } }"
    with pytest.raises(ConfigError, match=r"multiples of 32, and inputs need multiples of 56; set multiple_of: 56"):
        build_training(bw.load_config("preset:rf_detr_base_coco", [reader, "train_config.multi_scale.multiple_of=32"]))


def test_other_resizers_have_no_size_to_scale(small_config: Path) -> None:
    text = small_config.read_text().replace("train_config {", "train_config { multi_scale { }", 1)
    start, end = text.index("fixed_shape_resizer"), text.index("}", text.index("fixed_shape_resizer"))
    small_config.write_text(text[:start] + "identity_resizer { " + text[end:])
    with pytest.raises(ConfigError, match="only with a fixed_shape_resizer"):
        build_training(bw.load_config(small_config))
    config = parse_message("train_config { }", m.TrainEvalPipelineConfig)
    assert build_input_sizes(config, IdentityResizer(), 0) is None


@pytest.mark.parametrize(("field", "wanted"), [("pretrained: true", True), ("pretrained: false", False), ("", False)])
def test_what_the_configuration_says(field: str, wanted: bool) -> None:
    text = f'ssd {{ feature_extractor {{ type: "timm/resnet18" {field} }} }}'
    assert wants_pretrained(parse_message(text, m.DetectionModel)) is wanted
