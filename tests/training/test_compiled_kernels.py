"""A run computes as it began: with compiled kernels or with PyTorch's operators."""

from __future__ import annotations

import logging
from pathlib import Path

import pytest

import boxwright as bw
from boxwright.base.c_compiler import CompilerError
from boxwright.base.distributed import Processes
from boxwright.nn.cpu_acceleration import KERNELS, compiled_kernels
from boxwright.pipeline.training import build_training
from boxwright.training import train
from boxwright.training.state import TrainingState, new_state


@pytest.fixture
def state(mobilenet_config: Path) -> TrainingState:
    config = bw.load_config(mobilenet_config)
    return new_state(bw.build_detector(config), build_training(config))


def test_a_resumed_run_keeps_its_kernels(state: TrainingState) -> None:
    network = state.detector.network
    begun = {"step": 0, **state.content("")}
    assert begun["compiled_kernels"] == ("norm_act", "depthwise")
    state.restore(begun)
    assert compiled_kernels(network) == ("norm_act", "depthwise")
    state.restore({**begun, "compiled_kernels": ("norm_act",)})
    assert compiled_kernels(network) == ("norm_act",)
    of_old = {key: value for key, value in begun.items() if key != "compiled_kernels"}
    state.restore(of_old)
    assert state.content("")["compiled_kernels"] == ()


def test_without_a_compiler_the_log_says_why(
    state: TrainingState, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level(logging.INFO, "boxwright.run"):
        train._log_compiler(state, Processes())
        assert not caplog.records
        monkeypatch.setitem(KERNELS, "depthwise", lambda: CompilerError("no C compiler: cc is not found"))
        train._log_compiler(state, Processes())
    assert [one.getMessage() for one in caplog.records] == [
        "steps take longer, as their kernels cannot be compiled: no C compiler: cc is not found"
    ]
    assert state.content("")["compiled_kernels"] == (
        "norm_act",
    )  # resumed where there is a compiler, without the other
