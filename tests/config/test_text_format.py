"""The text format against protobuf's own reader, and its errors."""

from __future__ import annotations

import math
import os
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from boxwright.base.errors import ConfigError
from boxwright.config.load import dump_message, parse_message
from boxwright.pipeline import messages as m
from boxwright.pipeline.load import load_config
from boxwright.pipeline.message import TrainEvalPipelineConfig as Pipeline
from tests.config.protobuf_oracle import protobuf_reads
from tests.conftest import SMALL_MODEL, SMALL_TRAINING, extra_folder

EVERYTHING = r"""
# comment before
train_config: {   # colon before a message
  batch_size: 0x10; gradient_clipping_by_norm: -inf,   # separators, hexadecimal
  fine_tune_checkpoint: "a\n\"q\" \x41\101" 'b\'c' # adjacent strings
    "\u00e9é"
  freeze_variables: ["x", 'y']          # list
  freeze_variables: "z"                 # spread
  num_steps: 010
  optimizer < adam_optimizer <epsilon: 1.f learning_rate { constant_learning_rate { learning_rate: .5e-2F } } > >
  startup_delay_steps: nan
  data_augmentation_options [ { random_horizontal_flip { } }, { random_distort_color { color_ordering: 1 } } ]
  fine_tune_checkpoint_version: 1
  keep_checkpoint_every_n_hours: infinity
  bias_grad_multiplier: - 2
  sync_replicas: t
  use_bfloat16: 0
  update_trainable_variables: []
}
model { ssd { post_processing { score_converter: SOFTMAX } } }
eval_input_reader { sample_1_of_n_examples: 1 }
train_input_reader: < shuffle: False >
eval_input_reader { }
"""


def test_reads_what_protobuf_reads() -> None:
    config = parse_message(EVERYTHING, Pipeline)
    train = config.train_config
    assert train is not None
    assert train.batch_size == 16
    assert train.num_steps == 8
    assert train.gradient_clipping_by_norm == -math.inf
    assert train.fine_tune_checkpoint == 'a\n"q" AAb\'céé'
    assert train.freeze_variables == ["x", "y", "z"]
    assert math.isnan(train.startup_delay_steps)
    assert train.bias_grad_multiplier == -2
    assert train.sync_replicas is True
    assert train.use_bfloat16 is False
    assert len(train.data_augmentation_options) == 2
    assert train.fine_tune_checkpoint_version.name == "V1" or train.fine_tune_checkpoint_version.value == 1
    assert len(config.eval_input_reader) == 2
    judged = protobuf_reads(EVERYTHING.replace("- 2", "-2"))
    ours = protobuf_reads(dump_message(config))
    for message in (judged, ours):  # NaN differs from itself
        message.train_config.ClearField("startup_delay_steps")
    assert ours == judged


def test_field_set_to_its_default_is_written() -> None:
    text = dump_message(parse_message("train_config { batch_size: 32 }", Pipeline))
    assert "batch_size: 32" in text
    assert protobuf_reads(text).train_config.HasField("batch_size")


@pytest.mark.parametrize("format", ["text", "yaml", "json"])
def test_round_trip(format: str) -> None:
    config = parse_message(SMALL_MODEL + SMALL_TRAINING, Pipeline)
    again = parse_message(dump_message(config, format), Pipeline, format=format)  # type: ignore[arg-type]
    assert again == config
    assert dump_message(again) == dump_message(config)


# Fewer where time is short; `make test-all` sets BOXWRIGHT_DRAWS.
@settings(max_examples=100 if "BOXWRIGHT_DRAWS" in os.environ else 30)
@given(
    st.text(), st.floats(width=32, allow_nan=False), st.integers(-(2**31), 2**31 - 1), st.lists(st.text(), max_size=3)
)
def test_protobuf_reads_back_any_value(text: str, number: float, whole: int, texts: list[str]) -> None:
    try:
        text.encode(), [item.encode() for item in texts]
    except UnicodeEncodeError:
        return
    train = m.TrainConfig(fine_tune_checkpoint=text, replicas_to_aggregate=whole, freeze_variables=texts)
    train.startup_delay_steps = number
    written = dump_message(Pipeline(train_config=train))
    judged = protobuf_reads(written).train_config
    assert judged.fine_tune_checkpoint == text
    assert judged.startup_delay_steps == number
    assert judged.replicas_to_aggregate == whole
    assert list(judged.freeze_variables) == texts
    assert parse_message(written, Pipeline) == Pipeline(train_config=train)


ERRORS = [
    ("model { ssd { numclasses: 3 } }", "f:1:15: numclasses: unknown field of Ssd; did you mean num_classes?"),
    ("model { ssd { }\n faster_rcnn { } }", "f:2:2: model.faster_rcnn: excludes ssd, set at line 1"),
    ("model {\n ssd {\n  num_classes: 3\n", "the file ends inside 'ssd', opened at line 2: expected '}'"),
    ("model { ssd { num_classes: 'x' } }", "f:1:28: model.ssd.num_classes: expected an integer, found 'x'"),
    ("train_config { batch_size: 1.5 }", "train_config.batch_size: expected an integer, found '1.5'"),
    ("train_config { batch_size: 08 }", "train_config.batch_size: expected an integer, found '08'"),
    ("train_config { batch_size: -1 }", "train_config.batch_size: should be greater than or equal to 1, found -1"),
    ("train_config { fine_tune_checkpoint: 'abc\n }", "this string is not closed on its line"),
    ("train_config { fine_tune_checkpoint: '\\q' }", "unknown escape '\\q' in a string; write / in a path"),
    (
        'train_config { fine_tune_checkpoint: "C:\\temp\\x" }',
        'f:1:38: backslashes begin escapes in strings; write the path as "C:/temp/x"',
    ),
    ('train_config { fine_tune_checkpoint: "D:\\new\\101 (1).pt" }', 'write the path as "D:/new/101 (1).pt"'),
    ("train_config { fine_tune_checkpoint: abc }", "expected a string, found 'abc'"),
    ("train_config { sync_replicas: yes }", "expected true or false, found 'yes'"),
    (
        "model { ssd { post_processing { score_converter: SIGMOD } } }",
        "expected one of IDENTITY, SIGMOID, SOFTMAX, found 'SIGMOD'; did you mean SIGMOID?",
    ),
    ("model { ssd { num_classes: 3 num_classes: 4 } }", "model.ssd.num_classes: given twice, first at line 1"),
    ("model: 3", "model: expected a message { … }, found '3'"),
    ("model { ssd { num_classes { } } }", "model.ssd.num_classes: expected an integer, found a message"),
    ("model { ssd { num_classes: [1, 2] } }", "model.ssd.num_classes: takes one value, found a list"),
    ("train_config { batch_size: }", "f:1:16: batch_size has no value"),
    ("}", "f:1:1: expected a field name, found '}'"),
    ("model", "the file ends after 'model', where a value was expected"),
    ("train_config { batch_size: 1x }", "malformed number '1x'"),
    ("train_config { batch_size: 3 @ }", "unexpected character '@'"),
    ("train_config { fine_tune_checkpoint: '\\U00110000' }", "is no character"),
    ("train_config { fine_tune_checkpoint: '\\ud800' }", "is no character"),
    ("train_config { #\x0b\n   @ }", "f:2:4: unexpected character '@'"),
    ("[object_detection.protos.ext] { }", "f:1:1: expected a field name"),
]


@pytest.mark.parametrize(("text", "wanted"), ERRORS)
def test_errors_point_and_explain(text: str, wanted: str) -> None:
    with pytest.raises(ConfigError) as caught:
        parse_message(text, Pipeline, file="f")
    assert wanted in str(caught.value)
    assert "\n" not in str(caught.value)
    assert str(caught.value).startswith("f:")


@pytest.mark.parametrize("cut", range(10, 400, 13))
def test_truncation_anywhere_is_one_line_or_a_valid_file(cut: int) -> None:
    text = (SMALL_MODEL + SMALL_TRAINING)[:cut]
    try:
        parse_message(text, Pipeline, file="f")
    except ConfigError as error:
        assert "\n" not in str(error)  # noqa: PT017  # some cuts leave a valid file


@pytest.mark.parametrize(
    ("name", "text", "wanted"),
    [
        ("a.yaml", "model:\n  ssd:\n    numclasses: 3\n", "a.yaml:3:5: numclasses: unknown field"),
        ("a.yaml", "model: [\n", "this is not yaml"),
        ("a.json", '{"model": {"ssd": {"num_classes": "x"}}}', "a.json:1:"),
        ("a.json", "[]", "expected a mapping"),
        ("a.yaml", "train_config:\n  fine_tune_checkpoint: null\n", "found null; leave the field out"),
        ("a.yaml", "model: &a\n  ssd: *a\n", "contains itself"),
        ("a.json", '{\t"model":\t{"ssd":{}}, "model": {}}', "given twice"),
    ],
)
def test_yaml_and_json_errors_point(tmp_path: Path, name: str, text: str, wanted: str) -> None:
    (tmp_path / name).write_text(text)
    with pytest.raises(ConfigError, match="a\\.") as caught:
        load_config(tmp_path / name)
    assert wanted in str(caught.value)


def test_missing_folder_and_binary_files(tmp_path: Path) -> None:
    (tmp_path / "b.config").write_bytes(b"\xff\xfe\x00")
    for path, wanted in ((tmp_path / "no", "no such file"), (tmp_path, "folder"), (tmp_path / "b.config", "as text")):
        with pytest.raises(ConfigError, match=wanted):
            load_config(path)


@pytest.mark.slow
@pytest.mark.parametrize("every", [8, pytest.param(1, marks=pytest.mark.slow)])
def test_real_configurations(every: int) -> None:
    """Every configuration of a folder parses, prints and parses back equal, for us and for protobuf."""
    folder = extra_folder("BOXWRIGHT_CONFIGS")
    if folder is None:
        pytest.skip("BOXWRIGHT_CONFIGS names no folder of pipeline.config files; test_round_trip covers ours")
    files = sorted(folder.rglob("*.config"))
    assert len(files) >= 104
    for file in files[::every]:
        config = load_config(file)
        text = dump_message(config)
        assert parse_message(text, Pipeline) == config, file
        assert protobuf_reads(text) == protobuf_reads(file.read_text()), file
        for format in ("yaml", "json"):
            assert parse_message(dump_message(config, format), Pipeline, format=format) == config, file  # type: ignore[arg-type]


MAP_TEXT = """calibration_config { class_id_sigmoid_calibrations {
  class_id_sigmoid_parameters_map { key: 3 value { a: 0.5 } }
  class_id_sigmoid_parameters_map { key: 1 value { a: 2 } }
  class_id_sigmoid_parameters_map { key: 3 value { a: 4 } } } }"""


def test_maps_are_maps() -> None:
    """Text format writes entries, of which the last of a key holds; YAML and JSON write a mapping."""
    config = parse_message(MAP_TEXT, m.PostProcessing)
    calibrations = config.calibration_config.class_id_sigmoid_calibrations  # type: ignore[union-attr]
    assert calibrations is not None
    found = calibrations.mapping("class_id_sigmoid_parameters_map")
    assert {key: value.a for key, value in found.items()} == {3: 4.0, 1: 2.0}
    written = "class_id_sigmoid_parameters_map"
    assert config.to_dict()["calibration_config"]["class_id_sigmoid_calibrations"][written] == {
        3: {"a": 4.0},
        1: {"a": 2.0},
    }
    for format in ("text", "yaml", "json"):
        text = dump_message(config, format)  # type: ignore[arg-type]
        assert parse_message(text, m.PostProcessing, format=format) == config  # type: ignore[arg-type]
    named = "keypoint_label_to_std: {nose: 0.5, left eye: 1}"
    keypoints = parse_message(named, m.CenterNetKeypointEstimation, format="yaml")
    assert keypoints.mapping("keypoint_label_to_std") == {"nose": 0.5, "left eye": 1.0}


def test_an_entry_of_a_map_without_a_value_has_the_default() -> None:
    """As in protobuf's specification of maps; YAML and JSON have no entry without a value."""
    text = 'eval_config { super_categories { key: "a" } }'
    config = parse_message(text, Pipeline)
    assert config == parse_message('eval_config { super_categories { key: "a" value: "" } }', Pipeline)
    for format in ("text", "yaml", "json"):
        assert parse_message(dump_message(config, format), Pipeline, format=format) == config
    entry = "calibration_config { class_id_sigmoid_calibrations { class_id_sigmoid_parameters_map { key: 3 %s } } }"
    assert parse_message(entry % "", m.PostProcessing) == parse_message(entry % "value {}", m.PostProcessing)
    sigmas = "eval_config { parameterized_metric { coco_keypoint_metrics { keypoint_label_to_sigmas { key: 'a' } } } }"
    with pytest.raises(ConfigError, match="keypoint_label_to_sigmas.*: should be greater than 0, found 0"):
        parse_message(sigmas, Pipeline)


def test_an_unknown_field_whose_name_has_two_lines_is_told_in_one() -> None:
    with pytest.raises(ConfigError) as refused:
        parse_message('eval_config: {"a\\nb": 1}', Pipeline, format="yaml")
    assert str(refused.value).partition(";")[0] == r"<string>:1:15: a\u000ab: unknown field of EvalConfig"


@pytest.mark.parametrize(
    ("written", "wanted"),
    [(r"C:\\temp\\x", "C:\\temp\\x"), ("C:/temp/x", "C:/temp/x"), (r"a:\n", "a:\n"), (r"ab:\tb", "ab:\tb")],
)
def test_strings_with_a_colon_that_are_no_windows_paths(written: str, wanted: str) -> None:
    config = parse_message(f'fine_tune_checkpoint: "{written}"', m.TrainConfig)
    assert config.fine_tune_checkpoint == wanted
