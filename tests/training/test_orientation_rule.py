"""Which way up labels see pictures is a run's own: stored when it begins, and kept when it goes on."""

from __future__ import annotations

from pathlib import Path

import pytest

import boxwright as bw
from boxwright.config.load import parse_message
from boxwright.pipeline import messages as m
from boxwright.pipeline.input_reader import with_earlier_rule, with_orientation_rule
from boxwright.pipeline.load import load_config
from boxwright.training.state import TrainingState
from boxwright.weights.store import CheckpointStore, read_config
from tests.brought.layouts import yolo
from tests.brought.pictures import pictures
from tests.conftest import SMALL_MODEL, SMALL_TRAINING

TEXT = """
model {{ ssd {{ num_classes: 3 }} }}
train_input_reader {{ {switch} yolo_input_reader {{ data: "{folder}" }} }}
eval_input_reader {{ yolo_input_reader {{ data: "{folder}" }} }}
eval_input_reader {{ tf_record_input_reader {{ input_path: "a.record" }} }}
"""


def config(folder: Path, switch: str = "") -> m.TrainEvalPipelineConfig:
    return parse_message(TEXT.format(folder=folder, switch=switch), m.TrainEvalPipelineConfig, file="here")


def rules(written: m.TrainEvalPipelineConfig) -> list[bool | None]:
    readers = [written.train_input_reader, *written.eval_input_reader]
    return [reader.ignore_exif if reader and reader.has("ignore_exif") else None for reader in readers]


def test_a_new_run_states_its_rule(tmp_path: Path) -> None:
    given = config(tmp_path)
    assert rules(with_orientation_rule(given)) == [False, False, None], "TFRecords have no such rule"
    assert rules(given) == [None, None, None], "the caller's own is not changed"
    assert rules(with_orientation_rule(config(tmp_path, "ignore_exif: true"))) == [True, False, None]


def test_a_resumed_run_keeps_its_rule(tmp_path: Path) -> None:
    older = with_earlier_rule(config(tmp_path))
    assert rules(older) == [True, True, None]
    assert rules(with_orientation_rule(config(tmp_path), older)) == [True, True, None]
    assert rules(with_orientation_rule(config(tmp_path, "ignore_exif: false"), older)) == [False, True, None]
    newer = with_orientation_rule(config(tmp_path))
    assert rules(with_orientation_rule(config(tmp_path), with_earlier_rule(newer))) == [False, False, None]


def test_runs_of_both_times_go_on_as_they_began(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = yolo({"train": pictures(orientation=6, convention="upright")}, tmp_path / "data")
    reader = f'yolo_input_reader {{ data: "{folder}" }}'
    text = f"{SMALL_MODEL}{SMALL_TRAINING} train_input_reader {{ {reader} }}".replace(
        "num_classes: 4", "num_classes: 3"
    )
    (tmp_path / "a.config").write_text(text)
    settings = bw.RunSettings(evaluate=False, workers=0, preflight=False, device="cpu")

    def run(steps: int, name: str) -> bool:
        """Return the rule that the run's last checkpoint states."""
        given = load_config(tmp_path / "a.config", [f"train_config.num_steps={steps}"])
        bw.train(given, tmp_path / name, settings)
        newest = CheckpointStore(tmp_path / name).latest()
        assert newest is not None
        stated = parse_message(newest[1]["config"], m.TrainEvalPipelineConfig, file="checkpoint").train_input_reader
        assert stated is not None
        assert stated.has("ignore_exif")
        assert read_config(newest[1], newest[0]).train_input_reader == stated
        return stated.ignore_exif

    assert run(1, "new") is False
    assert run(2, "new") is False
    # A run of an earlier version: its checkpoint's configuration lacks the field.
    write = TrainingState.content
    monkeypatch.setattr(
        TrainingState, "content", lambda self, text: write(self, text.replace("  ignore_exif: false\n", ""))
    )
    bw.train(load_config(tmp_path / "a.config", ["train_config.num_steps=1"]), tmp_path / "old", settings)
    monkeypatch.undo()
    assert run(2, "old") is True
