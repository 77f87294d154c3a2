"""A `state_dict` that a person saved themselves loads by its names, whatever was put before them."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

import boxwright as bw
from tests.exporters.small_detectors import FAMILIES, build

State = dict[str, Tensor]


def prefixed(prefix: str) -> Callable[[State], Any]:
    return lambda state: {f"{prefix}{name}": value for name, value in state.items()}


WRITTEN: dict[str, Callable[[State], Any]] = {
    "w.pth": lambda state: state,
    "w.pt": prefixed("network."),
    "lightning.ckpt": lambda state: {"state_dict": prefixed("model.network.")(state), "epoch": 3},
    "parallel.bin": prefixed("module.network."),
    "best.pt": lambda state: {"model": state, "step": 7},
}


@pytest.fixture
def detectors() -> tuple[bw.Detector, bw.Detector]:
    """Two of other weights."""
    pair = (build(FAMILIES["ssd"]), build(FAMILIES["ssd"]))
    torch.manual_seed(1)
    for value in pair[0].network.parameters():
        torch.nn.init.normal_(value)
    return pair


@pytest.mark.parametrize("name", WRITTEN)
def test_what_torch_save_wrote_of_a_network_loads(
    name: str, tmp_path: Path, detectors: tuple[bw.Detector, bw.Detector]
) -> None:
    source, target = detectors
    torch.save(WRITTEN[name](source.network.state_dict()), tmp_path / name)
    report = bw.load_weights(target, tmp_path / name)
    wanted = dict(source.network.named_parameters())
    assert all(torch.equal(value, wanted[own]) for own, value in target.network.named_parameters())
    assert not report.kept


def test_the_detectors_own_loads(tmp_path: Path, detectors: tuple[bw.Detector, bw.Detector]) -> None:
    source, target = detectors
    torch.save(source.state_dict(), tmp_path / "detector.pth")
    bw.load_weights(target, tmp_path / "detector.pth")
    assert torch.equal(next(target.network.parameters()), next(source.network.parameters()))


def test_what_a_file_lacks_is_said_name_by_name(tmp_path: Path, detectors: tuple[bw.Detector, bw.Detector]) -> None:
    source, target = detectors
    state = source.network.state_dict()
    missing = [name for name, value in state.items() if value.ndim][-1]
    del state[missing]
    torch.save(state, tmp_path / "w.pt")
    with pytest.raises(bw.CheckpointError, match=missing.replace(".", r"\.")):
        bw.load_weights(target, tmp_path / "w.pt")


@pytest.mark.parametrize("content", [{"a": torch.zeros(2)}, {}, [1], {"state_dict": {"a": "b"}}])
def test_other_files_are_refused(content: Any, tmp_path: Path, detectors: tuple[bw.Detector, bw.Detector]) -> None:
    torch.save(content, tmp_path / "w.pt")
    with pytest.raises(bw.CheckpointError, match=r"w\.pt"):
        bw.load_weights(detectors[1], tmp_path / "w.pt")


def test_a_checkpoint_that_was_cut_off_is_still_a_checkpoint(tmp_path: Path) -> None:
    (tmp_path / "ckpt-5.pt").write_bytes(b"PK\x03\x04 cut")
    with pytest.raises(bw.CheckpointError, match=r"ckpt-5\.pt: not a readable checkpoint"):
        bw.load_weights(build(FAMILIES["ssd"]), tmp_path / "ckpt-5.pt")
