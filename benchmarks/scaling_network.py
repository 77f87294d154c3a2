"""A training step in one of many processes whose network is simulated: what it sends, without the others.

PyTorch's "fake" process group lets one process be one of many: every collective returns at once with this process's own
values. Which collectives a step calls, and how many bytes each is given, is as in a run.
"""

from __future__ import annotations

import unittest.mock
from collections.abc import Callable
from typing import Any

import torch
import torch.distributed as dist
from torch import nn
from torch.testing._internal.distributed.fake_pg import FakeStore
from torch.utils._python_dispatch import TorchDispatchMode

import boxwright as bw
from boxwright.base.distributed import Processes
from boxwright.base.errors import BoxwrightError
from boxwright.config.preset import preset_path
from boxwright.data.augmentation.transform import Chain
from boxwright.data.loader import TrainingExamples, training_batches
from boxwright.data.shapes import ShapesDataset
from boxwright.pipeline.training import build_training
from boxwright.training.data_parallel import data_parallel
from boxwright.training.state import new_state
from boxwright.training.step import Learner

# What a process sends for each byte that it is given, of P in a ring.
_RING = {
    "allreduce": lambda count: 2 * (count - 1) / count,
    "reduce_scatter": lambda count: (count - 1) / count,
    "allgather": lambda count: count - 1,
    "broadcast": lambda count: (count - 1) / count,
}


class _Sent(TorchDispatchMode):
    """Counts the bytes that collectives are given."""

    def __init__(self, count: int) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.count, self.bytes = count, 0.0

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        name = func._schema.name
        if name.startswith(("c10d::", "_c10d_functional::")):
            kind = next((one for one in _RING if one in name.replace("_", "").replace("scatter", "_scatter")), None)
            if kind is None:
                kind = "reduce_scatter" if "scatter" in name else None
            if kind is not None and "wait" not in name:
                given = args[1] if kind in ("reduce_scatter", "allgather") and "base" in name else args[0]
                self.bytes += _RING[kind](self.count) * _bytes_of(given)
        return func(*args, **(kwargs or {}))


def _bytes_of(value: Any) -> int:
    if isinstance(value, torch.Tensor):
        return value.numel() * value.element_size()
    return sum(_bytes_of(one) for one in value) if isinstance(value, list | tuple) else 0


def _counting(sent: _Sent) -> Callable[[nn.Module], nn.Module]:
    """Return what wraps a module for many processes, and counts the gradients that it would exchange."""

    def exchange(sent: _Sent, bucket: Any) -> torch.futures.Future[torch.Tensor]:
        sent.bytes += _RING["allreduce"](sent.count) * _bytes_of(bucket.buffer())
        done: torch.futures.Future[torch.Tensor] = torch.futures.Future()
        done.set_result(bucket.buffer())
        return done

    exchange.__annotations__ = {}  # as text, they are not what DistributedDataParallel compares them with

    def wrapped(losses: nn.Module) -> nn.Module:
        module = data_parallel(losses)
        # The fake group's own answer lacks the tensors that DistributedDataParallel waits for.
        module.register_comm_hook(sent, exchange)
        return module

    return wrapped


def sent_in_a_step(count: int, *, sharded: bool) -> float:
    """Return the bytes that the first of `count` processes sends in the second step of FPNLite-320, one image each."""
    text = ("train_config.fine_tune_checkpoint=", "num_classes=4", "train_input_reader={external_input_reader { }}")
    overrides = [f"train_config.batch_size={count}", *text]
    config = bw.load_config(preset_path("ssd_mobilenet_v2_fpnlite_320"), overrides)
    dataset = ShapesDataset(16, seed=0, size=(320, 320))
    processes, sent = Processes(0, count), _Sent(count)
    if count > 1:
        dist.init_process_group("fake", store=FakeStore(), rank=0, world_size=count)
    detector = bw.build_detector(config, dataset.categories).train()
    plan = build_training(config, workers=0)
    examples = TrainingExamples(dataset, Chain(), detector.preprocessor.resizer, 0)
    batch = next(iter(training_batches(examples, plan.stream, processes=processes)))
    if isinstance(batch, BoxwrightError):
        raise batch
    with unittest.mock.patch("boxwright.training.step.data_parallel", _counting(sent)):
        learner = Learner(new_state(detector, plan), plan, processes)
        if sharded and count > 1:
            learner.shard()
        learner.step(batch)
        sent.bytes = 0.0
        with sent:
            learner.step(batch)
    learner.unwrap()
    if count > 1:
        dist.destroy_process_group()
    return sent.bytes
