"""Tensors that claim to be on a GPU and hold no data: code runs on them as on a GPU, on a machine without one.

What only data can decide (`.item()`, the size of `nonzero`) is answered as if everything were true or chosen, and put on
record; see `ledger`.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from dataclasses import fields, is_dataclass, replace
from typing import Any
from unittest import mock

import torch
from torch import Tensor, nn
from torch._subclasses.fake_tensor import FakeTensorMode

from boxwright.data.batch import Batch
from boxwright.types import Targets
from tests.cuda.backward import backward
from tests.cuda.ledger import OperationRecorder

CUDA = torch.device("cuda", 0)


class _Mode(FakeTensorMode):
    """A mode that asks no driver for anything, whatever `torch.cuda.is_available` says."""

    avoid_device_init = True


class _Event:
    """A CUDA event, of which is known when the program waits for it."""

    waited: list[str]

    def __init__(self, *_: object, **__: object) -> None:
        pass

    def record(self, *_: object) -> None:
        pass

    def synchronize(self) -> None:
        self.recorder.wait("Event.synchronize")

    recorder: OperationRecorder


def _yes(*_: object, **__: object) -> bool:
    return True


def _nothing(*_: object, **__: object) -> None:
    pass


@contextmanager
def fake_cuda(*, triton: bool = True) -> Iterator[OperationRecorder]:
    """Run on fake tensors, of which those on `cuda` are as on a GPU; autograd's engine is ours.

    PyTorch's own engine asks the driver for streams, so that the graph that autograd recorded is walked by
    `tests.cuda.backward`, which calls the same nodes.

    Args:
        triton: Whether Triton can compile kernels.

    Yields:
        What a GPU would have been told.
    """
    mode = _Mode(allow_non_fake_inputs=True)  # what is on the CPU may be real; the recorder sees where it goes
    recorder = OperationRecorder(mode)
    event = type("Event", (_Event,), {"recorder": recorder})
    with (
        mode,  # first: it asks whether there is a GPU, to know whether it may talk to one
        recorder,
        # Functions, as a mock's records of thousands of calls take a twelfth of a step.
        mock.patch("torch.cuda.is_available", _yes),
        mock.patch("torch.cuda.is_bf16_supported", _yes),
        mock.patch("torch._subclasses.fake_tensor.init_gpu_context", _nothing),
        mock.patch("boxwright.nn.ops.gpu_kernels._has_kernels", return_value=triton),
        mock.patch("torch.cuda.Event", event),
        mock.patch("torch.cuda.empty_cache"),
        mock.patch("torch.autograd.backward", backward),
        mock.patch("torch.random.fork_rng", return_value=nullcontext()),
    ):
        yield recorder


def to_fake(module: nn.Module, mode: FakeTensorMode, device: torch.device = CUDA) -> None:
    """Replace a module's parameters and buffers by fake ones of the same shapes, layouts and types on a device."""

    def fake(value: Tensor) -> Tensor:
        with mode:
            return mode.from_tensor(value).detach().to(device)

    for part in module.modules():
        for name, weight in list(part._parameters.items()):
            if weight is not None:
                part._parameters[name] = nn.Parameter(fake(weight), requires_grad=weight.requires_grad)
        for name, buffer in list(part._buffers.items()):
            if buffer is not None:
                part._buffers[name] = fake(buffer)


def fake_batch(batch: Batch, mode: FakeTensorMode) -> Batch:
    """Return a batch as it is once it has been copied to the GPU."""

    def there(value: Any) -> Any:
        if isinstance(value, Tensor):
            return mode.from_tensor(value).to(CUDA)
        if is_dataclass(value) and not isinstance(value, type):
            return replace(value, **{one.name: there(getattr(value, one.name)) for one in fields(value)})
        return value

    targets: Targets = there(batch.targets)
    return replace(batch, images=there(batch.images), true_sizes=there(batch.true_sizes), targets=targets)
