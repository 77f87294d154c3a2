from __future__ import annotations

import json
import re
from pathlib import Path

import pytest

import boxwright as bw
from boxwright.training import loop as profile
from tests.conftest import Silent
from tests.exporters.small_detectors import with_few_layers


class Listener(Silent):
    def __init__(self) -> None:
        super().__init__()
        self.heard: list[str] = []

    def message(self, text: str) -> None:
        self.heard.append(text)


def test_profile_says_where_time_goes_and_saves_nothing(
    small_config: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # Few steps, of few layers: reading the trace takes longer than what it is of.
    monkeypatch.setattr(profile, "_WARM", 2)
    monkeypatch.setattr(profile, "_MEASURED", 3)
    small_config.write_text(with_few_layers(small_config.read_text()))
    config = bw.load_config(small_config, ["train_config.num_steps=100"])
    listener = Listener()
    bw.train(config, tmp_path / "m", bw.RunSettings(workers=0, profile=True), {"test": listener})
    heard = listener.heard
    shares = {line.split()[0]: float(line.split()[1].rstrip("%")) for line in heard if line.endswith("%")}
    assert list(shares) == ["data", "forward", "assignment", "losses", "backward", "optimizer", "rest"]
    assert sum(shares.values()) == pytest.approx(100, abs=1)
    assert min(shares["forward"], shares["backward"]) > max(5, shares["assignment"])
    events = json.loads((tmp_path / "m" / "profile" / "trace.json").read_text())["traceEvents"]
    assert "no workers: each batch is read when it is wanted (--workers)" in heard
    names = {event.get("name") for event in events}
    assert {"forward", "assignment", "backward", "optimizer"} <= names
    assert not list((tmp_path / "m").glob("*.pt"))


@pytest.mark.slow
def test_profile_says_how_many_batches_lay_ready(small_config: Path, tmp_path: Path) -> None:
    config = bw.load_config(small_config, ["train_config.num_steps=100"])
    listener = Listener()
    bw.train(config, tmp_path / "m", bw.RunSettings(workers=2, evaluate=False, profile=True), {"test": listener})
    (line,) = (text for text in listener.heard if text.startswith("batches ready"))
    found = re.fullmatch(r"batches ready when one was wanted: (\d+) to (\d+) of 6(; \d+ of 10 steps waited: .*)?", line)
    assert found, line
    assert 0 <= int(found[1]) <= int(found[2]) <= 6 + 2  # what a worker is making counts when it is made
    assert (int(found[1]) == 0) == bool(found[3])


def test_too_little_data_for_a_profile(small_config: Path, tmp_path: Path) -> None:
    config = bw.load_config(small_config, ["train_config.num_steps=100", "train_input_reader.num_epochs=1"])
    with pytest.raises(bw.TrainingError, match="the data ended before 15 steps"):
        bw.train(config, tmp_path / "m", bw.RunSettings(workers=0, evaluate=False, profile=True))
