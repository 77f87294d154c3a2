"""A loss that is finite and far above what it was: flagged once, never the best, and the end where that is asked for."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

import boxwright as bw
from boxwright.base.errors import CheckpointError
from boxwright.training.divergence import DivergenceMonitor
from boxwright.training.state import Selection
from boxwright.training.step import Learner, StepReport
from boxwright.weights.store import CheckpointStore, read_checkpoint
from tests.conftest import Silent


def observe(monitor: DivergenceMonitor, *losses: float) -> list[str]:
    return [monitor.observe(step, loss) for step, loss in enumerate(losses, 1)]


def test_a_loss_over_a_thousand_times_the_median_is_flagged_once() -> None:
    monitor = DivergenceMonitor()
    said = observe(monitor, 3.0, 2.0, 4.0, 3000.0, 3000.1, 2e15)
    assert said[:4] == ["", "", "", ""], "a thousand times the median of 3 is not over it"
    # The median of 3, 2, 4 and 3000 is 3.5; 3000.1 is below 3500.
    assert said[4] == ""
    assert said[5].startswith(
        "step 6: the run has diverged: the loss is 2e+15, and was 4, the median of 5 steps; lower"
    )
    assert monitor.diverged
    assert observe(monitor, 2e15, 3e15) == ["", ""]
    assert monitor.diverged, "what is far above is no part of the median"
    assert observe(monitor, 5.0) == [""]
    assert not monitor.diverged


def test_only_the_last_hundred_steps_count() -> None:
    monitor = DivergenceMonitor()
    assert observe(monitor, *[1e6] * 100, *[1.0] * 51) == [""] * 151
    assert len(monitor.losses) == 100
    assert observe(monitor, 1001.0) != [""], "the median of 49 of 1e6 and 51 of 1 is 1"


def test_nothing_is_a_multiple_of_a_loss_of_zero() -> None:
    assert observe(DivergenceMonitor(), 0.0, 0.0, 5.0, 0.0) == [""] * 4


@pytest.mark.parametrize("wrong", [None, {"a": 1.0}, [1.0, "2"], [float("nan")], [1]])
def test_a_checkpoint_with_other_losses_is_refused(wrong: object) -> None:
    with pytest.raises(CheckpointError, match="losses are not as they were written"):
        DivergenceMonitor().restore(wrong)


def test_an_evaluation_of_a_run_that_has_diverged_is_never_the_best() -> None:
    first = Selection("Loss/total_loss", 2).after(1, {"Loss/total_loss": 2e15}, diverged=True)
    assert (first.best, first.best_step, first.waited) == (None, -1, 1)
    assert first.after(2, {"Loss/total_loss": 3.0}).best_step == 2


@pytest.fixture
def said(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Return what a run says whose loss is a million times as large from the third step on."""
    lines: list[str] = []
    real = Learner.step

    def step(self: Learner, *arguments: Any, **options: Any) -> StepReport:
        report = real(self, *arguments, **options)
        return replace(report, numbers=report.numbers * 1e6) if report.before.step >= 2 else report

    monkeypatch.setattr(Learner, "step", step)
    monkeypatch.setattr(Silent, "message", lambda self, text: lines.append(text))
    return lines


def test_a_run_that_diverges_says_so_once_and_its_best_is_from_before(
    small_config: Path, tmp_path: Path, said: list[str]
) -> None:
    config = bw.load_config(small_config, ["train_config.num_steps=4"])
    settings = bw.RunSettings(workers=0, checkpoint_every_n=1, best_metric="Loss/total_loss", preflight=False)
    bw.train(config, tmp_path / "m", settings, {"heard": Silent()})
    (line,) = [text for text in said if "diverged" in text]
    assert line.startswith("warning: step 3: the run has diverged")
    assert line.endswith("; --stop_on_divergence ends such a run")
    assert read_checkpoint(tmp_path / "m" / "best.pt")["step"] <= 2
    content = read_checkpoint(CheckpointStore(tmp_path / "m").paths()[-1])
    assert (content["step"], len(content["recent_losses"])) == (4, 2)
    said.clear()
    more = bw.load_config(small_config, ["train_config.num_steps=5"])
    bw.train(more, tmp_path / "m", settings, {"heard": Silent()})
    assert any("step 5: the run has diverged" in text for text in said), "a resumed run knows the losses before"


def test_a_run_ends_where_it_diverges_if_asked_to(small_config: Path, tmp_path: Path, said: list[str]) -> None:
    settings = bw.RunSettings(workers=0, checkpoint_every_n=2, evaluate=False, preflight=False, stop_on_divergence=True)
    with pytest.raises(bw.TrainingError, match=r"step 3: the run has diverged.*the newest checkpoint is from before"):
        bw.train(bw.load_config(small_config), tmp_path / "m", settings)
    assert [path.name for path in CheckpointStore(tmp_path / "m").paths()] == ["ckpt-2.pt"]
    assert not [text for text in said if "warning" in text and "diverged" in text]
