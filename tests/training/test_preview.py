"""What is shown as the network's input is the network's input."""

from __future__ import annotations

from pathlib import Path

import numpy as np
from typer.testing import CliRunner

from boxwright.cli.main import app
from boxwright.data.augmentation.transform import RecordedGenerator
from boxwright.data.image_io import decode_image
from boxwright.data.loader import TrainingExamples
from boxwright.pipeline.augmentation import build_augmentation
from boxwright.pipeline.detector import build_detector
from boxwright.pipeline.input_reader import build_dataset
from boxwright.pipeline.load import load_config
from boxwright.training.examples import preview_training

STEPS = (
    "data_augmentation_options { random_horizontal_flip { } } data_augmentation_options { random_crop_image { } } "
    "data_augmentation_options { random_mosaic { } } data_augmentation_options { random_pixel_value_scale { } }"
)


def with_steps(small_config: Path) -> Path:
    first = "data_augmentation_options { random_horizontal_flip { } }"
    small_config.write_text(small_config.read_text().replace(first, f"{first} {STEPS}"))
    return small_config


def test_a_preview_is_what_training_examples_are(small_config: Path) -> None:
    config = load_config(with_steps(small_config))
    dataset, previews = preview_training(config, 4)
    assert [preview.choices[-1].split(":")[0] for preview in previews] == ["input"] * 4
    detector = build_detector(config)
    examples = TrainingExamples(
        build_dataset(config.train_input_reader, "train_input_reader"),
        build_augmentation(config, dataset),
        detector.preprocessor.resizer,
        seed=0,
    )
    for preview, index in zip(previews, (0, 3, 7, 11), strict=True):
        wanted = examples[0, index]
        assert not isinstance(wanted, Exception)
        assert np.array_equal(preview.sample.image, wanted.image.astype(np.uint8))
        assert np.array_equal(preview.sample.boxes, wanted.boxes)
        # The small model mirrors first, by its own line.
        assert [line.split(":")[0] for line in preview.choices[:-1]] == [
            *("random_horizontal_flip", "random_horizontal_flip", "random_crop_image", "random_mosaic"),
            "random_pixel_value_scale",
        ]


def test_recording_changes_nothing() -> None:
    plain, recorded = np.random.default_rng(3), RecordedGenerator(np.random.default_rng(3))
    for draw in ("random", "normal"):
        assert getattr(plain, draw)() == getattr(recorded, draw)()
    assert plain.integers(0, 10, 4).tolist() == recorded.integers(0, 10, 4).tolist()
    assert plain.permutation(5).tolist() == recorded.permutation(5).tolist()
    assert recorded.drawn[2:] == ["[4 numbers]", "[5 numbers]"]
    assert len(recorded.drawn) == 4


def test_the_sheet(small_config: Path, tmp_path: Path) -> None:
    sheet = tmp_path / "sheet.png"
    result = CliRunner().invoke(
        app, ["inspect", str(with_steps(small_config)), "--augmented", "5", "--sheet", str(sheet)]
    )
    assert result.exit_code == 0, result.output
    picture = decode_image(sheet.read_bytes(), "sheet")
    assert picture.shape[1] > 4 * 320
    assert picture.std() > 20
    chosen = (tmp_path / "sheet.txt").read_text().splitlines()
    assert sum(line.startswith("  random_mosaic: ") for line in chosen) == 5
    assert sum(line.startswith("  input: 64×64, ") for line in chosen) == 5
    assert "5 samples as the network sees them" in " ".join(result.output.split())


def test_only_a_configuration_has_steps(shapes_data: Path, tmp_path: Path) -> None:
    result = CliRunner().invoke(
        app, ["inspect", str(shapes_data / "voc"), "--augmented", "5", "--sheet", str(tmp_path / "s.png")]
    )
    assert "is not a configuration; name a pipeline.config" in str(result.exception)


def test_the_data_of_a_configuration(small_config: Path, tmp_path: Path) -> None:
    result = CliRunner().invoke(app, ["inspect", str(small_config), "--sheet", str(tmp_path / "s.png")])
    assert result.exit_code == 0, result.output
    assert "12 images" in result.output
