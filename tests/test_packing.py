"""Many tensors at once."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from boxwright.types.packing import each_tensor, fetched, packed, unpacked
from tests.cuda.fake import CUDA, fake_cuda

MIXED = [
    torch.tensor([True, False, True]),
    torch.arange(6).reshape(2, 3),
    torch.tensor(2.5),
    torch.zeros(0, 4),
    torch.linspace(0, 1, 5).bfloat16(),
    torch.arange(12.0).reshape(3, 4).T,
    torch.tensor([7], dtype=torch.uint8),
    torch.rand(3, dtype=torch.float64),
]


def test_what_is_packed_comes_back() -> None:
    block = packed(MIXED)
    assert block.dtype == torch.uint8
    assert len(block) == 3 + 6 * 8 + 4 + 0 + 5 * 2 + 12 * 4 + 1 + 3 * 8
    found = unpacked(block.clone(), MIXED)
    for one, expected in zip(found, MIXED, strict=True):
        assert one.dtype == expected.dtype
        assert torch.equal(one, expected)


def test_tensors_of_the_cpu_stay_as_they_are() -> None:
    assert all(one is other for one, other in zip(fetched(MIXED), MIXED, strict=True))
    assert fetched([]) == []


def test_a_gpu_is_waited_for_once() -> None:
    with fake_cuda() as recorder:
        there = [
            torch.rand(2, 3, device=CUDA),
            torch.zeros(4, dtype=torch.int64, device=CUDA),
            torch.zeros(1, device=CUDA),
        ]
        recorder.clear()
        found = fetched(there)
        assert dict(recorder.waits) == {("types/packing.py fetched", "copy to the CPU"): 1}
    assert [(one.device.type, one.dtype, one.shape) for one in found] == [
        ("cpu", one.dtype, one.shape) for one in there
    ]


@dataclass(frozen=True)
class Said:
    values: Tensor
    parts: tuple[Tensor, ...]
    known: Tensor | None = None
    size: tuple[int, int] = (3, 4)


def test_each_tensor_is_changed_and_nothing_else() -> None:
    said = Said(torch.ones(2), (torch.ones(1), torch.zeros(1)))
    found = each_tensor([said, "text"], lambda one: one + 1)
    assert found[1] == "text"
    assert isinstance(found[0], Said)
    assert found[0].values.tolist() == [2, 2]
    assert [one.tolist() for one in found[0].parts] == [[2], [1]]
    assert (found[0].known, found[0].size) == (None, (3, 4))
