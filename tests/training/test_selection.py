from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

import boxwright as bw
from boxwright.training.log import Evaluated
from boxwright.training.state import Selection
from boxwright.weights.store import CheckpointStore, read_checkpoint
from tests.conftest import Silent


def run(metric: str, values: list[float], patience: int = 0) -> Selection:
    selection = Selection(metric, patience)
    for step, value in enumerate(values):
        selection = selection.after(step, {"other": 1.0, metric: value})
    return selection


@pytest.mark.parametrize(
    ("metric", "values", "best", "waited"),
    [
        ("mAP", [0.1, 0.3, 0.2, 0.3], (0.3, 1), 2),
        ("Loss/total_loss", [3.0, 2.0, 2.5], (2.0, 1), 1),
        ("mAP", [-1.0, float("nan"), 0.0], (0.0, 2), 0),
        ("mAP", [float("nan")], (None, -1), 1),
    ],
)
def test_best_of(metric: str, values: list[float], best: tuple[float | None, int], waited: int) -> None:
    found = run(metric, values)
    assert (found.best, found.best_step) == best
    assert found.waited == waited
    assert not found.exhausted


def test_patience() -> None:
    assert not run("mAP", [0.3, 0.1], 2).exhausted
    assert run("mAP", [0.3, 0.1, 0.2], 2).exhausted
    kept = Selection("mAP", 2).restored(run("mAP", [0.3, 0.1], 2).content())
    assert kept.after(9, {"mAP": 0.2}).exhausted, "patience is remembered over a stop"
    assert Selection("Loss/total_loss", 2).restored(run("mAP", [0.3]).content()).best is None


def test_unknown_metric_names_the_known() -> None:
    with pytest.raises(bw.ConfigError, match="'no', which is not computed; computed: mAP, Loss/total_loss"):
        Selection("no").after(1, {"mAP": 0.1, "Loss/total_loss": 2.0})


def test_best_checkpoint_and_early_stop(small_config: Path, tmp_path: Path) -> None:
    """The rate is 0: nothing gets better, and the run ends; the same command ends at once."""
    rate = "train_config.optimizer.momentum_optimizer.learning_rate.constant_learning_rate.learning_rate=0"
    frozen = "model.ssd.freeze_batchnorm=true"
    config = bw.load_config(small_config, [rate, frozen, "train_config.num_steps=100"])
    settings = bw.RunSettings(
        workers=0, checkpoint_every_n=4, evaluate_every_n=2, patience=2, best_metric="Loss/total_loss"
    )
    told: list[tuple[int, str]] = []
    messages: list[str] = []

    class Listener(Silent):
        def message(self, text: str) -> None:
            messages.append(text)

        def evaluated(self, step: int, event: Evaluated) -> None:
            told.append((step, event.best_metric))

    assert bw.train(config, tmp_path, settings, listeners=Listener()).step == 6
    assert told == [(2, "Loss/total_loss"), (4, ""), (6, "")]
    (line,) = [text for text in messages if text.startswith("best checkpoint: ")]
    assert f"{tmp_path / 'best.pt'}, Loss/total_loss " in line
    assert line.endswith(" at step 2")
    assert [path.name for path in CheckpointStore(tmp_path).paths()] == ["ckpt-4.pt", "ckpt-6.pt"]
    best = read_checkpoint(tmp_path / "best.pt")
    assert best["step"] == 2
    assert best["selection"]["metric"] == "Loss/total_loss"
    assert bw.train(config, tmp_path, settings).step == 6
    detector, _, step = bw.restore_detector(tmp_path / "best.pt")
    assert step == 2
    assert detector.categories is not None


@pytest.mark.slow
def test_a_longer_run_remembers_the_best(small_config: Path, tmp_path: Path) -> None:
    """The checkpoint that an evaluation was made of knows of it, so that a later, worse one is not the best."""
    settings = bw.RunSettings(workers=0, best_metric="Loss/total_loss")
    bw.train(bw.load_config(small_config, ["train_config.num_steps=2"]), tmp_path, settings)
    kept = read_checkpoint(tmp_path / "ckpt-2.pt")["selection"]
    assert (kept["evaluated"], kept["best_step"]) == (2, 2)
    rate = "train_config.optimizer.momentum_optimizer.learning_rate.constant_learning_rate.learning_rate=3"
    bw.train(bw.load_config(small_config, ["train_config.num_steps=4", rate]), tmp_path, settings)
    assert read_checkpoint(tmp_path / "best.pt")["step"] == 2
    text = (tmp_path / "metrics.jsonl").read_text()
    assert text.count('"evaluation"') == 2


@pytest.mark.parametrize(
    ("settings", "changes", "wanted"),
    [
        ({"patience": 3, "evaluate": False}, [], "evaluation is switched off"),
        ({"best_metric": "mAP"}, [], "'mAP' is not computed; computed: DetectionBoxes_Precision/mAP,"),
        ({}, ["eval_config.use_moving_averages=true"], "optimizer.use_moving_average is not"),
    ],
)
def test_mistakes_show_at_the_start(
    small_config: Path, tmp_path: Path, settings: dict[str, Any], changes: list[str], wanted: str
) -> None:
    with pytest.raises(bw.BoxwrightError, match=wanted):
        bw.train(bw.load_config(small_config, changes), tmp_path / "m", bw.RunSettings(workers=0, **settings))
    assert not (tmp_path / "m").exists()


def test_an_evaluation_that_was_prevented_is_made_up_for(small_config: Path, tmp_path: Path) -> None:
    """As after a kill between the last checkpoint and its evaluation."""
    config = bw.load_config(small_config)
    bw.train(config, tmp_path, bw.RunSettings(workers=0, evaluate=False))
    assert not (tmp_path / "best.pt").exists()
    assert bw.train(config, tmp_path, bw.RunSettings(workers=0)).step == 6
    assert read_checkpoint(tmp_path / "best.pt")["step"] == 6
    assert read_checkpoint(tmp_path / "ckpt-6.pt")["selection"]["evaluated"] == 6
