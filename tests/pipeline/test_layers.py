"""A configuration over a preset: what stays, what is replaced, how many classes, which rates."""

from __future__ import annotations

from pathlib import Path

import pytest

from boxwright.base.errors import ConfigError
from boxwright.config.load import dump_message, parse_message
from boxwright.pipeline.load import lay_over, load_config
from boxwright.pipeline.message import TrainEvalPipelineConfig as Pipeline

FOUR_LINES = """preset: "ssd_mobilenet_v2_fpnlite_320"
num_classes: 3
train_input_reader { label_map_path: "map.pbtxt" tf_record_input_reader { input_path: "train.record" } }
eval_input_reader { label_map_path: "map.pbtxt" tf_record_input_reader { input_path: "val.record" } }
"""


def written(folder: Path, text: str, name: str = "my.config") -> Path:
    path = folder / name
    path.write_text(text)
    return path


def laid(changes: str, base: str) -> Pipeline:
    below = parse_message(base, Pipeline)
    lay_over(parse_message(changes, Pipeline), below)
    return below


@pytest.mark.parametrize(
    ("changes", "base", "wanted"),
    [
        ("train_config { num_steps: 5 }", "train_config { num_steps: 3 }", "train_config { num_steps: 5 }"),
        (
            "train_config { num_steps: 5 }",
            "train_config { batch_size: 3 }",
            "train_config { num_steps: 5 batch_size: 3 }",
        ),
        ("model { srn { num_classes: 1 } }", "model { ssd { num_classes: 2 } }", "model { srn { num_classes: 1 } }"),
        (
            "train_config { optimizer { adam_optimizer { } } }",
            "train_config { optimizer { momentum_optimizer { } use_moving_average: false } }",
            "train_config { optimizer { adam_optimizer { } use_moving_average: false } }",
        ),
        (
            "train_config { data_augmentation_options { random_vertical_flip { } } }",
            "train_config { data_augmentation_options { random_horizontal_flip { } } "
            "data_augmentation_options { random_crop_image { } } }",
            "train_config { data_augmentation_options { random_vertical_flip { } } }",
        ),
        (
            "train_config { data_augmentation_options: [] num_steps: 1 }",
            "train_config { data_augmentation_options { random_horizontal_flip { } } }",
            "train_config { num_steps: 1 }",
        ),
        ("train_config { }", "train_config { num_steps: 3 }", "train_config { num_steps: 3 }"),
        # Set to its default is set, as in protobuf.
        (
            "train_config { use_bfloat16: false }",
            "train_config { use_bfloat16: true }",
            "train_config { use_bfloat16: false }",
        ),
    ],
)
def test_laying_over(changes: str, base: str, wanted: str) -> None:
    assert laid(changes, base) == parse_message(wanted, Pipeline)


def test_four_lines_are_a_whole_configuration(tmp_path: Path) -> None:
    config = load_config(written(tmp_path, FOUR_LINES))
    assert config.model is not None
    assert config.model.ssd is not None
    assert config.model.ssd.num_classes == 3
    assert config.model.ssd.feature_extractor.type == "ssd_mobilenet_v2_fpn_keras"  # type: ignore[union-attr]
    assert config.train_config is not None
    assert (config.train_config.num_steps, config.train_config.batch_size) == (50_000, 128)
    assert len(config.eval_input_reader) == 1


def test_what_is_written_out_names_no_preset(tmp_path: Path) -> None:
    config = load_config(written(tmp_path, FOUR_LINES), ["train_config.batch_size=16"])
    for format, name in (("text", "a.config"), ("yaml", "a.yaml"), ("json", "a.json")):
        text = dump_message(config, format)  # type: ignore[arg-type]
        assert "preset" not in text
        assert "learning_rate_batch_size" not in text
        assert load_config(written(tmp_path, text, name)) == config


def test_yaml_may_name_a_preset(tmp_path: Path) -> None:
    path = written(tmp_path, "preset: faster_rcnn_resnet50_v1_640\nnum_classes: 7\n", "my.yaml")
    assert load_config(path).model.faster_rcnn.num_classes == 7  # type: ignore[union-attr]


def test_another_preset_may_be_laid_under(tmp_path: Path) -> None:
    config = load_config(written(tmp_path, FOUR_LINES), ["preset=efficientdet_d1"])
    assert config.model.ssd.feature_extractor.type == "ssd_efficientnet-b1_bifpn_keras"  # type: ignore[union-attr]
    assert config.model.ssd.num_classes == 3  # type: ignore[union-attr]


def test_a_preset_alone_takes_overrides() -> None:
    config = load_config("preset:ssd300_vgg16_voc", ["num_classes=5", "train_config { num_steps: 9 }"])
    assert config.model.ssd.num_classes == 5  # type: ignore[union-attr]
    assert config.train_config.num_steps == 9  # type: ignore[union-attr]


def test_classes_of_an_override_hold_against_those_of_the_file(tmp_path: Path) -> None:
    path = written(tmp_path, FOUR_LINES)
    assert load_config(path, ["model.ssd.num_classes=8"]).model.ssd.num_classes == 8  # type: ignore[union-attr]
    assert load_config(path, ["num_classes=9"]).model.ssd.num_classes == 9  # type: ignore[union-attr]


@pytest.mark.parametrize(
    ("text", "match"),
    [
        (
            "num_classes: 3\nmodel {\n ssd { num_classes: 4 } }",
            r"my.config:1:1: num_classes is 3, but model.ssd.* at line 3",
        ),
        ("num_classes: 3", r"my.config:1:1: num_classes: there is no model that has classes"),
        (
            "train_config {\n learning_rate_batch_size: 3 }",
            r"my.config:2:2: train_config.learning_rate_batch_size: stands",
        ),
        ('preset: "efficientdet_d0"\npreset: "efficientdet_d1"', r"my.config:2:1: preset: given twice"),
    ],
)
def test_what_contradicts_itself(text: str, match: str, tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=match):
        load_config(written(tmp_path, text))


def test_a_preset_in_a_merged_override_is_refused() -> None:
    with pytest.raises(ConfigError, match=r"preset: it is named by the file itself, or as preset=NAME alone"):
        load_config("preset:efficientdet_d0", ['preset: "efficientdet_d1"'])


def test_a_file_without_a_preset_is_as_before(tmp_path: Path) -> None:
    text = "model { ssd { num_classes: 4 } } train_config { batch_size: 8 num_steps: 3 }"
    config = load_config(written(tmp_path, text))
    assert config == parse_message(text, Pipeline)
    assert config.notes == []


def test_a_list_that_was_only_read_changes_nothing() -> None:
    base = parse_message("train_config { data_augmentation_options { random_horizontal_flip { } } }", Pipeline)
    changes = parse_message("train_config { batch_size: 2 }", Pipeline)
    assert changes.train_config is not None
    assert list(changes.train_config.data_augmentation_options) == []
    lay_over(changes, base)
    assert base.train_config is not None
    assert len(base.train_config.data_augmentation_options) == 1
    assert base.train_config.batch_size == 2
