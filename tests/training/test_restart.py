"""Restarts from the best state: when, from what, with which average; and that a resumed run has the same bits."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

import boxwright as bw
from boxwright.base.errors import CheckpointError
from boxwright.nn.optimization.moving_average import MovingAverage
from boxwright.training.restart import is_restart_due, read_restart
from boxwright.training.state import Selection, TrainingState
from boxwright.weights.store import CheckpointStore, read_checkpoint
from tests.exporters.small_detectors import with_few_layers
from tests.training.checkpoints import same

RESTARTING = [
    "train_config.restart_from_best_step=3",
    "train_config.optimizer.use_moving_average=true",
    "train_config.optimizer.moving_average_ramp_steps=2",
]
SETTINGS = bw.RunSettings(
    workers=0, preflight=False, checkpoint_every_n=1, evaluate_every_n=2, max_to_keep=99, best_metric="Loss/total_loss"
)


@pytest.fixture
def small_config(small_config: Path) -> Path:
    """Of few layers: nothing here is of the network."""
    small_config.write_text(with_few_layers(small_config.read_text()))
    return small_config


def state(step: int, selection: Selection, restarted_at: int = -1) -> TrainingState:
    nothing: Any = None
    return TrainingState(nothing, nothing, None, nothing, 0, step=step, selection=selection, restarted_at=restarted_at)


def test_when_it_is_due() -> None:
    """At its step, and where an evaluation of this very step was not the best; once a step."""
    best_at_4 = Selection("mAP", best=0.5, best_step=4, evaluated=4)
    later = replace(best_at_4, evaluated=6)
    assert [is_restart_due(state(step, best_at_4), 5) for step in (4, 5, 6)] == [False, True, False]
    assert is_restart_due(state(6, later), 5)
    assert not is_restart_due(state(7, later), 5), "evaluated before this step"
    assert not is_restart_due(state(6, replace(later, best_step=6)), 5), "it gained"
    assert not is_restart_due(state(6, later, restarted_at=6), 5)
    assert not is_restart_due(state(6, later), 0)


def test_the_window_of_the_average_is_divided() -> None:
    """The authors' 0.9999 becomes 0.9998, then 0.9997."""
    average = MovingAverage(torch.nn.Linear(1, 1), 0.9999, ramp_steps=1)
    decays = []
    for restarts in (1, 2, 3):
        average.shorten(restarts)
        decays.append(average.decay_after(100))
    assert decays == pytest.approx([0.9999, 0.9998, 0.9997])


@pytest.mark.slow
def test_a_run_goes_back_and_a_resumed_one_does_the_same(
    small_config: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Evaluated at steps 2 and 4, of which the second does not gain: it restarts at its step, 3, and at 4."""
    caplog.set_level("INFO")
    monkeypatch.setattr(Selection, "_is_better", lambda self, *_: self.best is None)
    config = bw.load_config(small_config, [*RESTARTING, "train_config.num_steps=5"])
    bw.train(config, tmp_path / "whole", SETTINGS)
    said = [text for text in caplog.messages if "goes on from the best state" in text]
    assert said == [f"step {step}: training goes on from the best state, of step 2" for step in (3, 4)]
    assert read_checkpoint(tmp_path / "whole" / "restart.pt")["step"] == 2
    part = bw.load_config(small_config, [*RESTARTING, "train_config.num_steps=4"])
    bw.train(part, tmp_path / "parts", SETTINGS)
    bw.train(config, tmp_path / "parts", SETTINGS)
    whole, parts = (read_checkpoint(tmp_path / name / "ckpt-5.pt") for name in ("whole", "parts"))
    for name in ("network", "optimizer", "average", "restarts"):
        assert same(whole[name], parts[name]), name
    assert whole["restarts"] == [2, 4]


def test_what_is_taken_over(small_config: Path, tmp_path: Path) -> None:
    """Weights, optimizer and average are those of the best; steps and data go on."""
    from boxwright.pipeline.training import build_training
    from boxwright.training.state import new_state

    config = bw.load_config(small_config, [*RESTARTING, "train_config.num_steps=2"])
    bw.train(config, tmp_path, SETTINGS)
    store = CheckpointStore(tmp_path)
    fresh = new_state(bw.build_detector(config), build_training(config), Selection("Loss/total_loss", best=1.0))
    fresh.step, fresh.samples = 9, 18
    content = read_restart(fresh, store)
    assert content is not None
    fresh.restart(content)
    assert (fresh.step, fresh.samples, fresh.restarts, fresh.restarted_at) == (9, 18, 1, 9)
    kept = fresh.content("")
    for name in ("network", "optimizer", "average"):
        assert same(kept[name], content[name]), name
    for wrong in (None, [1], ["1", 2], [10**9, 3]):
        with pytest.raises(CheckpointError, match="restarts are not as they were written"):
            fresh.restore({**content, "restarts": wrong})
    store.best.write_bytes(b"damaged")
    assert read_restart(fresh, store) is not None, "the first is kept"
    with pytest.raises(CheckpointError, match="best.pt: not a readable checkpoint"):
        read_restart(replace(fresh, restarts=0), store)
    store.best.unlink()
    assert read_restart(replace(fresh, restarts=0), store) is None
