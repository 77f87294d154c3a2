"""The JSON Schema: it accepts what is read, and marks what is not."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import jsonschema
import pytest

from boxwright.config.load import dump_message, json_schema
from boxwright.config.preset import preset_names
from boxwright.pipeline.load import load_config
from boxwright.pipeline.messages import TrainEvalPipelineConfig
from tests.conftest import extra_folder

SCHEMA = json_schema(TrainEvalPipelineConfig)
VALIDATOR = jsonschema.Draft202012Validator(SCHEMA)


def test_it_is_a_schema_of_every_message_and_field() -> None:
    jsonschema.Draft202012Validator.check_schema(SCHEMA)
    assert len(SCHEMA["$defs"]) > 180
    fields = [one for definition in SCHEMA["$defs"].values() for one in definition["properties"].values()]
    assert len(fields) > 1000
    assert all(one["description"] for one in fields)


@pytest.mark.slow
@pytest.mark.parametrize("every", [6, pytest.param(1, marks=pytest.mark.slow)])
def test_it_accepts_every_preset(every: int) -> None:
    names = preset_names()
    assert len(names) == 75
    for name in names[::every]:
        VALIDATOR.validate(json.loads(dump_message(load_config(f"preset:{name}"), "json")))


@pytest.mark.slow
@pytest.mark.parametrize("every", [8, pytest.param(1, marks=pytest.mark.slow)])
def test_it_accepts_the_official_configurations(every: int) -> None:
    folder = extra_folder("BOXWRIGHT_CONFIGS")
    if folder is None:
        pytest.skip("BOXWRIGHT_CONFIGS names no folder of pipeline.config files; the presets are tried above")
    files = sorted(Path(folder).rglob("*.config"))
    assert len(files) >= 104
    for file in files[::every]:
        VALIDATOR.validate(json.loads(dump_message(load_config(file), "json")))


@pytest.mark.parametrize(
    "document",
    [
        {"no_such_field": 1},
        {"train_config": {"batch_size": 0}},
        {"train_config": {"batch_size": "many"}},
        {"model": {"ssd": {}, "faster_rcnn": {}}},
        {"model": {"ssd": {"loss": {"expected_loss_weights": "NO_SUCH"}}}},
        {"model": {"srn": {"depth": 6}}},
        {"train_config": {"data_augmentation_options": {"random_vertical_flip": {}}}},
    ],
)
def test_it_marks_mistakes(document: dict[str, Any]) -> None:
    with pytest.raises(jsonschema.ValidationError):
        VALIDATOR.validate(document)
