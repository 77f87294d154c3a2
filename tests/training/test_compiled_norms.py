"""A run normalizes as it began: with the compiled kernel or with PyTorch's operators."""

from __future__ import annotations

import logging
from pathlib import Path

import pytest

import boxwright as bw
from boxwright.base.c_compiler import CompilerError
from boxwright.builders.training import build_training
from boxwright.distributed import Processes
from boxwright.models.cpu_acceleration import use_plain_norms, uses_compiled_norms
from boxwright.training import train
from boxwright.training.state import TrainingState, new_state


@pytest.fixture
def state(mobilenet_config: Path) -> TrainingState:
    config = bw.load_config(mobilenet_config)
    return new_state(bw.build_detector(config), build_training(config))


def test_a_resumed_run_keeps_its_norms(state: TrainingState) -> None:
    network = state.detector.network
    begun = {"step": 0, **state.content("")}
    assert begun["compiled_norms"] is True
    state.restore(begun)
    assert uses_compiled_norms(network)
    of_old = {key: value for key, value in begun.items() if key != "compiled_norms"}
    state.restore(of_old)
    assert not uses_compiled_norms(network)
    assert state.content("")["compiled_norms"] is False


def test_without_a_compiler_the_log_says_why(
    state: TrainingState, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(train, "kernels", lambda: CompilerError("no C compiler: cc is not found"))
    with caplog.at_level(logging.INFO, "boxwright.run"):
        train._check_kernels(state, Processes())
        use_plain_norms(state.detector.network)
        train._check_kernels(state, Processes())  # nothing more to say
    assert [one.getMessage() for one in caplog.records] == [
        "normalization takes longer, as its kernel cannot be compiled: no C compiler: cc is not found"
    ]
    assert state.content("")["compiled_norms"] is False
