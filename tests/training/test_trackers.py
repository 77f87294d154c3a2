"""Numbers reach the trackers of others through their own libraries, here ones that only remember."""

from __future__ import annotations

import re
import sys
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest

import boxwright as bw


@pytest.fixture
def remembered(monkeypatch: pytest.MonkeyPatch) -> list[tuple[str, Any]]:
    calls: list[tuple[str, Any]] = []
    wandb, mlflow = ModuleType("wandb"), ModuleType("mlflow")
    run = SimpleNamespace(
        define_metric=lambda name, step_metric=None: calls.append(("wandb", {name: step_metric})),
        # As the library does with a step that is lower than the one before: it has its own count, and drops such rows.
        log=lambda values: calls.append(("wandb", (values["step"], values))),
        finish=lambda: calls.append(("wandb", "end")),
    )
    wandb.init = lambda **arguments: calls.append(("wandb", arguments)) or run  # type: ignore[attr-defined]

    def start_run(run_id: str | None, run_name: str | None) -> Any:
        calls.append(("mlflow", (run_id, run_name)))
        return SimpleNamespace(info=SimpleNamespace(run_id="abc"))

    def log_metrics(values: dict[str, float], step: int, run_id: str) -> None:
        assert run_id == "abc"
        assert all(re.fullmatch(r"[/\w.\- ]+", key) for key in values), "as MLflow insists"
        calls.append(("mlflow", (step, values)))

    for name, function in {
        "set_experiment": lambda _: None,
        "start_run": start_run,
        "log_text": lambda text, name, run_id: calls.append(("mlflow", (name, text[:5]))),
        "log_metrics": log_metrics,
        "get_run": lambda run_id: None,
        "end_run": lambda: calls.append(("mlflow", "end")),
    }.items():
        setattr(mlflow, name, function)
    monkeypatch.setitem(sys.modules, "wandb", wandb)
    monkeypatch.setitem(sys.modules, "mlflow", mlflow)
    return calls


def test_both_hear_of_steps_and_evaluations(
    small_config: Path, tmp_path: Path, remembered: list[tuple[str, Any]]
) -> None:
    config = bw.load_config(small_config, ["train_config.num_steps=2"])
    settings = bw.RunSettings(workers=0, log_every_n=1, track=("wandb", "mlflow"))
    bw.train(config, tmp_path / "run7", settings)
    for name, map_name in (
        ("wandb", "eval/DetectionBoxes_Precision/mAP@.50IOU"),
        ("mlflow", "eval/DetectionBoxes_Precision/mAP_.50IOU"),
    ):
        steps = [
            what for who, what in remembered if who == name and isinstance(what, tuple) and isinstance(what[0], int)
        ]
        assert [step for step, _ in steps] == [1, 2, 2]
        assert "Loss/total_loss" in steps[0][1]
        assert map_name in steps[2][1]
        assert (name, "end") in remembered
    started = next(what for who, what in remembered if who == "wandb")
    assert (started["name"], started["resume"]) == ("run7", "allow")
    assert started["id"] == (tmp_path / "run7" / "wandb_run_id").read_text()
    assert ("wandb", {"*": "step"}) in remembered, "evaluations that come late are drawn where they belong"
    assert ("mlflow", (None, "run7")) in remembered
    more = bw.load_config(small_config, ["train_config.num_steps=3"])
    bw.train(more, tmp_path / "run7", settings)
    assert ("mlflow", ("abc", None)) in remembered, "the run there is resumed"


def test_missing_library_and_unknown_name(small_config: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    config = bw.load_config(small_config, ["train_config.num_steps=1"])
    monkeypatch.setitem(sys.modules, "wandb", None)
    for name, wanted in (
        ("wandb", r"not installed: pip install 'boxwright\[wandb\]'"),
        ("comet", "known: wandb, mlflow"),
    ):
        with pytest.raises(bw.TrainingError, match=wanted):
            bw.train(config, tmp_path / name, bw.RunSettings(workers=0, evaluate=False, track=(name,)))
