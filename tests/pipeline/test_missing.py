"""What a configuration lacks before it can be trained is said at once."""

from __future__ import annotations

from pathlib import Path

import pytest

import boxwright as bw
from boxwright.base.errors import ConfigError
from boxwright.config.load import parse_message
from boxwright.pipeline.load import load_config
from boxwright.pipeline.message import TrainEvalPipelineConfig as Pipeline
from boxwright.pipeline.missing import missing_for_training, require_for_training
from tests.conftest import SMALL_MODEL

READER = 'train_input_reader { label_map_path: "m" tf_record_input_reader { input_path: "r" } }'
RATE = "learning_rate { constant_learning_rate { } }"
TRAINING = f"train_config {{ num_steps: 1 optimizer {{ adam_optimizer {{ {RATE} }} }} }}"


def paths(text: str) -> list[str]:
    return [field.path for field in missing_for_training(parse_message(text, Pipeline))]


EVERY_TRAINING = ["train_config.batch_size", "train_config.num_steps", "train_config.optimizer"]


@pytest.mark.parametrize(
    ("text", "wanted"),
    [
        ("", ["model", *EVERY_TRAINING, "train_input_reader"]),
        ("model { }", ["model", *EVERY_TRAINING, "train_input_reader"]),
        (SMALL_MODEL, [*EVERY_TRAINING, "train_input_reader"]),
        (SMALL_MODEL + TRAINING, ["train_input_reader"]),
        (SMALL_MODEL + TRAINING + "train_input_reader { label_map_path: 'm' }", ["train_input_reader"]),
        (SMALL_MODEL + TRAINING + READER, []),
        (SMALL_MODEL.replace("num_classes: 4", "") + TRAINING + READER, ["model.ssd.num_classes"]),
        (
            SMALL_MODEL + "train_config { optimizer { } }" + READER,
            ["train_config.num_steps", "train_config.optimizer"],
        ),
        (
            SMALL_MODEL + "train_config { num_steps: 1 optimizer { momentum_optimizer { } } }" + READER,
            ["train_config.optimizer.momentum_optimizer.learning_rate"],
        ),
        (
            SMALL_MODEL + TRAINING + "train_input_reader { tf_record_input_reader { } }",
            ["train_input_reader.label_map_path", "train_input_reader.tf_record_input_reader.input_path"],
        ),
        # COCO's file names its classes.
        (SMALL_MODEL + TRAINING + "train_input_reader { coco_input_reader { annotations: 'a' } }", []),
        # TensorFlow 1 trains without end.
        (
            SMALL_MODEL.replace("ssd_mobilenet_v2_fpn_keras", "ssd_mobilenet_v2_fpn")
            + TRAINING.replace("num_steps: 1", "")
            + READER,
            [],
        ),
    ],
)
def test_all_that_is_missing(text: str, wanted: list[str]) -> None:
    assert paths(text) == wanted


def test_a_preset_lacks_data_alone() -> None:
    assert [field.path for field in missing_for_training(load_config("preset:efficientdet_d0"))] == [
        "train_input_reader"
    ]


def test_training_says_it_before_it_makes_anything(tmp_path: Path) -> None:
    with pytest.raises(
        ConfigError,
        match=r"(?s)as this is missing:\n  <string>:1:1: model: .*\n  <string>:1:1: train_input_reader: .*yolo",
    ):
        bw.train(parse_message("", Pipeline), tmp_path / "run")
    assert not (tmp_path / "run").exists()


def test_a_preset_that_python_names_is_not_ignored() -> None:
    with pytest.raises(ConfigError, match="by load_config"):
        require_for_training(Pipeline(preset="efficientdet_d0"))
