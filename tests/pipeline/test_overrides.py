from __future__ import annotations

import pytest

from boxwright.base.errors import ConfigError
from boxwright.config.load import dump_message, parse_message
from boxwright.pipeline.load import lay_over, load_config, with_overrides
from boxwright.pipeline.message import TrainEvalPipelineConfig as Pipeline
from boxwright.pipeline.messages import DetectionModel, Srn
from boxwright.pipeline.overrides import apply_override

BASE = """
model { ssd { num_classes: 1 } }
train_config { batch_size: 24 optimizer { rms_prop_optimizer { decay: 0.9 } } freeze_variables: ["a", "b"] }
eval_input_reader { label_map_path: "x" }
eval_input_reader { label_map_path: "y" }
"""


def overridden(*overrides: str) -> Pipeline:
    config = parse_message(BASE, Pipeline)
    for override in overrides:
        apply_override(config, override)
    return config


@pytest.mark.parametrize(
    ("override", "wanted"),
    [
        ("train_config.batch_size=8", "batch_size: 8"),
        ("model.ssd.num_classes=3", "num_classes: 3"),
        ("eval_input_reader[1].label_map_path=/a b/c.pbtxt", 'label_map_path: "/a b/c.pbtxt"'),
        ("eval_input_reader.0.label_map_path='q'", 'label_map_path: "q"'),
        ('train_input_reader.tf_record_input_reader.input_path=["u", "v"]', 'input_path: "v"'),
        ("train_input_reader.tf_record_input_reader.input_path=one", 'input_path: "one"'),
        ("train_config.freeze_variables[1]=c", 'freeze_variables: "c"'),
        ("train_config.freeze_variables[2]=c", 'freeze_variables: "c"'),
        ("train_config.optimizer={adam_optimizer{epsilon: 0.5}}", "epsilon: 0.5"),
        ("train_config.optimizer.adam_optimizer.epsilon=0.5", "epsilon: 0.5"),
        ("model.ssd.post_processing.score_converter=SIGMOID", "score_converter: SIGMOID"),
        ("train_config.fine_tune_checkpoint=", 'fine_tune_checkpoint: ""'),
        ("eval_input_reader[2].shuffle=false", "shuffle: false"),
    ],
)
def test_assignment(override: str, wanted: str) -> None:
    assert wanted in dump_message(overridden(override))


def test_setting_a_oneof_member_clears_the_other() -> None:
    config = overridden("train_config.optimizer.adam_optimizer.epsilon=0.5")
    assert config.train_config is not None
    assert config.train_config.optimizer is not None
    assert config.train_config.optimizer.which("optimizer") == "adam_optimizer"


def test_snippet_merges_as_protobuf_does() -> None:
    config = overridden(
        'train_config { batch_size: 2 freeze_variables: "c" optimizer { rms_prop_optimizer { epsilon: 0.1 } } }'
    )
    train = config.train_config
    assert train is not None
    assert train.batch_size == 2
    assert train.freeze_variables == ["a", "b", "c"]
    assert train.optimizer is not None
    assert train.optimizer.rms_prop_optimizer is not None
    assert train.optimizer.rms_prop_optimizer.decay == 0.9
    assert train.optimizer.rms_prop_optimizer.epsilon == 0.1


def test_replacing_an_item_keeps_its_place() -> None:
    config = overridden("train_config.freeze_variables[0]=z")
    assert config.train_config is not None
    assert config.train_config.freeze_variables == ["z", "b"]


@pytest.mark.parametrize(
    ("override", "wanted"),
    [
        ("train_config.batchsize=1", "did you mean batch_size?"),
        ("eval_input_reader.shuffle=true", "has 2 items; say which"),
        ("eval_input_reader[5].shuffle=true", "beyond the end; it has 2 items"),
        ("train_config.batch_size=x", "expected an integer, found 'x'"),
        ("model.ssd.num_classes.x=3", "it has no fields"),
        ("train_config[0].batch_size=3", "is not a list"),
        ("train_config.batch_size[0]=3", "is not a list"),
        ('train_config.fine_tune_checkpoint="a" batch_size: 3', "expected one value, found more after it: batch_size"),
        ("nonsense", "expected path=value"),
        ("train_config { batch_size: }", "batch_size has no value"),
        ("a=1", "unknown field of TrainEvalPipelineConfig"),
    ],
)
def test_errors(override: str, wanted: str) -> None:
    with pytest.raises(ConfigError) as caught:
        overridden(override)
    assert wanted in str(caught.value)
    assert "\n" not in str(caught.value)


def test_a_default_that_is_a_message_stays_as_it_is() -> None:
    """What stands for an absent message belongs to all messages: changes begin with an empty one, as in protobuf."""
    wanted = parse_message("srn { loss { localization_weight: 3 } }", DetectionModel)
    changed = [parse_message("srn { }", DetectionModel) for _ in range(3)]
    apply_override(changed[0], "srn.loss.localization_weight=3")
    apply_override(changed[1], "srn { loss { localization_weight: 3 } }")
    lay_over(wanted, changed[2])
    assert changed == [wanted] * 3
    assert Srn().loss.localization_weight == 1.0
    changed[0].srn.loss = None  # type: ignore[union-attr, assignment]
    assert not changed[0].srn.has("loss")  # type: ignore[union-attr]


def test_a_loaded_configuration_is_changed_as_its_file_is() -> None:
    """The number of classes goes to the model, and a preset is named too late."""
    loaded = load_config("preset:d_fine_n_coco")
    changed = with_overrides(loaded, ["num_classes=4"])
    assert changed == load_config("preset:d_fine_n_coco", ["num_classes=4"])
    assert [one.model.d_fine.num_classes for one in (loaded, changed)] == [80, 4]  # type: ignore[union-attr]
    with pytest.raises(ConfigError, match="preset"):
        with_overrides(loaded, ["preset=d_fine_s_coco"])
