from __future__ import annotations

import json
from pathlib import Path

import pytest

import boxwright as bw
from tests.conftest import Silent


def test_profile_says_where_time_goes_and_saves_nothing(small_config: Path, tmp_path: Path) -> None:
    heard: list[str] = []

    class Listener(Silent):
        def message(self, text: str) -> None:
            heard.append(text)

    config = bw.load_config(small_config, ["train_config.num_steps=100"])
    bw.train(config, tmp_path / "m", bw.RunSettings(workers=0, profile=True), {"test": Listener()})
    shares = {line.split()[0]: float(line.split()[1].rstrip("%")) for line in heard if line.endswith("%")}
    assert list(shares) == ["data", "forward", "assignment", "losses", "backward", "optimizer", "rest"]
    assert sum(shares.values()) == pytest.approx(100, abs=1)
    assert min(shares["forward"], shares["backward"]) > max(5, shares["assignment"])
    events = json.loads((tmp_path / "m" / "profile" / "trace.json").read_text())["traceEvents"]
    names = {event.get("name") for event in events}
    assert {"forward", "assignment", "backward", "optimizer"} <= names
    assert not list((tmp_path / "m").glob("*.pt"))


def test_too_little_data_for_a_profile(small_config: Path, tmp_path: Path) -> None:
    config = bw.load_config(small_config, ["train_config.num_steps=100", "train_input_reader.num_epochs=1"])
    with pytest.raises(bw.TrainingError, match="the data ended before 15 steps"):
        bw.train(config, tmp_path / "m", bw.RunSettings(workers=0, evaluate=False, profile=True))
