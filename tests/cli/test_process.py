"""What a command sets for its whole process, and signals that reach it."""

from __future__ import annotations

import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch

import boxwright as bw
from boxwright.cli import process
from boxwright.cli.process import prepare_inference, prepare_training

Kept = list[str]


@pytest.fixture(autouse=True)
def kept(monkeypatch: pytest.MonkeyPatch) -> Iterator[Kept]:
    """Return what is told when freed memory is to be kept; PyTorch's flags are put back."""
    matmul, cudnn = torch.backends.cuda.matmul, torch.backends.cudnn
    before = matmul.allow_tf32, cudnn.allow_tf32, cudnn.benchmark
    told: Kept = []
    monkeypatch.setattr(process, "keep_freed_memory", lambda: told.append("kept"))
    yield told
    matmul.allow_tf32, cudnn.allow_tf32, cudnn.benchmark = before


@pytest.mark.parametrize(
    ("changes", "tries"),
    [
        ((), True),
        (("model.ssd.image_resizer={ keep_aspect_ratio_resizer { min_dimension: 64 max_dimension: 128 } }",), False),
        (("train_config.multi_scale={ multiple_of: 32 }",), False),
    ],
)
def test_algorithms_are_tried_where_inputs_have_one_size(
    small_config: Path, changes: tuple[str, ...], tries: bool
) -> None:
    torch.backends.cudnn.benchmark = not tries
    prepare_training(bw.load_config(small_config, changes), bw.RunSettings())
    assert torch.backends.cudnn.benchmark is tries


@pytest.mark.parametrize(
    ("device", "has_gpu", "wanted"),
    [
        ("cpu", False, ["kept"]),
        ("auto", False, ["kept"]),
        ("cpu", True, ["kept"]),
        ("auto", True, []),
        ("cuda", True, []),
    ],
)
def test_a_training_keeps_freed_memory_on_a_cpu(
    device: str, has_gpu: bool, wanted: Kept, small_config: Path, kept: Kept, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: has_gpu)
    prepare_training(bw.load_config(small_config), bw.RunSettings(device=device))
    assert kept == wanted


@pytest.mark.parametrize("tf32", [False, True])
def test_gpus_round_as_the_settings_say(tf32: bool, small_config: Path, kept: Kept) -> None:
    matmul, cudnn = torch.backends.cuda.matmul, torch.backends.cudnn
    matmul.allow_tf32 = cudnn.allow_tf32 = not tf32
    prepare_training(bw.load_config(small_config), bw.RunSettings(tf32=tf32))
    assert (matmul.allow_tf32, cudnn.allow_tf32) == (tf32, True)
    matmul.allow_tf32 = cudnn.allow_tf32 = not tf32
    prepare_inference(tf32=tf32)
    assert (matmul.allow_tf32, cudnn.allow_tf32) == (tf32, True)
    assert kept[-1] == "kept"


SCRIPT = """
import sys, time
from boxwright.cli import main as command
from boxwright.cli.console import console

class Slow:
    def __del__(self):
        print("in a destructor", flush=True)
        for _ in range(12000):
            time.sleep(0.01)

def long_work(*_, **__):
    one = Slow()
    del one
    print("after it", flush=True)
    while True:
        time.sleep(0.01)

command.app = long_work
sys.argv = ["boxwright"]
command.main()
"""


@pytest.mark.parametrize(
    ("number", "status"),
    [(signal.SIGTERM, 143), (signal.SIGINT, 130), (signal.SIGHUP, 129), (signal.SIGUSR1, 128 + signal.SIGUSR1)],
)
def test_a_signal_that_comes_in_a_destructor_is_not_lost(number: signal.Signals, status: int) -> None:
    """Python drops an exception there, with a traceback on the terminal, and goes on."""
    with subprocess.Popen(
        [sys.executable, "-c", SCRIPT], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    ) as process:
        assert process.stdout is not None
        assert process.stderr is not None
        assert process.stdout.readline() == "in a destructor\n"
        process.send_signal(number)
        try:
            assert process.wait(300) == status
        finally:
            process.kill()
        assert "Traceback" not in process.stderr.read()
