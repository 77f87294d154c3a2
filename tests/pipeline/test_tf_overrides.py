"""Overrides by the names of the TF Object Detection API."""

from __future__ import annotations

from typing import Any

import pytest

import boxwright as bw
from boxwright.config.load import parse_message
from boxwright.pipeline import messages as m
from boxwright.pipeline.tf_overrides import _NAMES, apply_tf_overrides, parse_hparams

READERS = """
train_input_reader { name: "t" tf_record_input_reader { input_path: "old" } }
eval_input_reader { name: "coco" tf_record_input_reader { input_path: "e" } }
"""
SSD = "model { ssd { loss { classification_loss { weighted_sigmoid_focal { } } } } }" + READERS
RCNN = "model { faster_rcnn { second_stage_classification_loss { weighted_sigmoid_focal { } } } }" + READERS


def rate(kind: str, schedule: str) -> str:
    return f"train_config {{ optimizer {{ {kind} {{ learning_rate {{ {schedule} }} }} }} }}"


COSINE = rate("adam_optimizer", "cosine_decay_learning_rate { learning_rate_base: 0.4 warmup_learning_rate: 0.1 }")
MANUAL = rate(
    "momentum_optimizer",
    "manual_step_learning_rate { initial_learning_rate: 0.2 schedule { step: 5 learning_rate: 0.1 } "
    "schedule { step: 9 learning_rate: 0.02 } }",
)
# TF's name, value, the configuration, and what the original sets, by path.
CASES: list[tuple[str, Any, str, dict[str, Any]]] = [
    (
        "learning_rate",
        0.01,
        rate("rms_prop_optimizer", "constant_learning_rate { }"),
        {"train_config.optimizer.rms_prop_optimizer.learning_rate.constant_learning_rate.learning_rate": 0.01},
    ),
    (
        "learning_rate",
        "0.02",
        rate("momentum_optimizer", "exponential_decay_learning_rate { decay_factor: 0.5 }"),
        {
            "train_config.optimizer.momentum_optimizer.learning_rate.exponential_decay_learning_rate"
            ".initial_learning_rate": 0.02
        },
    ),
    (  # the original keeps the other rates of this schedule
        "learning_rate",
        0.03,
        rate(
            "momentum_optimizer",
            "exponential_decay_learning_rate { burnin_learning_rate: 0.001 min_learning_rate: 0.0005 }",
        ),
        {
            "train_config.optimizer.momentum_optimizer.learning_rate.exponential_decay_learning_rate"
            ".initial_learning_rate": 0.03
        },
    ),
    (
        "learning_rate",
        0.8,
        COSINE,
        {
            "train_config.optimizer.adam_optimizer.learning_rate.cosine_decay_learning_rate.learning_rate_base": 0.8,
            "train_config.optimizer.adam_optimizer.learning_rate.cosine_decay_learning_rate.warmup_learning_rate": 0.2,
        },
    ),
    (
        "learning_rate",
        0.1,
        MANUAL,
        {
            f"train_config.optimizer.momentum_optimizer.learning_rate.manual_step_learning_rate.{path}": value
            for path, value in (
                ("initial_learning_rate", 0.1),
                ("schedule.0.learning_rate", 0.05),
                ("schedule.1.learning_rate", 0.01),
            )
        },
    ),
    ("batch_size", "7.6", "", {"train_config.batch_size": 8}),
    ("batch_size", -3, "", {"train_config.batch_size": 1}),
    (
        "momentum_optimizer_value",
        1.5,
        MANUAL,
        {"train_config.optimizer.momentum_optimizer.momentum_optimizer_value": 1},
    ),
    (
        "classification_localization_weight_ratio",
        3,
        SSD,
        {"model.ssd.loss.classification_weight": 3, "model.ssd.loss.localization_weight": 1},
    ),
    (
        "classification_localization_weight_ratio",
        3,
        RCNN,
        {
            "model.faster_rcnn.first_stage_localization_loss_weight": 1,
            "model.faster_rcnn.first_stage_objectness_loss_weight": 3,
            "model.faster_rcnn.second_stage_localization_loss_weight": 1,
            "model.faster_rcnn.second_stage_classification_loss_weight": 3,
        },
    ),
    ("focal_loss_gamma", 3, SSD, {"model.ssd.loss.classification_loss.weighted_sigmoid_focal.gamma": 3}),
    (
        "focal_loss_alpha",
        0.5,
        RCNN,
        {"model.faster_rcnn.second_stage_classification_loss.weighted_sigmoid_focal.alpha": 0.5},
    ),
    ("num_classes", 4, SSD, {"model.ssd.num_classes": 4}),
    ("train_steps", "500", "", {"train_config.num_steps": 500}),
    ("eval_steps", 20, "", {"eval_config.num_examples": 20}),
    (
        "label_map_path",
        "a b.pbtxt",
        READERS,
        {"train_input_reader.label_map_path": "a b.pbtxt", "eval_input_reader.0.label_map_path": "a b.pbtxt"},
    ),
    (
        "mask_type",
        "PNG_MASKS",
        READERS,
        {
            "train_input_reader.mask_type": m.InstanceMaskType.PNG_MASKS,
            "eval_input_reader.0.mask_type": m.InstanceMaskType.PNG_MASKS,
        },
    ),
    ("sample_1_of_n_eval_examples", 5, READERS, {"eval_input_reader.0.sample_1_of_n_examples": 5}),
    ("eval_num_epochs", 2, READERS, {"eval_input_reader.0.num_epochs": 2}),
    ("eval_with_moving_averages", True, "", {"eval_config.use_moving_averages": True}),
    ("retain_original_images_in_eval", False, "", {"eval_config.retain_original_images": False}),
    ("use_bfloat16", "true", "", {"train_config.use_bfloat16": True}),
    ("train_input_path", "new", READERS, {"train_input_reader.tf_record_input_reader.input_path": ["new"]}),
    ("train_input_path", ["x", "y"], READERS, {"train_input_reader.tf_record_input_reader.input_path": ["x", "y"]}),
    ("eval_input_path", "[x, y]", READERS, {"eval_input_reader.0.tf_record_input_reader.input_path": ["x", "y"]}),
    (
        "append_train_input_path",
        "new",
        READERS,
        {"train_input_reader.tf_record_input_reader.input_path": ["old", "new"]},
    ),
    ("append_eval_input_path", "new", READERS, {"eval_input_reader.0.tf_record_input_reader.input_path": ["e", "new"]}),
    ("train_shuffle", False, READERS, {"train_input_reader.shuffle": False}),
    ("eval_shuffle", "false", READERS, {"eval_input_reader.0.shuffle": False}),
    (
        "eval_input_configs:coco:input_path",
        "n",
        READERS,
        {"eval_input_reader.0.tf_record_input_reader.input_path": ["n"]},
    ),
    ("train_input_config:t:shuffle", False, READERS, {"train_input_reader.shuffle": False}),
    ("model.ssd.loss.classification_weight", 2.5, SSD, {"model.ssd.loss.classification_weight": 2.5}),
    ("train_input_config.label_map_path", "m", READERS, {"train_input_reader.label_map_path": "m"}),
]


def at(config: Any, path: str) -> Any:
    for part in path.split("."):
        config = config[int(part)] if part.isdecimal() else getattr(config, part)
    return config


@pytest.mark.parametrize(("name", "value", "text", "wanted"), CASES, ids=lambda value: str(value)[:40])
def test_name_sets_what_the_original_sets(name: str, value: Any, text: str, wanted: dict[str, Any]) -> None:
    config = parse_message(text, m.TrainEvalPipelineConfig)
    applied = apply_tf_overrides(config, {name: value})
    assert len(applied) == len(wanted)
    for path, expected in wanted.items():
        assert at(config, path) == (pytest.approx(expected) if isinstance(expected, float) else expected), path


def test_every_name_has_a_case() -> None:
    assert {name for name, *_ in CASES} >= set(_NAMES)
    assert len(_NAMES) == 22


def test_none_and_nothing_change_nothing() -> None:
    """As in the original."""
    config = parse_message(READERS, m.TrainEvalPipelineConfig)
    assert apply_tf_overrides(config, {"batch_size": None, "label_map_path": ""}) == []


BAD = [
    ("learning_rat", 1, "", "override learning_rat: no such name; did you mean learning_rate"),
    ("zzz", 1, "", "override zzz: no such name; known: learning_rate, batch_size"),
    ("learning_rate", 1, "", "needs rms_prop_optimizer or .* found none"),
    ("learning_rate", "fast", COSINE, "learning_rate: expected a number, found 'fast'"),
    (
        "learning_rate",
        1,
        COSINE.replace("0.4", "0"),
        "learning_rate_base is 0.*, to which the other rates have no ratio",
    ),
    ("learning_rate", 1, "train_config { optimizer { adam_optimizer { } } }", "has no learning_rate"),
    ("momentum_optimizer_value", 1, COSINE, "found adam_optimizer"),
    ("focal_loss_alpha", 1, "model { ssd { } }", "must be weighted_sigmoid_focal"),
    ("num_classes", 1, "model { srn { } }", "needs model.ssd or model.faster_rcnn, found srn"),
    ("train_input_path", "x", "train_input_reader { voc_input_reader { } }", "must be a tf_record_input_reader"),
    ("eval_input_path", "x", READERS + "eval_input_reader { }", "there are 2 eval_input_readers; name one"),
    ("eval_input_configs:other:shuffle", True, READERS, "expected one reader of the name 'other', found 0"),
    ("eval_input_configs:coco:name", "x", READERS, "expected one of input_path, label_map_path"),
    ("test_input:coco:shuffle", True, READERS, "expected train_input_config or eval_input_configs"),
    ("model.ssd.no_such", 1, SSD, "no_such"),
    ("batch_size", "many", "", "batch_size: expected a number"),
]


@pytest.mark.parametrize(
    ("name", "value", "text", "wanted"), BAD, ids=[f"{name}-{n}" for n, (name, *_) in enumerate(BAD)]
)
def test_what_does_not_apply_is_an_error(name: str, value: Any, text: str, wanted: str) -> None:
    with pytest.raises(bw.ConfigError, match=wanted):
        apply_tf_overrides(parse_message(text, m.TrainEvalPipelineConfig), {name: value})


def test_hparams_of_a_command_line() -> None:
    assert parse_hparams("learning_rate=0.1, train_input_path=[a,b],batch_size=8") == {
        "learning_rate": "0.1",
        "train_input_path": "[a,b]",
        "batch_size": "8",
    }


@pytest.mark.parametrize("text", ["a", "a=1,,b=2", "=1", "a=[1,2"])
def test_hparams_that_are_none(text: str) -> None:
    with pytest.raises(bw.ConfigError, match="--hparams_overrides: "):
        parse_hparams(text)
