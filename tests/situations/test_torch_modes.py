"""Modes of PyTorch that a caller's program is in: they change nothing of ours, and we change nothing of theirs."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import boxwright as bw
from boxwright.weights.store import read_checkpoint


@contextmanager
def default_device() -> Iterator[None]:
    """As torch.set_default_device("cuda"), on any machine: tensors there have no values."""
    torch.set_default_device("meta")
    try:
        yield
    finally:
        torch.set_default_device(None)


MODES: dict[str, Callable[[], AbstractContextManager[object]]] = {
    "no_grad": torch.no_grad, "inference_mode": torch.inference_mode, "default device": default_device,
}  # fmt: skip


def trained(config: Path, folder: Path) -> dict[str, torch.Tensor]:
    """Return the weights after one step."""
    overrides = ["train_config.num_steps=1"]
    options = {"workers": 0, "device": "cpu", "evaluate": False, "preflight": False}
    bw.train(config, folder, overrides=overrides, listeners=[], **options)  # type: ignore[arg-type]
    network: dict[str, torch.Tensor] = read_checkpoint(folder / "ckpt-1.pt")["network"]
    return network


@pytest.mark.slow_except("inference_mode")
@pytest.mark.parametrize("mode", MODES)
def test_training_is_the_same_in_any_mode(small_config: Path, tmp_path: Path, mode: str) -> None:
    expected = trained(small_config, tmp_path / "plain")
    with MODES[mode]():
        found = trained(small_config, tmp_path / "mode")
        opened = bw.load(tmp_path / "mode", device="cpu")
    assert all(torch.equal(found[name], value) for name, value in expected.items())
    # Weights that were loaded there can be trained elsewhere.
    assert not any(parameter.is_inference() for parameter in opened.detector.parameters())


@pytest.mark.parametrize("mode", MODES)
def test_detecting_is_the_same_in_any_mode(mode: str) -> None:
    picture = bw.sample_images()[0]
    expected = bw.load("demo", device="cpu")(picture)
    with MODES[mode]():
        found = bw.load("demo", device="cpu")(picture)
    np.testing.assert_array_equal(found.boxes, expected.boxes)


def test_a_run_leaves_the_callers_random_numbers_alone(small_config: Path, tmp_path: Path) -> None:
    torch.manual_seed(3)
    expected = torch.rand(2)
    torch.manual_seed(3)
    trained(small_config, tmp_path / "m")
    bw.load(tmp_path / "m", device="cpu")
    assert torch.equal(torch.rand(2), expected)


@pytest.mark.parametrize("threshold", [{"conf": 50}, {"conf": -0.1}, {"min_score": 1.5}, {"conf": float("nan")}])
def test_a_threshold_in_percent_is_refused(threshold: dict[str, float]) -> None:
    """It returned nothing, without a word."""
    model = bw.load("demo", device="cpu")
    with pytest.raises(bw.ConfigError, match=f"{next(iter(threshold))}: expected a score from 0 to 1, found"):
        model(bw.sample_images()[0], **threshold)


@pytest.mark.parametrize(
    ("wrong", "wanted"),
    [
        ({"conf": "0.3"}, "conf: expected a score from 0 to 1, found '0.3'"),
        ({"batch_size": 2.5}, "batch_size: expected a whole number of at least 1, found 2.5"),
    ],
)
def test_values_of_other_types_are_refused(wrong: dict[str, Any], wanted: str) -> None:
    model = bw.load("demo", device="cpu")
    with pytest.raises(bw.ConfigError, match=wanted):
        model(bw.sample_images()[0], **wrong)
