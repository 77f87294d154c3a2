"""Training with a detector of one's own, and with loops of one's own."""

from __future__ import annotations

import logging
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

import boxwright as bw
from boxwright.data.shapes import ShapesDataset
from boxwright.weights.store import find_checkpoint
from tests.api.models import SmallRun, demo_config

FAST: dict[str, Any] = {"device": "cpu", "workers": 0, "log_every_n": 1}
BATCH = 4
OVERRIDES = (f"train_config.batch_size={BATCH}",)


@pytest.fixture
def config(run: SmallRun, tmp_path: Path) -> Path:
    path = tmp_path / "pipeline.config"
    path.write_text(demo_config(run.config.parent, steps=3))
    return path


def new_detector(config: Path) -> bw.Detector:
    """Return what `train` itself would build at seed 0."""
    torch.manual_seed(0)
    return bw.build_detector(bw.load_config(config))


def weights(folder: Path) -> dict[str, Tensor]:
    network: dict[str, Tensor] = find_checkpoint(folder)[1]["network"]
    return network


def restored_weights(folder: Path) -> dict[str, Tensor]:
    restored: dict[str, Tensor] = bw.restore_detector(folder)[0].network.state_dict()
    return restored


def same(ours: dict[str, Tensor], theirs: dict[str, Tensor]) -> bool:
    return ours.keys() == theirs.keys() and all(torch.equal(ours[name], theirs[name]) for name in ours)


def test_a_detector_of_ones_own_is_trained_in_place_as_one_of_the_configuration(
    config: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    bw.train(config, tmp_path / "expected", overrides=OVERRIDES, **FAST)
    own = new_detector(config)
    with caplog.at_level(logging.INFO, "boxwright.run"):
        trained = bw.train(config, tmp_path / "own", overrides=OVERRIDES, detector=own, **FAST)
    assert same(own.network.state_dict(), restored_weights(tmp_path / "expected"))
    assert "model.ssd is replaced by the detector that was passed to train" in caplog.text
    saved = bw.load_config(tmp_path / "own" / "pipeline.config")
    assert saved.model is not None
    assert saved.model.which("model") == "experimental_model"
    assert saved.model.experimental_model is not None
    assert saved.model.experimental_model.name == type(own.network).__name__
    assert own.categories is not None
    expected = bw.Run(tmp_path / "expected").metrics
    assert trained.metrics == expected
    # The weights are read back into a detector of the same code.
    fresh = new_detector(config)
    bw.load_weights(fresh, tmp_path / "own")
    assert bw.evaluate(fresh, config=config) == pytest.approx(expected, abs=1e-6)


@pytest.mark.slow
def test_such_a_run_resumes_with_the_same_detector(config: Path, tmp_path: Path) -> None:
    options = {**FAST, "overrides": [*OVERRIDES, "train_config.num_steps=2"]}
    bw.train(config, tmp_path / "own", detector=new_detector(config), **options)
    own = new_detector(config)
    bw.train(config, tmp_path / "own", overrides=OVERRIDES, detector=own, **FAST)
    bw.train(config, tmp_path / "whole", overrides=OVERRIDES, **FAST)
    assert same(own.network.state_dict(), restored_weights(tmp_path / "whole"))
    with pytest.raises(bw.ConfigError, match=r"model\.experimental_model: the detector is given in Python"):
        bw.load(tmp_path / "own", device="cpu")
    with pytest.raises(bw.ConfigError, match=r"model\.experimental_model: the detector is given in Python"):
        bw.train(tmp_path / "own" / "pipeline.config", tmp_path / "other", **FAST)


def renamed() -> bw.Categories:
    return bw.Categories(tuple(bw.Category(label, label + 1, f"thing {label}") for label in range(4)))


def test_detectors_that_cannot_be_trained(config: Path, tmp_path: Path) -> None:
    def train(detector: Any) -> None:
        bw.train(config, tmp_path / "own", detector=detector, **FAST)

    with pytest.raises(bw.ConfigError, match=r"detector: expected a boxwright\.Detector, found Linear"):
        train(torch.nn.Linear(2, 2))
    with pytest.raises(bw.ConfigError, match="optimized for inference"):
        train(new_detector(config).optimize())
    few = bw.build_detector(bw.load_config(config, overrides=["model.ssd.num_classes=2"]))
    with pytest.raises(bw.ConfigError, match="it has 2 classes, but the data need"):
        train(few)
    other = new_detector(config)
    other.categories = renamed()
    with pytest.raises(bw.ConfigError, match="but 'thing 0' in the detector"):
        train(other)
    assert not list((tmp_path).glob("own/ckpt-*"))


def test_what_evaluate_asks_of_a_detector(config: Path) -> None:
    detector = new_detector(config)
    with pytest.raises(bw.ConfigError, match="pass config="):
        bw.evaluate(detector)
    with pytest.raises(bw.ConfigError, match="expected a path, a Model or a Detector, found Linear"):
        bw.evaluate(torch.nn.Linear(2, 2), config=config)  # type: ignore[arg-type]


def test_steps_of_ones_own_loop_are_those_of_train(config: Path, tmp_path: Path) -> None:
    heard: list[float] = []

    def listen(step: int, numbers: Any) -> None:
        heard.extend([numbers["Loss/total_loss"]] if "learning_rate" in numbers else [])

    bw.train(config, tmp_path / "expected", overrides=OVERRIDES, listeners=listen, **FAST)
    learner = bw.Learner(config, overrides=OVERRIDES, device="cpu")
    batches, reports = learner.batches(), []
    for _ in range(3):
        reports.append(learner.step(next(batches)))
        # Detecting between steps changes nothing.
        learner.detector.detect([np.zeros((96, 96, 3), np.uint8)])
    assert [report.losses["Loss/total_loss"] for report in reports] == pytest.approx(heard, rel=1e-5)
    assert same(learner.detector.network.state_dict(), weights(tmp_path / "expected"))
    assert learner.step_number == 3
    assert repr(learner).endswith("step 3>")


def test_an_epoch_goes_through_the_data_once(config: Path) -> None:
    learner = bw.Learner(config, overrides=["train_config.batch_size=3"], device="cpu")
    # 8 images, 3 a batch: the third batch begins the next epoch, and the next call goes on behind it.
    seen: list[tuple[int, int]] = []
    for _ in range(2):
        batches = list(learner.epoch())
        assert len(batches) == 3
        seen += [key for batch in batches for key in batch.keys]
        for batch in batches:
            learner.step(batch)
    assert learner.step_number == 6
    assert len(set(seen)) == 18
    assert sorted(index for epoch, index in seen if epoch == 0) == list(range(8))


def test_a_saved_checkpoint_is_opened_and_resumed(config: Path, tmp_path: Path) -> None:
    learner = bw.Learner(config, overrides=OVERRIDES, device="cpu")
    batches = learner.batches()
    for _ in range(2):
        learner.step(next(batches))
    path = learner.save(tmp_path / "model")
    assert path == tmp_path / "model" / "ckpt-2.pt"
    assert same(weights(tmp_path / "model"), learner.detector.network.state_dict())
    bw.train(config, tmp_path / "model", overrides=OVERRIDES, **FAST)
    bw.train(config, tmp_path / "whole", overrides=OVERRIDES, **FAST)
    assert same(weights(tmp_path / "model"), weights(tmp_path / "whole"))


class Broken:
    """Sample 3 cannot be read."""

    categories = ShapesDataset(4, seed=5, size=(96, 96)).categories

    def __len__(self) -> int:
        return 4

    def __getitem__(self, index: int) -> bw.Sample:
        if index == 3:
            raise ValueError("no such file")
        return ShapesDataset(4, seed=5, size=(96, 96))[index]


def test_data_and_detector_of_ones_own_in_a_loop_of_ones_own(config: Path) -> None:
    learner = bw.Learner(
        config, dataset=Broken(), detector=new_detector(config), overrides=["train_config.batch_size=1"], device="cpu"
    )
    steps = 0
    with pytest.raises((bw.BoxwrightError, ValueError), match="no such file"):
        for batch in learner.epoch():
            learner.step(batch)
            steps += 1
    assert steps < 4
    assert learner.step_number == steps


def test_a_configuration_without_training_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "model.config"
    path.write_text('preset: "ssd_mobilenet_v2_fpnlite_320"\nnum_classes: 2\n')
    with pytest.raises(bw.ConfigError, match="train_input_reader"):
        bw.Learner(path, device="cpu")
