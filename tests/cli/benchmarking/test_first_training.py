"""`benchmarks/first_training.py`: its recipes are configurations, and its tables say what rows say."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from benchmarks import first_training, first_training_table

import boxwright as bw
from boxwright.config.preset import preset_names


@pytest.mark.parametrize("name", first_training.VARIANTS)
def test_a_variant_differs_from_the_default_in_what_it_says(name: str, tmp_path: Path) -> None:
    config = first_training.config_of(first_training.VARIANTS[name], 340, tmp_path)
    assert config.train_config is not None
    assert config.train_config.num_steps == 340
    bw.build_detector(config)
    default = first_training.config_of(first_training.VARIANTS["the default"], 340, tmp_path)
    assert (config.to_dict() == default.to_dict()) == (name == "the default")


def test_presets_are_there() -> None:
    assert {first_training.DEFAULT, first_training.OLD} <= {f"preset:{name}" for name in preset_names()}


def test_rows_that_are_there_are_not_made_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(first_training, "RESULTS", tmp_path)
    assert not first_training.known("variants", {"variant": "a"})
    first_training.keep("variants", {"variant": "a", "AP": 0.5})
    assert first_training.known("variants", {"variant": "a"})
    (row,) = json.loads((tmp_path / "first-training-variants-cpu.json").read_text())["rows"]
    assert row["command"].startswith("python benchmarks/first_training.py")


def test_the_tables() -> None:
    rows = [
        {"data": "bccd", "weights": "none", "minutes": 2.0, "steps": 300 + n, "AP": ap, "AP50": ap + 0.3,
         "AP interval": [ap - 0.1, ap + 0.1], "seconds of the command": 150 + n}
        for n, ap in enumerate((0.5, 0.4, 0.45))
    ]  # fmt: skip
    line = first_training_table.budgets({"rows": rows})[-1]
    assert line == (
        "| blood cells | none | 2 | 301 | 0.450 (0.400 to 0.500) | 0.300 to 0.600 | 0.750 (0.700 to 0.800) | 3 | 151 |"
    )
    ordered = first_training_table.variants(
        {"rows": [{**row, "variant": f"v{number}", "ms a step": 400.4} for number, row in enumerate(rows)]}
    )
    assert [line[2:4] for line in ordered[2:]] == ["v0", "v2", "v1"]
    (said,) = first_training_table.statistics(
        {"rows": [{"training": "t", "as it is": {"AP": 0.011}, "start taken out": {"AP": 0.389}}]}
    )[2:]
    assert said == "| t | 0.011 | 0.389 |"
