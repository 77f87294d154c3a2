"""Metrics that are known some steps after the network looked: the run is the one that waits for them."""

from __future__ import annotations

import json
from collections.abc import Callable
from concurrent.futures import Future
from pathlib import Path
from typing import Any

import pytest

import boxwright as bw
from boxwright.base.errors import DataError
from boxwright.config.load import dump_message
from boxwright.evaluation import summary
from boxwright.evaluation.results import Evaluation
from boxwright.evaluation.summary import summarize_in_process
from boxwright.training import evaluations
from boxwright.training.log import Evaluated, Event
from boxwright.weights.store import CheckpointStore, read_checkpoint
from tests.exporters.small_detectors import with_few_layers
from tests.training.checkpoints import same
from tests.training.test_distributed import finish, lines, smooth_config, torchrun

SETTINGS: dict[str, Any] = {
    "workers": 0,
    "log_every_n": 1,
    "summarize_every_n": 0,
    "best_metric": "Loss/total_loss",
    "max_to_keep": 99,
}


@pytest.fixture
def small_config(small_config: Path) -> Path:
    """Of few layers: nothing here is of the network."""
    small_config.write_text(with_few_layers(small_config.read_text()))
    return small_config


class Late(Future[Evaluation]):
    """Known only to who waits for it."""

    def __init__(self, known: Future[Evaluation]) -> None:
        super().__init__()
        self.known = known

    def done(self) -> bool:
        return False

    def result(self, timeout: float | None = None) -> Evaluation:
        del timeout
        return self.known.result()


@pytest.fixture
def late(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(evaluations, "WORTH_A_PROCESS", 0)
    monkeypatch.setattr(evaluations, "summarize_in_process", lambda *given: Late(summarize_in_process(*given)))


class Heard:
    """What a run's listener hears of evaluations, and how many steps were logged before."""

    def __init__(self) -> None:
        self.steps = 0
        self.evaluated: list[tuple[int, int]] = []

    def on_event(self, step: int, event: Event) -> None:
        self.steps = max(self.steps, step)
        if isinstance(event, Evaluated):
            self.evaluated.append((step, self.steps))

    def close(self) -> None:
        pass


def run(config: Path, folder: Path, **settings: Any) -> Heard:
    heard = Heard()
    bw.train(bw.load_config(config), folder, bw.RunSettings(**SETTINGS | settings), {"heard": heard})
    return heard


def everything(folder: Path) -> dict[str, Any]:
    """All checkpoints of a run, without the time of day; and its log in the order of steps."""
    kept = {path.name: read_checkpoint(path) for path in [*CheckpointStore(folder).paths(), folder / "best.pt"]}
    lines = [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]
    for content in kept.values():
        del content["began"]
    for line in lines:
        line.pop("steps_per_sec", None)
    return kept | {"log": sorted(lines, key=lambda line: (line["step"], "evaluation" in line))}


@pytest.mark.slow
@pytest.mark.parametrize(
    ("every", "heard"),
    [
        # Evaluated at step 2, and not asked before the checkpoint of step 4 is to know of it.
        ({"checkpoint_every_n": 4, "evaluate_every_n": 2}, [(2, 4), (4, 6), (6, 6)]),
        pytest.param(
            {"checkpoint_every_n": 2, "evaluate_every_n": 2}, [(2, 4), (4, 6), (6, 6)], marks=pytest.mark.slow
        ),
        pytest.param({"checkpoint_every_n": 1, "evaluate_every_n": 3}, [(3, 4), (6, 6)], marks=pytest.mark.slow),
        ({"checkpoint_every_n": 6, "evaluate_every_n": 2, "patience": 1}, [(2, 2), (4, 4), (6, 6)]),
    ],
)
def test_nothing_but_the_time_differs(
    small_config: Path,
    tmp_path: Path,
    request: pytest.FixtureRequest,
    every: dict[str, int],
    heard: list[tuple[int, int]],
) -> None:
    """All checkpoints, the best among them, and all of the log are those of a run whose metrics are known at once."""
    at_once = run(small_config, tmp_path / "at once", **every)
    assert [step for step, _ in at_once.evaluated] == [then for _, then in at_once.evaluated]
    request.getfixturevalue("late")
    assert run(small_config, tmp_path / "late", **every).evaluated == heard
    assert same(everything(tmp_path / "at once"), everything(tmp_path / "late"))


@pytest.mark.slow
def test_another_process_while_the_run_goes_on(
    small_config: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    every = {"checkpoint_every_n": 4, "evaluate_every_n": 2}
    run(small_config, tmp_path / "here", **every)
    for module in (evaluations, summary):
        monkeypatch.setattr(module, "WORTH_A_PROCESS", 1)
    run(small_config, tmp_path / "beside", **every)
    assert same(everything(tmp_path / "here"), everything(tmp_path / "beside"))
    assert "computed in this process" not in caplog.text


@pytest.mark.slow
@pytest.mark.usefixtures("late")
def test_an_error_keeps_the_evaluation_before_it(
    small_config: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What ends the run comes before the metrics are asked for: the checkpoint that is saved then knows of them."""
    begun = evaluations_end(monkeypatch, 4)
    with pytest.raises(MemoryError):
        run(small_config, tmp_path, checkpoint_every_n=6, evaluate_every_n=2)
    assert begun == [0, 1, 2, 3]
    assert read_checkpoint(tmp_path / "ckpt-3.pt")["selection"]["evaluated"] == 2
    assert read_checkpoint(tmp_path / "best.pt")["step"] == 2


def evaluations_end(monkeypatch: pytest.MonkeyPatch, step: int) -> list[int]:
    """Let the step fail; return those that are begun."""
    from boxwright.training.step import Learner

    begun: list[int] = []
    plain: Callable[..., Any] = Learner.step

    def fail(self: Learner, *given: Any, **named: Any) -> Any:
        begun.append(self.state.step)
        if len(begun) == step:
            raise MemoryError
        return plain(self, *given, **named)

    monkeypatch.setattr(Learner, "step", fail)
    return begun


def test_metrics_that_cannot_be_computed_end_the_run_with_its_steps_saved(
    small_config: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refused(*_: Any) -> Future[Evaluation]:
        future: Future[Evaluation] = Future()
        future.set_exception(DataError("no masks"))
        return Late(future)

    monkeypatch.setattr(evaluations, "WORTH_A_PROCESS", 0)
    monkeypatch.setattr(evaluations, "summarize_in_process", refused)
    with pytest.raises(DataError, match="no masks"):
        run(small_config, tmp_path, checkpoint_every_n=4, evaluate_every_n=2)
    assert [path.name for path in CheckpointStore(tmp_path).paths()] == ["ckpt-4.pt"]


@pytest.mark.slow
@pytest.mark.usefixtures("late")
def test_the_last_step_is_evaluated_once(small_config: Path, tmp_path: Path) -> None:
    """The data ends right after a step that was evaluated, and whose metrics nobody has asked for."""
    config = tmp_path / "once.config"
    config.write_text(dump_message(bw.load_config(small_config, ["train_input_reader.num_epochs=1"])))
    heard = run(config, tmp_path / "m", checkpoint_every_n=1)
    steps = [step for step, _ in heard.evaluated]
    assert steps == list(range(1, len(steps) + 1))
    newest = read_checkpoint(CheckpointStore(tmp_path / "m").paths()[-1])
    assert newest["selection"]["evaluated"] == newest["step"] == steps[-1] < 6


@pytest.mark.slow
def test_processes_end_together_after_an_evaluated_step(small_config: Path, tmp_path: Path) -> None:
    config = smooth_config(small_config, tmp_path, "train_input_reader.num_epochs=1")
    told = finish(torchrun(2, config, tmp_path / "m", "--checkpoint_every_n", "1"))
    assert "the data is at its end" in told
    evaluated = [row["step"] for row in lines(tmp_path / "m") if "evaluation" in row]
    assert evaluated == list(range(1, len(evaluated) + 1))


def test_ctrl_c_while_metrics_are_waited_for(
    small_config: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, late: None
) -> None:
    """Nothing that lacks the evaluation is saved after it, so that the resumed run makes it again."""
    every = {"checkpoint_every_n": 3, "evaluate_every_n": 2}
    run(small_config, tmp_path / "whole", **every)
    with monkeypatch.context() as patched:
        patched.setattr(Late, "result", interrupted)
        with pytest.raises(KeyboardInterrupt):
            run(small_config, tmp_path / "m", **every)
    assert CheckpointStore(tmp_path / "m").paths() == []
    run(small_config, tmp_path / "m", **every)
    assert same(everything(tmp_path / "whole"), everything(tmp_path / "m"))


def interrupted(*_: Any) -> Any:
    raise KeyboardInterrupt
