"""`requires_grad_` in loops of one's own, as anywhere in PyTorch; stages of the configuration; resuming."""

from __future__ import annotations

import logging
from pathlib import Path
from typing import Any

import pytest
import torch

import boxwright as bw

FIXED = "train_config.optimizer={momentum_optimizer {learning_rate {constant_learning_rate {learning_rate: 0.01}}}}"
STAGE = "train_config.freeze_stage={until_step: 2 variables: '^head'}"


def loop(config: Path, *overrides: str, detector: bw.Detector | None = None) -> tuple[bw.Learner, Any]:
    learner = bw.Learner(config, overrides=(FIXED, *overrides), detector=detector, device="cpu")
    batch = next(iter(learner.batches()))
    return learner, batch


def weights(learner: bw.Learner) -> dict[str, torch.Tensor]:
    return {name: value.detach().clone() for name, value in learner.detector.network.named_parameters()}


def moved_by(learner: bw.Learner, batch: Any) -> set[str]:
    """Take a step, and return the parts of the network whose weights moved."""
    before = weights(learner)
    learner.step(batch)
    after = weights(learner)
    return {name.split(".")[0] for name, value in before.items() if not torch.equal(value, after[name])}


def test_a_backbone_that_is_frozen_in_python_stays(small_config: Path) -> None:
    """Before the first step, and between any two; unfrozen again, it learns at once."""
    learner, batch = loop(small_config)
    backbone = learner.detector.network.get_submodule("backbone")
    parts = moved_by(learner, batch)
    assert "backbone" in parts
    backbone.requires_grad_(False)
    assert moved_by(learner, batch) == parts - {"backbone"}
    assert all(parameter.grad is None for parameter in backbone.parameters())
    assert moved_by(learner, batch) == parts - {"backbone"}, "momentum does not move it either"
    backbone.requires_grad_(True)
    assert moved_by(learner, batch) == parts


def test_one_weight_can_be_frozen_alone(small_config: Path) -> None:
    learner, batch = loop(small_config)
    name, first = next(iter(learner.detector.network.named_parameters()))
    first.requires_grad_(False)
    before = first.detach().clone()
    learner.step(batch)
    assert torch.equal(first, before), name


def test_a_detector_that_was_frozen_before_learns_when_it_is_unfrozen(small_config: Path) -> None:
    """Its weights are the optimizer's from the first step on, as those of torch.optim's would be."""
    config = bw.load_config(small_config)
    own = bw.build_detector(config)
    own.network.get_submodule("backbone").requires_grad_(False)
    learner, batch = loop(small_config, detector=own)
    assert "backbone" not in moved_by(learner, batch)
    own.network.get_submodule("backbone").requires_grad_(True)
    assert "backbone" in moved_by(learner, batch)


def test_what_the_configuration_froze_can_be_unfrozen(small_config: Path) -> None:
    """It is the first state, not the law of each step."""
    learner, batch = loop(small_config, "train_config.freeze_variables='^backbone'")
    assert "backbone" not in moved_by(learner, batch)
    learner.detector.network.get_submodule("backbone").requires_grad_(True)
    assert "backbone" in moved_by(learner, batch)
    assert "backbone" in moved_by(learner, batch)


def test_a_stage_changes_its_own_variables_alone(small_config: Path) -> None:
    learner, batch = loop(small_config, STAGE)
    learner.detector.network.get_submodule("backbone").requires_grad_(False)
    moved = [moved_by(learner, batch) for _ in range(3)]
    assert not moved[0] & {"head", "backbone"}
    assert not moved[1] & {"head", "backbone"}
    assert "head" in moved[2]
    assert "backbone" not in moved[2], "the stage's end is not about the backbone"


def test_all_frozen_is_an_error_that_says_so(small_config: Path) -> None:
    learner, batch = loop(small_config)
    learner.detector.requires_grad_(False)
    with pytest.raises(bw.TrainingError, match="step 1: nothing learns: requires_grad is False for all weights"):
        learner.step(batch)
    learner.detector.requires_grad_(True)
    learner.step(batch)


def test_resuming_applies_the_configuration_and_says_so(
    small_config: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    learner, batch = loop(small_config)
    learner.detector.network.get_submodule("backbone").requires_grad_(False)
    learner.step(batch)
    learner.save(tmp_path / "run")
    frozen = {n: v for n, v in weights(learner).items() if n.startswith("backbone")}
    settings: dict[str, Any] = {"device": "cpu", "workers": 0, "evaluate": False, "preflight": False}
    with caplog.at_level(logging.INFO, "boxwright.run"):
        bw.train(small_config, tmp_path / "run", overrides=(FIXED, "train_config.num_steps=2"), **settings)
    lines = [record.getMessage() for record in caplog.records if "requires_grad" in record.getMessage()]
    assert lines == [
        f"{len(frozen)} weights were frozen or unfrozen in Python (requires_grad); the resumed run freezes what "
        "train_config says"
    ]
    after = bw.load(tmp_path / "run").detector.network.state_dict()
    assert any(not torch.equal(value, after[name]) for name, value in frozen.items())


def test_a_run_that_froze_nothing_says_nothing(small_config: Path, tmp_path: Path) -> None:
    from boxwright.weights.store import find_checkpoint

    learner, batch = loop(small_config)
    learner.step(batch)
    learner.save(tmp_path / "run")
    assert "changed_freezing" not in find_checkpoint(tmp_path / "run")[1]


def test_a_detector_is_trained_twice_with_the_same_patterns(small_config: Path) -> None:
    """What the first run froze still has the names that the second run's patterns hit."""
    pattern = "train_config.freeze_variables='^backbone'"
    first, batch = loop(small_config, pattern)
    first.step(batch)
    second, batch = loop(small_config, pattern, detector=first.detector)
    assert "backbone" not in moved_by(second, batch)


def test_checkpoints_of_earlier_versions_resume(small_config: Path) -> None:
    """Their optimizers list only the weights that needed a gradient."""
    from boxwright.nn.optimization.optimizers import Momentum, Optimizer

    layers = torch.nn.ModuleList([torch.nn.Linear(2, 2), torch.nn.Linear(2, 2)])
    layers[0].requires_grad_(False)
    parameters = list(layers.parameters())
    earlier, now = Optimizer(parameters[2:], Momentum()), Optimizer(parameters, Momentum())
    layers[1](torch.ones(1, 2)).sum().backward()
    earlier.set_rate(0.1)
    earlier.step()
    now.load_state_dict(earlier.state_dict())
    assert torch.equal(now.state[parameters[2]]["momentum"], earlier.state[parameters[2]]["momentum"])
    assert parameters[0] not in now.state
    layers[1].requires_grad_(False)
    with pytest.raises(ValueError, match="groups of"):
        now.load_state_dict(earlier.state_dict())
