"""Images of more than red, green and blue: records, augmentation, scaling, the first kernel, training, refusals."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

import boxwright as bw
from boxwright.api.export import pictures_of_data
from boxwright.base.drawing import draw_boxes
from boxwright.base.errors import ConfigError, DataError
from boxwright.config.load import parse_message
from boxwright.config.messages.preprocessor import ANY_CHANNELS
from boxwright.config.support import contradictions
from boxwright.data.example_messages import Example
from boxwright.data.image_io import decode_image, encode_png
from boxwright.data.tf_example import RecordFields, decode_example, read_features
from boxwright.data.tfrecord import TFRecordFile, write_records
from boxwright.inference.detect_functions import ModelSource
from boxwright.inference.settings import PredictionSettings
from boxwright.nn.preprocessing import MINUS_ONE_TO_ONE, VGG_MEAN, image_tensors
from boxwright.pipeline import messages as m
from boxwright.pipeline.augmentation import build_steps
from boxwright.types import Categories, Category, Sample
from boxwright.weights.export_weights import write_safetensors
from tests.conftest import SMALL_MODEL

CATEGORIES = Categories(tuple(Category(id=1 + label, label=label, name=name) for label, name in enumerate("abcd")))
COLORS = np.random.default_rng(0).integers(0, 255, (12, 16, 3), np.uint8)
NEAR = np.random.default_rng(1).integers(0, 255, (12, 16), np.uint8)
HEAT = np.random.default_rng(2).integers(0, 255, (12, 16), np.uint8)
KEY = "image/additional_channels/encoded"


def record(*channels: np.ndarray) -> bytes:
    """Write a record as the original's own key names have it, with one object."""
    example = Example()
    feature = example.features.feature
    feature["image/encoded"].bytes_list.value.append(encode_png(COLORS))
    feature[KEY].bytes_list.value.extend(encode_png(channel) for channel in channels)
    for side, value in (("xmin", 0.25), ("ymin", 0.25), ("xmax", 0.75), ("ymax", 0.5)):
        feature[f"image/object/bbox/{side}"].float_list.value.append(value)
    feature["image/object/class/text"].bytes_list.value.append(b"b")
    return bytes(example.SerializeToString())


def read(count: int, *channels: np.ndarray) -> Sample:
    features = read_features(record(*channels), "r")
    return decode_example(features, CATEGORIES, "r", RecordFields(more_channels=count))


def test_channels_are_joined_behind_the_colors() -> None:
    image = read(2, NEAR, HEAT).image
    assert image.shape == (12, 16, 5)
    assert np.array_equal(image[..., :3], COLORS)
    assert np.array_equal(image[..., 3], NEAR)
    assert np.array_equal(image[..., 4], HEAT)
    assert read(0, NEAR, HEAT).image.shape == (12, 16, 3)


@pytest.mark.parametrize(
    ("channels", "wanted"),
    [
        ((NEAR,), f"r: {KEY} has 1 images; num_additional_channels says 2"),
        ((), f"r: {KEY} has 0 images"),
        ((NEAR, HEAT[:5]), f"r: {KEY} 1: 16×5 pixels, but the image has 16×12"),
        ((COLORS, HEAT), f"r: {KEY} 0: a picture in color"),
    ],
)
def test_records_that_do_not_fit(channels: tuple[np.ndarray, ...], wanted: str) -> None:
    with pytest.raises(DataError, match=wanted):
        read(2, *channels)


STEPS = {
    "normalize_image": "original_maxval: 255 target_maxval: 100",
    "random_resize_method": "target_height: 6 target_width: 8",
    "resize_image": "new_height: 6 new_width: 8",
    "drop_label_probabilistically": "label: 2 drop_probability: 0.0",
    "remap_labels": "original_labels: 1 new_label: 2",
    "random_scale_crop_and_pad_to_square": "output_size: 10",
    "random_interpolation_resize": "height: 6 width: 8",
    "random_tile": "height: 8 width: 8",
    "ssd_random_crop": "operations { min_area: 0.5 max_area: 1 min_aspect_ratio: 0.5 max_aspect_ratio: 2 random_coef: 0 }",
    "ssd_random_crop_fixed_aspect_ratio": "operations { min_area: 0.5 max_area: 1 random_coef: 0 }",
    "random_patch_gaussian": "min_patch_size: 3 max_patch_size: 5",
}
# Rounded a level apart: OpenCV computes more than four channels otherwise, and our resizing three.
_ROUNDED = {"random_interpolation_resize", "random_image_scale", "data_anchor_sampling", "random_square_patch"}
# Each value of each channel is drawn for itself.
_APART = {"random_pixel_value_scale", "random_patch_gaussian"}


@pytest.mark.slow_cases("random_square_patch", "data_anchor_sampling")
@pytest.mark.parametrize("step", sorted(ANY_CHANNELS))
def test_steps_treat_channels_alike(step: str) -> None:
    """Red once more as a further channel goes the way of red, and colors go as they would alone."""
    config = parse_message(f"{step} {{ {STEPS.get(step, '')} }}", m.PreprocessingStep)
    transform = build_steps([config])
    sample = read(0)
    more = Sample(
        image=np.concatenate([sample.image, sample.image[..., :1], sample.image[..., 2:], sample.image[..., 1:2]], 2),
        boxes=sample.boxes,
        labels=sample.labels,
    )
    alone = Sample(image=sample.image, boxes=sample.boxes, labels=sample.labels)
    for seed in range(12):
        found = transform(more, np.random.default_rng(seed))
        assert found.image.shape[2] == 6
        if step in _APART:
            continue
        assert np.array_equal(found.image[..., 3], found.image[..., 0])
        assert np.array_equal(found.image[..., 4], found.image[..., 2])
        colors = transform(alone, np.random.default_rng(seed))
        apart = np.abs(found.image[..., :3].astype(float) - colors.image).max()
        assert apart <= (1 if step in _ROUNDED else 0)
        assert np.array_equal(found.boxes, colors.boxes)


def test_scaling() -> None:
    """As in TF: alike where all colors are scaled alike; means are subtracted from three channels only."""
    scale, offset = MINUS_ONE_TO_ONE.constants(5)
    assert scale.flatten().tolist() == pytest.approx([2 / 255] * 5)
    assert offset.flatten().tolist() == [-1] * 5
    scale, offset = VGG_MEAN.constants(4)
    assert scale.flatten().tolist() == [1] * 4
    assert offset.flatten().tolist() == [0] * 4
    assert VGG_MEAN.constants(3)[1].flatten().tolist() == pytest.approx([-123.68, -116.779, -103.939])


def pipeline(more: int, extra: str = "", model: str = SMALL_MODEL) -> bw.Pipeline:
    reader = f'label_map_path: "x" num_additional_channels: {more} tf_record_input_reader {{ input_path: "x" }}'
    return parse_message(f"{model} train_input_reader {{ {reader} }} {extra}", bw.Pipeline)


def test_a_detector_takes_them() -> None:
    torch.manual_seed(0)
    detector = bw.build_detector(pipeline(2))
    first = next(part for part in detector.network.modules() if isinstance(part, nn.Conv2d))
    assert first.weight.shape[1] == 5
    (found,) = detector.detect([np.zeros((20, 30, 5), np.uint8)])
    assert found.image_size == (20, 30)
    for wrong in (np.zeros((20, 30, 3), np.uint8), np.zeros((20, 30), np.uint8)):
        with pytest.raises(DataError, match="the detector's 5 channels"):
            detector.detect([wrong])
    assert image_tensors([torch.zeros(5, 4, 6, dtype=torch.uint8)], "pixels", 5)[0].shape == (4, 6, 5)


def test_a_first_kernel_is_widened(tmp_path: Path) -> None:
    """From a detector of colors: the same predictions, whatever the further channels hold, until they are learned."""
    torch.manual_seed(0)
    colors = bw.build_detector(pipeline(0))
    write_safetensors(colors, tmp_path / "colors.safetensors")
    more = bw.build_detector(pipeline(2))
    report = bw.load_weights(more, tmp_path / "colors.safetensors")
    assert not report.kept
    image = torch.randint(0, 255, (1, 64, 64, 5), dtype=torch.uint8)
    with torch.no_grad():
        wanted = colors.predict(colors.preprocess(image[..., :3])[0])
        found = more.predict(more.preprocess(image)[0])
    torch.testing.assert_close(found.class_logits, wanted.class_logits)
    first = next(part for part in more.network.modules() if isinstance(part, nn.Conv2d))
    more.train().predict(more.preprocess(image)[0]).class_logits.sum().backward()
    assert first.weight.grad is not None
    assert (first.weight.grad[:, 3:].abs().amax((0, 2, 3)) > 0).all()
    with pytest.raises(bw.CheckpointError, match="shape"):
        bw.load_weights(bw.build_detector(pipeline(0)), write(more, tmp_path / "more.safetensors"))


def write(detector: bw.Detector, path: Path) -> Path:
    write_safetensors(detector, path)
    return path


GRAY = SMALL_MODEL.replace("fixed_shape_resizer {", "fixed_shape_resizer { convert_to_grayscale: true")
PADDED = SMALL_MODEL.replace(
    "fixed_shape_resizer { height: 64 width: 64 }",
    "keep_aspect_ratio_resizer { min_dimension: 64 max_dimension: 64 pad_to_max_dimension: true "
    "per_channel_pad_value: [1, 2, 3] }",
)
HUE = (
    "train_config { data_augmentation_options { random_adjust_hue { } } data_augmentation_options { rgb_to_gray { } } }"
)
OTHER = 'eval_input_reader { label_map_path: "x" tf_record_input_reader { input_path: "x" } }'
TIMM = SMALL_MODEL.replace("ssd_mobilenet_v2_fpn_keras", "timm/test_resnet.r160_in1k")


@pytest.mark.parametrize(
    ("config", "wanted"),
    [
        (pipeline(1, HUE), "random_adjust_hue, rgb_to_gray needs red, green and blue alone"),
        (pipeline(1, OTHER), "readers have 0 and 1, but a network has one number"),
        (pipeline(1, model=TIMM), "this network takes red, green and blue alone"),
        (pipeline(1, model=GRAY), "convert_to_grayscale takes red, green and blue alone"),
        (pipeline(1, model=PADDED), "per_channel_pad_value has 3 numbers; give 4"),
    ],
)
def test_what_takes_colors_alone(config: bw.Pipeline, wanted: str) -> None:
    assert any(wanted in str(problem) for problem in contradictions(config)), [str(p) for p in contradictions(config)]


def test_readers_without_them() -> None:
    text = 'num_additional_channels: 1 coco_input_reader { annotations: "x" }'
    with pytest.raises(ConfigError, match="num_additional_channels: they are read from tf_record_input_reader's"):
        raise next(iter(contradictions(parse_message(text, m.InputReader))))


def test_the_first_three_are_drawn() -> None:
    image = read(2, NEAR, HEAT).image
    drawn = draw_boxes(image, np.zeros((0, 4), np.float32), [], [])
    assert np.array_equal(drawn, draw_boxes(COLORS, np.zeros((0, 4), np.float32), [], []))


@pytest.fixture
def with_depth(mobilenet_config: Path, shapes_data: Path, tmp_path: Path) -> Path:
    """The small configuration on its own records, each with red once more as a fourth channel."""
    for name in ("train.record-00000-of-00002", "train.record-00001-of-00002", "val.record"):
        records = []
        for number in range(len(file := TFRecordFile(shapes_data / name))):
            example = Example()
            example.ParseFromString(file[number])
            feature = example.features.feature
            image = decode_image(feature["image/encoded"].bytes_list.value[0], "x")
            feature[KEY].bytes_list.value.append(encode_png(np.ascontiguousarray(image[..., 0])))
            records.append(example.SerializeToString())
        write_records(tmp_path / name, records)
    text = mobilenet_config.read_text().replace(f"{shapes_data}/train.record", f"{tmp_path}/train.record")
    text = text.replace(f"{shapes_data}/val.record", f"{tmp_path}/val.record")
    mobilenet_config.write_text(
        text.replace("_input_reader {\n  label", "_input_reader {\n  num_additional_channels: 1 label")
    )
    return mobilenet_config


def test_they_are_trained_on_evaluated_and_resumed(with_depth: Path, tmp_path: Path) -> None:
    # Evaluated below; workers make the same batches (test_augmentation_and_batches.py).
    options: dict[str, Any] = {"workers": 0, "evaluate": False}
    run = bw.train(with_depth, tmp_path / "run", overrides=["train_config.num_steps=1"], **options)
    assert run.step == 1
    run = bw.train(with_depth, tmp_path / "run", overrides=["train_config.num_steps=2"], **options)
    assert run.step == 2
    metrics = bw.evaluate(with_depth, model_dir=tmp_path / "run")
    assert "DetectionBoxes_Precision/mAP" in metrics
    model = bw.load(tmp_path / "run")
    assert model.detector.image_channels == 4
    (found,) = model.detector.detect([np.zeros((30, 40, 4), np.uint8)])
    assert found.image_size == (30, 40)
    (found,) = model.detect([np.zeros((30, 40, 4), np.uint8)])
    assert found.image.shape == (30, 40, 4)
    opened = ModelSource(tmp_path / "run", PredictionSettings()).open()
    assert opened.channels == 4
    with pytest.raises(
        ConfigError, match="a.png: the detector takes images of 4 channels, and pictures have red, green"
    ):
        opened.require_colors("a.png")
    pictures, source = pictures_of_data(model.config, model.detector)
    assert source == "eval_input_reader"
    assert {picture.shape[2] for picture in pictures} == {4}
