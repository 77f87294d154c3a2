"""What surrounds a step on a GPU: batches that arrive, states that are saved and restored, updates of every rule."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any
from unittest import mock

import pytest
import torch
from torch.utils._pytree import tree_leaves, tree_map

import boxwright as bw
from boxwright.base.distributed import Processes
from boxwright.nn.optimization.optimizers import Adam, AdamW, Momentum, MomentumTF1, Optimizer, RMSProp, RMSPropTF1
from boxwright.training.examples import on_device
from boxwright.training.step import check_step
from boxwright.training.train import _device
from tests.cuda.dtypes import KNOWN_BETTER, unsupported
from tests.cuda.fake import CUDA, fake_cuda
from tests.cuda.families import fake_run, learner_of

RULES = [Momentum(), MomentumTF1(), RMSProp(), RMSPropTF1(), Adam(), AdamW()]


@pytest.mark.parametrize("rule", RULES, ids=lambda rule: type(rule).__name__)
@pytest.mark.parametrize("flagged", [False, True])
def test_an_update_is_a_few_kernels_and_no_wait(rule: Any, flagged: bool) -> None:
    shapes = [(8, 3, 3, 3), (8,), (16, 8, 1, 1), (16,), (4, 16)]
    with fake_cuda() as recorder:
        weights = [torch.nn.Parameter(torch.rand(shape, device=CUDA)) for shape in shapes]
        weights[0].data = weights[0].data.contiguous(memory_format=torch.channels_last)
        optimizer = Optimizer(weights, rule)
        finite = torch.ones((), dtype=torch.bool, device=CUDA) if flagged else None
        optimizer.param_groups[0]["lr"] = 0.1
        for step in range(2):
            for weight in weights:
                weight.grad = torch.ones_like(weight)
            if step:
                recorder.clear()
            optimizer.step(finite=finite)
        others = {name: count for name, count in recorder.kernels.items() if not name.startswith("_foreach")}
        assert others == ({"cat": 2, "where": 1} if flagged else {})
        assert not recorder.waits
        assert not recorder.mixed_lists
    wrong, unknown = unsupported(recorder.dtypes)
    assert wrong <= KNOWN_BETTER.keys()
    assert not unknown


@pytest.mark.slow
def test_a_state_is_saved_from_a_gpu_and_restored_to_one() -> None:
    """A checkpoint is on the CPU; what comes from it is on the GPU again, slots and averages too."""
    with fake_run("ssd") as run:
        check_step(run.previous, run.learner.state)
        # `copied` compares addresses, which fake memory has not.
        content = tree_map(
            lambda one: one.cpu() if isinstance(one, torch.Tensor) else one, run.learner.state.content("")
        )
        saved = [one for one in tree_leaves(content) if isinstance(one, torch.Tensor)]
        assert len(saved) > 200
        assert {one.device.type for one in saved} == {"cpu"}
        run.learner.state.restore({**content, "step": 1})
        state = run.learner.state
        assert state.average is not None
        slots = [value for some in state.optimizer.state.values() for value in some.values()]
        assert {one.device.type for one in (*slots, *state.average.shadow.values())} == {"cuda"}
        run.recorder.clear()
        run.step()
        assert {name for _, name in run.recorder.waits} <= {"Event.synchronize"}


def test_batches_arrive_one_ahead_on_a_stream_of_their_own() -> None:
    """All of a batch is copied on that stream; the one that computes waits for it, and remembers that it uses it."""
    _, batch, _ = learner_of("ssd")
    count = 2 + len(batch.targets.tensors())
    events: list[str] = []
    with (
        fake_cuda(),
        mock.patch("torch.cuda.Stream", return_value="copying"),
        mock.patch("torch.cuda.stream") as entered,
        mock.patch("torch.cuda.current_stream") as current,
        mock.patch.object(torch.Tensor, "record_stream", create=True) as recorded,
    ):
        current.return_value.wait_stream.side_effect = lambda _: events.append("waits")
        arrived = []
        for one in on_device(iter([batch] * 3), CUDA):
            events.append("computes")
            arrived.append(one)
        assert [one.args for one in entered.call_args_list] == [("copying",)] * 3
        assert [one.args for one in current.return_value.wait_stream.call_args_list] == [("copying",)] * 3
        assert recorded.call_count == 3 * count
    assert events == ["waits", "computes", "waits", "computes", "waits", "computes"]
    assert len(arrived) == 3
    for one in arrived:
        assert {value.device for value in (one.images, one.true_sizes, *one.targets.tensors())} == {CUDA}


def test_each_process_has_a_gpu_of_its_own() -> None:
    settings = bw.RunSettings(device="cuda:1")
    with pytest.raises(
        bw.TrainingError,
        match="--device cuda:1: one GPU is for one process; of 2, cuda gives each that of its local rank",
    ):
        _device(settings, Processes(0, 2, 0)).__enter__()
    opened = []
    with (
        mock.patch("boxwright.training.train.usable_device", side_effect=lambda name: opened.append(name) or CUDA),
        mock.patch("torch.cuda.device") as current,
    ):
        for name, processes in (("cuda", Processes(3, 4, 1)), ("cuda", Processes()), ("cuda:1", Processes())):
            with _device(bw.RunSettings(device=name), processes) as device:
                assert device == CUDA
                current.assert_called_with(CUDA)
    assert opened == ["cuda:1", "cuda", "cuda:1"]


@pytest.fixture
def default_rounding() -> Iterator[None]:
    """PyTorch's default flags; a command that another test called may have set the process's."""
    before = torch.backends.cuda.matmul.allow_tf32, torch.backends.cudnn.allow_tf32
    torch.backends.cuda.matmul.allow_tf32, torch.backends.cudnn.allow_tf32 = False, True
    yield
    torch.backends.cuda.matmul.allow_tf32, torch.backends.cudnn.allow_tf32 = before


@pytest.mark.usefixtures("default_rounding")
@pytest.mark.parametrize("asked", [False, True])
def test_a_run_on_a_gpu_rounds_as_it_is_asked_and_leaves_the_process_as_it_was(asked: bool) -> None:
    settings = bw.RunSettings(device="cuda", tf32=asked)
    with (
        mock.patch("boxwright.training.train.usable_device", return_value=CUDA),
        mock.patch("torch.cuda.device"),
        _device(settings, Processes()),
    ):
        assert torch.backends.cuda.matmul.allow_tf32 == asked
        assert torch.backends.cudnn.allow_tf32
    assert (torch.backends.cuda.matmul.allow_tf32, torch.backends.cudnn.allow_tf32) == (False, True)


def test_tests_for_a_gpu_are_still_there() -> None:
    """They show what only a GPU can."""
    root = Path(__file__).parents[2]
    assert (root / "tests" / "training" / "test_gpu.py").is_file()
    assert "tests/training/test_gpu.py" in (root / "benchmarks" / "gpu.sh").read_text(encoding="utf-8")
