"""A step that is not finite: dumped, named, done again; nothing of it reaches the weights."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from typer.testing import CliRunner

import boxwright as bw
from boxwright.training import loop
from boxwright.training.forensics import replay_step
from boxwright.training.loop import Loop
from boxwright.training.losses import LossModule
from boxwright.weights.store import CheckpointStore, read_checkpoint, write_checkpoint

MIDDLE = "backbone.body.layer3.0.conv2"


@pytest.fixture
def poisoned(monkeypatch: pytest.MonkeyPatch) -> Any:
    """Let one convolution in the middle give an infinity, whenever asked."""
    from boxwright.training import step as step_module

    switch = {"at": {2}}
    plain = step_module.Learner.step

    def step(self: Any, batch: Any, previous: Any = None, **options: Any) -> Any:
        module = self.state.detector.network.get_submodule(MIDDLE)
        assert isinstance(module, torch.nn.Conv2d)
        handle = None
        if self.state.step in switch["at"]:

            def spoil(_: Any, __: Any, output: torch.Tensor) -> torch.Tensor:
                return output * torch.inf

            handle = module.register_forward_hook(spoil)
        try:
            return plain(self, batch, previous, **options)
        finally:
            if handle:
                handle.remove()

    monkeypatch.setattr(step_module.Learner, "step", step)
    return switch


def learned(tensors: dict[str, torch.Tensor]) -> dict[str, torch.Tensor]:
    """Leave out counts of batches, which nothing reads."""
    return {name: value for name, value in tensors.items() if value.is_floating_point()}


@pytest.mark.slow
def test_run_stops_with_a_folder_and_the_weights_of_before(small_config: Path, tmp_path: Path, poisoned: Any) -> None:
    config = bw.load_config(small_config)
    with pytest.raises(bw.TrainingError, match="step 3: the loss is not finite: .*boxwright replay") as caught:
        bw.train(config, tmp_path / "m", bw.RunSettings(workers=0, preflight=False, evaluate=False))
    folder = tmp_path / "m" / "not-finite-3"
    assert str(folder) in str(caught.value)
    report = json.loads((folder / "report.json").read_text())
    assert report["step"] == 3
    assert report["losses"]["Loss/total_loss"] is None
    assert report["augmentation"] == ["random_horizontal_flip {\n}"]
    assert len(report["images"]) == 4
    assert set(report["images"][0]) == {"id", "epoch", "index", "process"}
    assert len(list((folder / "images").glob("*.png"))) == 4
    before = bw.load_config(small_config, ["train_config.num_steps=2"])
    bw.train(before, tmp_path / "two", bw.RunSettings(workers=0, preflight=False, evaluate=False))
    kept, wanted = (
        read_checkpoint(path)["network"] for path in (tmp_path / "m" / "ckpt-2.pt", tmp_path / "two" / "ckpt-2.pt")
    )
    assert all(torch.equal(kept[name], wanted[name]) for name in learned(wanted)), "statistics of normalization too"


@pytest.mark.slow
@pytest.mark.parametrize("change", ["train_config.use_float16=false", "train_config.use_float16=true"])
def test_a_step_can_be_left_out(small_config: Path, tmp_path: Path, poisoned: Any, change: str) -> None:
    config = bw.load_config(small_config, [change])
    settings = bw.RunSettings(workers=0, preflight=False, evaluate=False, skip_not_finite=True, log_every_n=1)
    assert bw.train(config, tmp_path / "m", settings).step == 6
    steps = [json.loads(line)["step"] for line in (tmp_path / "m" / "metrics.jsonl").read_text().splitlines()]
    assert steps == [1, 2, 4, 5, 6]
    network = read_checkpoint(tmp_path / "m" / "ckpt-6.pt")["network"]
    assert all(value.isfinite().all() for value in network.values())


def looked_at_late(run: Loop) -> bool:
    """What a GPU waits for, on the CPU."""
    return run.progress.skipped_in_a_row > 0


LATE = (
    "train_config.use_float16=false",
    "train_config.optimizer.use_moving_average=true",
    "train_config.freeze_stage={until_step: 3 variables: 'neck'}",
)


@pytest.mark.parametrize(
    ("at", "change"),
    [
        ({2, 3}, LATE[1]),
        *(
            pytest.param(at, change, marks=pytest.mark.slow)
            for at in ({0}, {2, 3}, {5})
            for change in LATE
            if (at, change) != ({2, 3}, LATE[1])
        ),
    ],
)
def test_a_step_that_is_looked_at_late_is_undone(
    small_config: Path, tmp_path: Path, poisoned: Any, monkeypatch: pytest.MonkeyPatch, change: str, at: set[int]
) -> None:
    poisoned["at"] = at
    config = bw.load_config(small_config, [change])
    settings = bw.RunSettings(workers=0, preflight=False, evaluate=False, skip_not_finite=True)
    bw.train(config, tmp_path / "at once", settings)
    monkeypatch.setattr(Loop, "_waits", looked_at_late)
    bw.train(config, tmp_path / "late", settings)
    once, late = (read_checkpoint(tmp_path / name / "ckpt-6.pt") for name in ("at once", "late"))
    for part in ("network", "average"):
        assert [name for name, value in learned(once[part]).items() if not torch.equal(value, late[part][name])] == []
    slots = once["optimizer"]["state"]
    assert slots
    for number, values in slots.items():
        assert all(torch.equal(value, late["optimizer"]["state"][number][name]) for name, value in values.items())
    assert once["optimizer"]["param_groups"] == late["optimizer"]["param_groups"]
    assert (once["step"], once["samples"]) == (late["step"], late["samples"]) == (6, 24)
    reports = sorted((tmp_path / "at once").glob("not-finite-*/report.json"))
    assert len(reports) == len(at)
    for path in reports:
        one, other = (
            json.loads((tmp_path / name / path.parent.name / path.name).read_text()) for name in ("at once", "late")
        )
        assert {**one, "replay": ""} == {**other, "replay": ""}


@pytest.mark.slow_cases("at0")
@pytest.mark.parametrize("at", [{2}, {5}])
def test_a_step_that_is_looked_at_late_stops_the_run_too(
    small_config: Path, tmp_path: Path, poisoned: Any, monkeypatch: pytest.MonkeyPatch, at: set[int]
) -> None:
    poisoned["at"] = at
    (step,) = at
    monkeypatch.setattr(Loop, "_waits", looked_at_late)
    with pytest.raises(bw.TrainingError, match=f"step {step + 1}: the loss is not finite: .*boxwright replay"):
        bw.train(
            bw.load_config(small_config), tmp_path / "m", bw.RunSettings(workers=0, preflight=False, evaluate=False)
        )
    poisoned["at"] = set()
    bw.train(
        bw.load_config(small_config, [f"train_config.num_steps={step}"]),
        tmp_path / "until",
        bw.RunSettings(workers=0, preflight=False, evaluate=False),
    )
    kept, wanted = (read_checkpoint(tmp_path / name / f"ckpt-{step}.pt") for name in ("m", "until"))
    assert all(torch.equal(kept["network"][name], value) for name, value in learned(wanted["network"]).items())
    assert kept["samples"] == wanted["samples"]


@pytest.mark.slow
def test_weights_that_are_not_finite_explain_whatever_they_bring_about(
    small_config: Path, tmp_path: Path, poisoned: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Loop, "_waits", looked_at_late)
    plain = LossModule.forward

    def strict(self: LossModule, *arguments: Any) -> Any:
        if not all(one.isfinite().all() for one in self.parameters()):
            raise RuntimeError("some operator cannot bear it")
        return plain(self, *arguments)

    monkeypatch.setattr(LossModule, "forward", strict)
    with pytest.raises(bw.TrainingError, match="step 3: the loss is not finite"):
        bw.train(
            bw.load_config(small_config), tmp_path / "m", bw.RunSettings(workers=0, preflight=False, evaluate=False)
        )


def test_leaving_out_has_an_end(
    small_config: Path, tmp_path: Path, poisoned: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert loop._MOST_SKIPPED_IN_A_ROW == 20
    monkeypatch.setattr(loop, "_MOST_SKIPPED_IN_A_ROW", 2)
    poisoned["at"] = set(range(100))
    config = bw.load_config(small_config, ["train_config.num_steps=100"])
    settings = bw.RunSettings(workers=0, preflight=False, evaluate=False, skip_not_finite=True)
    with pytest.raises(bw.TrainingError, match="2 steps in a row were left out"):
        bw.train(config, tmp_path / "m", settings)


def test_replay_of_a_checkpoint(small_config: Path, tmp_path: Path) -> None:
    config = bw.load_config(small_config, ["train_config.num_steps=1"])
    bw.train(config, tmp_path / "m", bw.RunSettings(workers=0, preflight=False, device="cpu"))
    (tmp_path / "m" / "ckpt-1.pt").rename(tmp_path / "m" / "step.pt")
    with pytest.raises(bw.CheckpointError, match="step.pt: a run's checkpoint, without the batches"):
        replay_step(tmp_path / "m")


def test_replay_names_the_first_module(small_config: Path, tmp_path: Path) -> None:
    """A weight made infinite in a checkpoint is found again by the command."""
    config = bw.load_config(small_config, ["train_config.num_steps=1"])
    bw.train(config, tmp_path / "m", bw.RunSettings(workers=0, preflight=False, evaluate=False))
    store = CheckpointStore(tmp_path / "m")
    found = store.latest()
    assert found is not None
    found[1]["network"][f"{MIDDLE}.weight"][0, 0, 1, 1] = torch.inf
    write_checkpoint(found[1], found[0])
    with pytest.raises(bw.TrainingError, match=f"first: weight {MIDDLE}.weight"):
        bw.train(
            bw.load_config(small_config), tmp_path / "m", bw.RunSettings(workers=0, preflight=False, evaluate=False)
        )
    folder = tmp_path / "m" / "not-finite-2"
    again = replay_step(folder)
    assert again["all"][:2] == [f"weight {MIDDLE}.weight", f"output of module {MIDDLE} (Conv2d)"]
    assert again == json.loads((folder / "report.json").read_text())["found"]
    from boxwright.cli.main import app

    printed = CliRunner().invoke(app, ["replay", str(folder)])
    assert printed.exit_code == 0, printed.output
    assert f"first: weight {MIDDLE}.weight" in printed.output
    assert "Loss/total_loss not finite" in printed.output


def test_replay_of_nothing_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(bw.CheckpointError, match="no such checkpoint"):
        replay_step(tmp_path)
