from __future__ import annotations

import torch

from boxwright.base.device import constants
from tests.cuda.fake import CUDA, fake_cuda


def test_they_are_rounded_once() -> None:
    numbers = [1 / 3, 640.0, 1e-30, -7.0]
    assert torch.equal(constants(numbers, torch.device("cpu")), torch.tensor(numbers))
    found = constants([3, 2**40], torch.device("cpu"), torch.int64)
    assert found.tolist() == [3, 2**40]
    assert found.dtype == torch.int64


def test_a_gpu_is_not_waited_for() -> None:
    with fake_cuda() as recorder:
        found = constants([1.0, 2.0], CUDA)
        assert (found.device, found.shape) == (CUDA, (2,))
        assert not recorder.waits
        torch.tensor([1.0, 2.0], device=CUDA)
        assert recorder.waits
