"""What statistics hold of their initial values through a run: parts, undone steps, resuming, evaluation, old runs."""

from __future__ import annotations

import json
import warnings
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

import boxwright as bw
from boxwright.training.step import NotFiniteError
from boxwright.weights.initial_shares import AVERAGE_SHARES, SHARES, stored_shares
from boxwright.weights.store import read_checkpoint, read_config, write_checkpoint
from tests.training.test_step import learner

QUIET = bw.RunSettings(workers=0, evaluate=False, preflight=False)
# Of the small configuration's layers: timm's backbone has PyTorch's decay, 0.9, as have the head's.
DECAY = 0.9
AVERAGE = [
    "train_config.optimizer.use_moving_average=true",
    "train_config.optimizer.average_statistics=true",
    "eval_config.use_moving_averages=true",
]


def shares(one: Any) -> set[float]:
    return {round(share, 9) for share in one.state.detector.network.initial_shares.by_layer().values()}


def trained(config: Path, folder: Path, *overrides: str, settings: bw.RunSettings = QUIET) -> dict[str, Any]:
    bw.train(bw.load_config(config, list(overrides)), folder, settings)
    newest = max(folder.glob("ckpt-*.pt"), key=lambda path: int(path.stem.partition("-")[2]))
    return read_checkpoint(newest)


def test_parts_of_a_step_count(small_config: Path) -> None:
    whole, batch = learner(small_config)
    split, _ = learner(small_config, "train_config.gradient_accumulation_steps=4")
    whole.step(batch)
    split.step(batch)
    assert shares(whole) == {round(DECAY, 9)}
    assert shares(split) == {round(DECAY**4, 9)}


def test_parts_that_memory_forces_count_and_its_failed_attempts_do_not(
    small_config: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    one, batch = learner(small_config)
    forward = one.losses.forward

    def out_of_memory(images: Any, *others: Any) -> Any:
        result = forward(images, *others)
        if len(images) > 2:
            raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2.00 GiB")
        return result

    monkeypatch.setattr(one.losses, "forward", out_of_memory)
    one.step(batch)
    assert shares(one) == {round(DECAY**2, 9)}


@pytest.mark.parametrize("wait", [True, False])
def test_a_step_that_is_undone_does_not_count(small_config: Path, wait: bool) -> None:
    one, batch = learner(small_config)
    first = one.step(batch)
    before = one.state.detector.network.initial_shares
    broken = batch.images.clone()
    images = batch.images.float()
    images[0, 0, 0, 0] = torch.nan
    object.__setattr__(batch, "images", images)
    with pytest.raises(NotFiniteError):
        one.step(batch, one.step(batch, first, wait=wait), wait=wait)
    assert one.state.detector.network.initial_shares == before
    object.__setattr__(batch, "images", broken)
    one.step(batch)
    assert shares(one) == {round(DECAY**2, 9)}


@pytest.mark.parametrize("average", [pytest.param([], marks=pytest.mark.slow), AVERAGE])
def test_a_resumed_run_has_the_shares_of_one_that_was_not(
    small_config: Path, tmp_path: Path, average: list[str]
) -> None:
    whole = trained(small_config, tmp_path / "whole", *average, "train_config.num_steps=3")
    trained(small_config, tmp_path / "parts", *average, "train_config.num_steps=2")
    parts = trained(small_config, tmp_path / "parts", *average, "train_config.num_steps=3")
    for name in (SHARES, AVERAGE_SHARES):
        assert len(whole[name]) > 5
        assert whole[name] == parts[name]
    assert [*{*whole[SHARES].values()}] == pytest.approx([DECAY**3])


@pytest.mark.parametrize("average", [pytest.param([], marks=pytest.mark.slow), AVERAGE])
def test_a_run_evaluates_what_is_restored_and_learns_from_what_was(
    small_config: Path, tmp_path: Path, average: list[str]
) -> None:
    """Of statistics without their start loss and metrics differ; weights, and statistics in training, do not."""
    losses, networks = {}, {}
    for name, value in (("without", "true"), ("with", "false")):
        overrides = [*average, "train_config.num_steps=3", f"train_config.debias_batch_norm={value}"]
        content = trained(
            small_config, tmp_path / name, *overrides, settings=bw.RunSettings(workers=0, preflight=False)
        )
        lines = [json.loads(line) for line in (tmp_path / name / "metrics.jsonl").read_text().splitlines()]
        losses[name] = next(line["Loss/total_loss"] for line in lines if "evaluation" in line)
        config = bw.load_config(tmp_path / name / "pipeline.config")
        assert bw.evaluate(config, tmp_path / name)["Loss/total_loss"] == pytest.approx(losses[name], rel=1e-6)
        networks[name] = content["network"]
    assert losses["with"] != pytest.approx(losses["without"], rel=1e-3)
    assert all(torch.equal(value, networks["with"][name]) for name, value in networks["without"].items())


def variances(network: Any) -> dict[str, Tensor]:
    state: dict[str, Tensor] = network.state_dict()
    return {name: value for name, value in state.items() if name.endswith("running_var")}


def expected(content: dict[str, Any], name: str, share: float) -> Tensor:
    return (content["network"][name].double() - share).clamp(min=0).div(1 - share).float()


def test_what_is_restored_exported_and_started_from_is_without_the_start(small_config: Path, tmp_path: Path) -> None:
    config = bw.load_config(small_config, ["train_config.num_steps=2"])
    content = trained(small_config, tmp_path / "run", "train_config.num_steps=2")
    torch.manual_seed(0)  # as the run's own is drawn
    detector = bw.build_detector(config)
    bw.train(config, tmp_path / "given", QUIET, detector=detector)
    restored = bw.restore_detector(tmp_path / "run")[0]
    started = bw.build_detector(config)
    bw.load_weights(started, tmp_path / "run")
    for network in (restored.network, started.network, detector.network):
        found = variances(network)
        assert len(found) > 5
        for name, value in found.items():
            torch.testing.assert_close(value, expected(content, name, DECAY**2), rtol=1e-6, atol=0)
    again = trained(small_config, tmp_path / "again", f"train_config.fine_tune_checkpoint='{tmp_path / 'run'}'",
                    "train_config.fine_tune_checkpoint_type=full", "train_config.num_steps=1")  # fmt: skip
    assert again[SHARES] == {}, "statistics that came with weights follow as they are"


def as_earlier(path: Path, **changes: Any) -> dict[str, Any]:
    """Return a checkpoint as versions before wrote it, without shares; also at its place."""
    content = {**read_checkpoint(path), **changes}
    del content[SHARES], content[AVERAGE_SHARES]
    write_checkpoint(content, path)
    return content


@pytest.mark.parametrize("average", [pytest.param([], marks=pytest.mark.slow), AVERAGE])
def test_shares_of_an_earlier_version_follow_from_its_step(
    small_config: Path, tmp_path: Path, average: list[str]
) -> None:
    more = [*average, "train_config.gradient_accumulation_steps=2", "train_config.num_steps=3"]
    stored = trained(small_config, tmp_path / "run", *more)
    path = tmp_path / "run" / "ckpt-3.pt"
    content = as_earlier(path)
    found = stored_shares(content, read_config(content, path), path)
    assert len(found[SHARES]) > 5
    assert found[SHARES] == pytest.approx(stored[SHARES])
    if average:
        assert found[AVERAGE_SHARES] == pytest.approx(stored[AVERAGE_SHARES])
    bw.train(bw.load_config(small_config, [*more[:-1], "train_config.num_steps=4"]), tmp_path / "run", QUIET)
    resumed = read_checkpoint(tmp_path / "run" / "ckpt-4.pt")
    assert [*{*resumed[SHARES].values()}] == pytest.approx([DECAY**8])


def test_where_shares_do_not_follow_statistics_stay_and_a_warning_says_so(small_config: Path, tmp_path: Path) -> None:
    trained(small_config, tmp_path / "run", "train_config.num_steps=2")
    path = tmp_path / "run" / "ckpt-2.pt"
    content = as_earlier(path, parts=2)
    with pytest.warns(UserWarning, match="are used as they are: memory was short"):
        restored = bw.restore_detector(path)[0]
    for name, value in variances(restored.network).items():
        assert torch.equal(value, content["network"][name])
    name = next(name for name in content["network"] if name.endswith("running_var"))
    content["network"][name].fill_(0.5)
    write_checkpoint({**content, "parts": 1}, path)
    with pytest.warns(UserWarning, match=f"those of {name.removesuffix('.running_var')} did not begin with"):
        bw.restore_detector(path)


def test_earlier_runs_from_weights(small_config: Path, tmp_path: Path) -> None:
    """All statistics came with weights; or, of a classifier, only the backbone's."""
    trained(small_config, tmp_path / "first", "train_config.num_steps=1")
    for kind, fresh in (("full", set()), ("classification", {"neck", "head"})):
        folder = tmp_path / kind
        trained(small_config, folder, f"train_config.fine_tune_checkpoint='{tmp_path / 'first'}'",
                f"train_config.fine_tune_checkpoint_type={kind}", "train_config.num_steps=1")  # fmt: skip
        path = folder / "ckpt-1.pt"
        stored = read_checkpoint(path)[SHARES]
        content = as_earlier(path)
        found = stored_shares(content, read_config(content, path), path)[SHARES]
        assert found == pytest.approx(stored)
        assert {name.partition(".")[0] for name in found} == fresh


@pytest.mark.parametrize("wrong", [[], {"backbone": 2.0}, {"backbone": "a"}])
def test_shares_that_are_none_are_refused(small_config: Path, tmp_path: Path, wrong: Any) -> None:
    trained(small_config, tmp_path / "run", "train_config.num_steps=1")
    path = tmp_path / "run" / "ckpt-1.pt"
    write_checkpoint({**read_checkpoint(path), SHARES: wrong}, path)
    with pytest.raises(bw.CheckpointError, match="its 'initial_shares' are not numbers from 0 to 1"):
        bw.restore_detector(path)


def test_nothing_is_said_of_runs_of_this_version(small_config: Path, tmp_path: Path) -> None:
    trained(small_config, tmp_path / "run", "train_config.num_steps=1")
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        bw.restore_detector(tmp_path / "run")


def test_weights_that_are_loaded_into_a_network_in_training_hold_nothing(small_config: Path, tmp_path: Path) -> None:
    trained(small_config, tmp_path / "run", "train_config.num_steps=1")
    one, batch = learner(small_config)
    one.step(batch)
    network = one.state.detector.network
    of_backbone = {layer for layer in network.initial_shares.by_layer() if layer.startswith("backbone.")}
    assert of_backbone
    bw.load_weights(one.state.detector, tmp_path / "run", "classification")
    left = set(network.initial_shares.by_layer())
    assert left
    assert not left & of_backbone


def test_a_detector_in_a_loop_of_ones_own_detects_without_the_start(small_config: Path, tmp_path: Path) -> None:
    """Between two steps, whatever its mode, and its statistics in training are as before."""
    own = bw.Learner(small_config, device="cpu")
    batches = own.batches()
    own.step(next(batches))
    network = own.detector.network
    raw = {name: value.clone() for name, value in network.state_dict().items()}
    restored = bw.restore_detector(own.save(tmp_path / "run"))[0]
    image = torch.randint(0, 256, (64, 80, 3), dtype=torch.uint8).numpy()
    expected_scores = restored.detect([image])[0].scores
    assert len(expected_scores)
    for mode in (True, False):
        own.detector.train(mode)
        torch.testing.assert_close(own.detector.detect([image])[0].scores, expected_scores)
        assert own.detector.training is mode
        assert all(torch.equal(value, raw[name]) for name, value in network.state_dict().items())


@pytest.mark.parametrize(("first", "then"), [("true", "false"), ("false", "true")])
def test_a_resumed_run_uses_what_its_configuration_says_now(
    small_config: Path, tmp_path: Path, first: str, then: str
) -> None:
    """Shares are counted whatever is used, so that evaluations of both runs are those of what is restored."""
    settings = bw.RunSettings(workers=0, preflight=False)
    for steps, value in ((2, first), (3, then)):
        overrides = [f"train_config.num_steps={steps}", f"train_config.debias_batch_norm={value}"]
        content = trained(small_config, tmp_path / "run", *overrides, settings=settings)
    assert [*{*content[SHARES].values()}] == pytest.approx([DECAY**3])
    lines = [json.loads(line) for line in (tmp_path / "run" / "metrics.jsonl").read_text().splitlines()]
    evaluated = [line["Loss/total_loss"] for line in lines if "evaluation" in line][-1]
    config = bw.load_config(tmp_path / "run" / "pipeline.config")
    assert bw.evaluate(config, tmp_path / "run")["Loss/total_loss"] == pytest.approx(evaluated, rel=1e-6)
