"""A run computes with as many threads as it began with."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch

import boxwright as bw
from boxwright.base.errors import CheckpointError, TrainingError
from boxwright.training import state
from boxwright.training.state import run_threads
from boxwright.weights.store import read_checkpoint

LOG = logging.getLogger("boxwright.run")


@pytest.fixture(autouse=True)
def one_of_two_cpus(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setattr(state, "usable_cpus", lambda: 2)
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


def line(asked: int, content: dict[str, object] | None, caplog: pytest.LogCaptureFixture) -> tuple[int, str]:
    """Return with how many threads a run computes, and what the log says."""
    caplog.clear()
    with caplog.at_level(logging.INFO, "boxwright.run"), run_threads(asked, content, LOG) as count:
        assert torch.get_num_threads() == count
    assert torch.get_num_threads() == 1
    return count, caplog.records[0].getMessage()


def test_the_number_is_chosen_once(caplog: pytest.LogCaptureFixture) -> None:
    assert line(0, None, caplog) == (1, "1 thread")
    assert line(2, None, caplog) == (2, "2 threads")
    assert line(0, {"threads": 1}, caplog) == (1, "1 thread")
    assert line(0, {"threads": 2}, caplog) == (
        2,
        "2 threads, with which the run began (this machine's default is 1; --threads changes it)",
    )
    assert line(1, {"threads": 2}, caplog) == (
        1,
        "1 thread, 2 until now: rounding makes results differ from those of an uninterrupted run",
    )
    assert line(0, {"step": 3}, caplog) == (1, "1 thread"), "a checkpoint of an earlier version"


def test_fewer_cpus_are_named(caplog: pytest.LogCaptureFixture) -> None:
    assert line(0, {"threads": 3}, caplog)[1].endswith("; slower than necessary, as there are 2 CPUs")


@pytest.mark.parametrize("value", ["2", -1, 10**6])
def test_no_number(value: object) -> None:
    with pytest.raises(CheckpointError, match="its 'threads' is"), run_threads(0, {"threads": value}, LOG):
        pass
    with pytest.raises(TrainingError, match=r"threads: expected (0 or more|at most 1024), found"):
        bw.RunSettings(threads=-1 if value == -1 else 10**6)


def test_a_resumed_run_keeps_its_threads(
    small_config: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    config = bw.load_config(small_config, ["train_config.num_steps=1"])
    bw.train(config, tmp_path, bw.RunSettings(workers=0, evaluate=False, preflight=False, threads=2))
    assert read_checkpoint(tmp_path / "ckpt-1.pt")["threads"] == 2
    longer = bw.load_config(small_config, ["train_config.num_steps=2"])
    with caplog.at_level(logging.INFO, "boxwright.run"):
        bw.train(longer, tmp_path, bw.RunSettings(workers=0, evaluate=False, preflight=False))
    assert "2 threads, with which the run began" in caplog.text
    assert read_checkpoint(tmp_path / "ckpt-2.pt")["threads"] == 2
    assert torch.get_num_threads() == 1
