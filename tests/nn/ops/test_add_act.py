"""The activated sum of two maps by a kernel in C, against PyTorch's operators."""

from __future__ import annotations

import pytest
import torch
from torch.nn import functional as F

from boxwright.base.c_compiler import CompilerError
from boxwright.nn.ops import add_act
from boxwright.nn.ops.add_act import add_act_
from boxwright.nn.ops.norm_act import Pointwise
from tests.nn.ops.test_norm_act import threads


@pytest.mark.parametrize("count", [1, 2, 3])
@pytest.mark.parametrize("size", [(2, 5, 3, 7), (1, 16, 8, 8), (1, 1, 1, 1), (0, 4, 3, 3)], ids=str)
def test_sums_are_activated(size: tuple[int, ...], count: int) -> None:
    torch.manual_seed(0)
    maps, other = (4 * torch.randn(size).to(memory_format=torch.channels_last) for _ in range(2))
    cases = {
        Pointwise(): maps + other,
        Pointwise(low=0.0): F.relu(maps + other),
        Pointwise(low=0.0, high=6.0): F.relu6(maps + other),
        Pointwise(swish=True): F.silu(maps + other),
    }
    with threads(count):
        for activation, expected in cases.items():
            given = maps.clone()
            found = add_act_(given, other, activation)
            assert found is given
            torch.testing.assert_close(found, expected, rtol=1e-6, atol=1e-6)


def test_what_is_not_a_number_stays_so() -> None:
    maps = torch.tensor([[[[torch.nan, torch.inf, -torch.inf, 1.0]]]])
    found = add_act_(maps, torch.zeros(1, 1, 1, 4), Pointwise(low=0.0, high=6.0))
    assert found.isnan().tolist() == [[[[True, False, False, False]]]]
    assert found[..., 1:].tolist() == [[[[6.0, 0.0, 1.0]]]]


def test_without_a_compiler_there_is_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(add_act, "kernels", lambda: CompilerError("no C compiler: cc is not found"))
    with pytest.raises(CompilerError, match="cc is not found"):
        add_act_(torch.zeros(1), torch.zeros(1), Pointwise())
