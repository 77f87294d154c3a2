"""Configurations and label maps that were made to hurt, or by accident look so."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch

import boxwright as bw
from boxwright.base.errors import ConfigError, DataError
from boxwright.config.load import dump_message, parse_message
from boxwright.config.message import Message
from boxwright.config.support import field_status
from boxwright.data.label_map import load_label_map
from boxwright.nn.optimization.trainable import Freezing, Trainable
from boxwright.pipeline import messages as m
from boxwright.pipeline.load import load_config
from boxwright.pipeline.overrides import apply_override
from tests.conftest import SMALL_MODEL
from tests.fuzz.guard import guarded


def laughs(levels: int) -> str:
    lines = ["a0: &a0 [x, x, x, x, x, x, x, x, x, x]"]
    lines += [f"a{n}: &a{n} [{', '.join([f'*a{n - 1}'] * 10)}]" for n in range(1, levels)]
    return "\n".join(lines)


def nested(format: str) -> str:
    return "[" * 5000 + "]" * 5000 if format != "text" else "model { " * 5000 + "}" * 5000


# Of what is refused one by one tests/config/test_refusals.py has more.
@pytest.mark.slow_cases(
    "text2-yaml-nested too deeply|levels of nesting",
    "text5-text-unknown field",
    "text6-text-expected an integer",
    "train_config { batch_size: 99999999999 }-text-batch_size: should be less than or equal to 1000000, found 99999999999",
)
@pytest.mark.parametrize(
    ("text", "format", "wanted"),
    [
        pytest.param(
            laughs(9), "yaml", "values in a configuration or label map are more than the 1,000,000 allowed",
            marks=pytest.mark.slow,
        ),
        ("a: &a [*a]", "yaml", "an alias contains itself"),
        (nested("yaml"), "yaml", "nested too deeply|levels of nesting"),
        (nested("json"), "json", "levels of nesting|nested too deeply|expected a mapping"),
        (nested("text"), "text", "nested too deeply|levels of nesting"),
        ("x" * 10**6 + ": 1", "text", "unknown field"),
        ("train_config { batch_size: " + "1" * 5000 + " }", "text", "expected an integer"),
        ("train_config { batch_size: 99999999999 }", "text", "batch_size: should be less than or equal to 1000000, found 99999999999"),
        ('{"train_config": null}', "json", "found null"),
        ('{"train_config": {"batch_size": 1}', "json", ":1:.*this is not json"),
        ("train_config: {a: \x01}", "yaml", "this is not yaml"),
    ],
)  # fmt: skip
def test_errors_of_one_place_and_bounded_length(text: str, format: Any, wanted: str) -> None:
    outcome = guarded(lambda: parse_message(text, m.TrainEvalPipelineConfig, format=format))
    assert outcome.kind == "refused", outcome.text
    assert len(outcome.text) < 3000
    import re

    assert re.search(wanted, outcome.text), outcome.text


def test_yaml_that_is_nested_deeper_than_python_goes() -> None:
    with pytest.raises(ConfigError, match=r"^<string>:1:1: values are nested too deeply$"):
        parse_message("[" * 600 + "]" * 600, m.TrainEvalPipelineConfig, format="yaml")


@pytest.mark.parametrize(
    ("text", "format"), [(laughs(9), "yaml"), (json.dumps({"a": [1] * 1100}), "json"), ("a: 1\n" * 1100, "text")]
)
def test_values_that_are_allowed_and_their_variable(text: str, format: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("BOXWRIGHT_MAX_CONFIG_VALUES", "1000")
    with pytest.raises(ConfigError, match="values in a configuration or label map are more than the 1,000 allowed"):
        parse_message(text, m.TrainEvalPipelineConfig, format=format)


def test_nesting_that_is_allowed_and_its_variable(monkeypatch: pytest.MonkeyPatch) -> None:
    text = "model { ssd { loss { classification_loss { weighted_sigmoid { } } } } }"
    assert parse_message(text, m.TrainEvalPipelineConfig).model
    monkeypatch.setenv("BOXWRIGHT_MAX_CONFIG_NESTING", "4")
    with pytest.raises(ConfigError, match="5 levels of nesting are more than the 4 allowed"):
        parse_message(text, m.TrainEvalPipelineConfig)


ODD = ["\x85", "\u2028 ~", " outer ", "a\x7fb", "true", "1e400", "\ufeff", "浣熊", "\U00057f81", "a: b #c", "'\"\\"]


@pytest.mark.parametrize("format", ["text", "yaml", "json"])
@pytest.mark.parametrize("text", ODD)
def test_text_comes_back_the_same(format: Any, text: str) -> None:
    for value in (text, f"a{text}b", f"{text}'{text}"):
        config = m.TrainEvalPipelineConfig(train_config=m.TrainConfig(fine_tune_checkpoint=value))
        again = parse_message(dump_message(config, format), m.TrainEvalPipelineConfig, format=format)
        assert again.train_config is not None
        assert again.train_config.fine_tune_checkpoint == value


def test_json_of_others_is_read_as_json() -> None:
    """Python writes characters beyond 16 bits as pairs of escapes, and a raw U+0085 is no line end."""
    for value in ("\U0001f600", "a\x85b", "\u2028", "/"):
        for ascii in (True, False):
            text = json.dumps({"train_config": {"fine_tune_checkpoint": value}}, ensure_ascii=ascii)
            config = parse_message(text, m.TrainEvalPipelineConfig, format="json")
            assert config.train_config is not None
            assert config.train_config.fine_tune_checkpoint == value


@pytest.mark.parametrize(
    "override",
    [
        "eval_input_reader[²].label_map_path=x",
        "eval_input_reader[99999999999999999999].label_map_path=x",
        "train_config.fine_tune_checkpoint=\udcff",
        "train_config { fine_tune_checkpoint: '\udcff' }",
        "model { " * 3000 + "}" * 3000,
        "train_config.batch_size=" + "9" * 5000,
        "x" * 50_000,
    ],
)
def test_overrides(override: str) -> None:
    with pytest.raises(ConfigError) as caught:
        apply_override(m.TrainEvalPipelineConfig(), override)
    assert len(str(caught.value)) < 3000


@pytest.mark.slow
def test_thousands_of_items_take_no_longer_each(tmp_path: Path) -> None:
    """Counted, not timed: an item is set once, however many there are."""
    from boxwright.config import interpret

    stored: list[str] = []
    plain = interpret._store

    def counting(message: Message, name: str, *rest: Any) -> None:
        stored.append(name)
        plain(message, name, *rest)

    count = 5000
    (tmp_path / "m.pbtxt").write_text("".join(f"item {{ id: {n} name: 'c{n}' }}\n" for n in range(1, count + 1)))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(interpret, "_store", counting)
        assert len(load_label_map(tmp_path / "m.pbtxt")) == count
        assert stored.count("item") == 1
        steps = "data_augmentation_options { random_horizontal_flip { } }\n" * count
        stored.clear()
        assert len(parse_message(steps, m.TrainConfig).data_augmentation_options) == count
        assert stored.count("data_augmentation_options") == 1


def test_a_label_map_of_absurd_ids(tmp_path: Path) -> None:
    (tmp_path / "m.pbtxt").write_text(f"item {{ id: {'1' * 5000} name: 'x' }}")
    with pytest.raises(DataError, match=r"m.pbtxt:1:12: .*expected an integer"):
        load_label_map(tmp_path / "m.pbtxt")


SSD = "model.ssd."


@pytest.mark.parametrize(
    "change",
    [
        f"{SSD}feature_extractor.depth_multiplier=nan",
        f"{SSD}feature_extractor.fpn.max_level=2147483647",
        f"{SSD}feature_extractor.fpn.additional_layer_depth=65537",
        f"{SSD}feature_extractor.pad_to_multiple=65537",
        f"{SSD}feature_extractor.conv_hyperparams.batch_norm.epsilon=-1",
        f"{SSD}feature_extractor.conv_hyperparams.initializer.variance_scaling_initializer.factor=inf",
        f"{SSD}box_predictor.weight_shared_convolutional_box_predictor.kernel_size=65537",
        f"{SSD}box_predictor.weight_shared_convolutional_box_predictor.num_layers_before_predictor=2147483647",
        f"{SSD}box_predictor.weight_shared_convolutional_box_predictor.conv_hyperparams.initializer.random_normal_initializer.stddev=nan",
        f"{SSD}anchor_generator.multiscale_anchor_generator.max_level=2147483647",
        f"{SSD}anchor_generator.multiscale_anchor_generator.scales_per_octave=0",
        f"{SSD}anchor_generator.multiscale_anchor_generator.aspect_ratios=[-1.0]",
        f"{SSD}image_resizer.fixed_shape_resizer.width=2147483647",
        f"{SSD}loss.localization_loss.weighted_smooth_l1.delta=-inf",
        "train_config.optimizer.adam_optimizer.epsilon=nan",
        "train_config.batch_size=0",
        "train_config.gradient_accumulation_steps=0",
    ],
)
def test_hyperparameters_that_cannot_be(change: str) -> None:
    config = parse_message(SMALL_MODEL, m.TrainEvalPipelineConfig)
    path = change.partition("=")[0].removeprefix("model.")
    with pytest.raises(ConfigError, match=rf"{path.split('.')[-1]}(\[0\])?: .*, found"):
        apply_override(config, change)


def test_a_bad_hyperparameter_is_told_at_its_line(tmp_path: Path) -> None:
    (tmp_path / "c.config").write_text("train_config {\n  batch_size: 2\n  optimizer {\n   momentum_optimizer {\n"
                                       "     momentum_optimizer_value: nan } } }")  # fmt: skip
    with pytest.raises(ConfigError, match=r"c.config:5:6: train_config.optimizer.momentum_optimizer.momentum_opt"):
        load_config(tmp_path / "c.config")


def test_nearly_every_number_that_is_honored_has_bounds() -> None:
    """A new numeric field without any bound is a decision to write down here."""
    free = {"ConditionalShapeResizer", "HardExampleMiner", "StringIntLabelMapItem", "StringIntLabelMapItem.KeypointMap"}
    free |= {
        "ClassIdFunctionApproximations.ClassIdXyPairsMapEntry",
        "ClassIdSigmoidCalibrations.ClassIdSigmoidParametersMapEntry",
    }
    fields = {"gradient_clipping_by_norm", "bias_grad_multiplier", "keep_checkpoint_every_n_hours", "num_steps"}
    fields |= {"pad_color", "means", "original_labels", "min_padded_size_ratio", "max_padded_size_ratio"}
    fields |= {"keypoint_flip_permutation", "keypoint_rot_permutation", "color_ordering", "num_hard_examples", "step"}
    fields |= {
        "num_parts",
        "height_stride",
        "width_stride",
        "height_offset",
        "width_offset",
        "num_epochs",
        "sample_1_of_n_examples",
    }
    fields |= {"max_number_of_boxes", "burnin_steps", "total_steps", "warmup_steps", "hold_base_rate_steps"}
    checked = 0
    for cls in Message.__subclasses__():
        for name, spec in cls.fields.items():
            if spec.kind not in ("int", "float") or cls.__module__.startswith("tests"):
                continue
            if field_status(cls, name).verdict != "honored" or name in fields or cls.proto_name in free:
                continue
            assert spec.within, f"{cls.proto_name}.{name}"
            checked += 1
    assert checked > 150


@pytest.mark.slow_cases("^(a|a)*$-takes more than 1 s")
@pytest.mark.parametrize(
    ("pattern", "wanted"),
    [
        ("^(a|aa)+$", "takes more than 1 s"),
        ("^(a|a)*$", "takes more than 1 s"),
        ("((((.*)*)*)*)*x$", "hits none|takes more than 1 s"),
    ],
)
def test_patterns_end(pattern: str, wanted: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("BOXWRIGHT_MAX_PATTERN_SECONDS", "1")
    network = torch.nn.Linear(1, 1)
    names = {"weight": ("weight", "a" * 60 + "!"), "bias": ("bias",)}
    with pytest.raises(ConfigError, match=wanted):
        Trainable(network, Freezing(freeze=(pattern,)), names)


@pytest.mark.parametrize("pattern", ["a{99999999999}", "(" * 5000, "[", "(?P<"])
def test_patterns_that_are_none(pattern: str) -> None:
    network = torch.nn.Linear(1, 1)
    with pytest.raises(ConfigError, match="is not a regular expression"):
        Trainable(network, Freezing(freeze=(pattern,)), {"weight": ("weight",), "bias": ("bias",)})


@pytest.mark.parametrize(
    "name",
    ["hf-hub:user/repo", "hf_hub:user/repo", "local-dir:/somewhere", "../x", "", "resnet18:x", "no_such", "a\0b"],
)
def test_timm_names_are_plain(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """timm takes some names as places to fetch from: none of them reaches it."""
    import timm

    def fetch(*_: object, **__: object) -> None:
        raise AssertionError("timm was asked")

    monkeypatch.setattr(timm, "create_model", fetch)
    text = SMALL_MODEL.replace("ssd_mobilenet_v2_fpn_keras", "timm/PLACE").replace("use_depthwise: true", "", 1)
    config = parse_message(text, m.TrainEvalPipelineConfig)
    assert config.model is not None
    assert config.model.ssd is not None
    assert config.model.ssd.feature_extractor is not None
    config.model.ssd.feature_extractor.type = f"timm/{name}"
    with pytest.raises(ConfigError):
        bw.build_detector(config)


@pytest.mark.parametrize("path", ["a\0b", "x" * 5000, "x@999999", "[z-a]", "x@" + "9" * 5000])
def test_paths_that_cannot_be(path: str, tmp_path: Path) -> None:
    from boxwright.pipeline.input_reader import build_dataset

    (tmp_path / "m.pbtxt").write_text("item { id: 1 name: 'x' }")
    readers = [
        m.InputReader(label_map_path=path, tf_record_input_reader=m.TFRecordInputReader(input_path=["x"])),
        m.InputReader(
            label_map_path=str(tmp_path / "m.pbtxt"), tf_record_input_reader=m.TFRecordInputReader(input_path=[path])
        ),
        m.InputReader(coco_input_reader=m.CocoInputReader(annotations=path)),
        m.InputReader(voc_input_reader=m.VocInputReader(root=path)),
    ]
    for reader in readers:
        with pytest.raises((ConfigError, DataError)) as caught:
            build_dataset(reader, "reader")
        assert len(str(caught.value)) < 2000
    with pytest.raises(ConfigError):
        load_config(path)
    with pytest.raises(bw.CheckpointError):
        bw.restore_detector(path)
