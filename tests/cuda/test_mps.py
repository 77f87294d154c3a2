"""What Apple's GPUs would be asked for: no operator that they lack, and no float64.

Fake tensors cannot be on `mps` where PyTorch was built without it. So a fake NVIDIA GPU says which types are asked
for, and the CPU, whose branches `mps` takes, which operators.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode

from boxwright.base.device import in_float64, usable_device
from boxwright.base.errors import ConfigError
from boxwright.nn.criteria import example_selection
from boxwright.nn.suppression import image_by_image
from tests.cuda.apple import CALLED, is_on_mps
from tests.cuda.families import FEW_LAYERS, ONE_OF_EACH, fake_run, learner_of
from tests.cuda.inference import look

FAMILIES = [
    FEW_LAYERS if family == "ssd" else pytest.param(family, marks=pytest.mark.slow)
    for family in (*ONE_OF_EACH, "ssd, mined")
]


class _Operators(TorchDispatchMode):
    """Writes down the names of the operators that are called."""

    def __init__(self) -> None:
        super().__init__()
        self.names: set[str] = set()

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if func.namespace in ("aten", "torchvision"):
            self.names.add(func.name())
        return func(*args, **(kwargs or {}))


@contextmanager
def operators() -> Iterator[set[str]]:
    """Yield the names of the operators that the body calls."""
    mode = _Operators()
    with mode:
        yield mode.names


# A question, not a computation.
_ASKED = {"torchvision::_cuda_version"}


@pytest.mark.parametrize("family", FAMILIES)
def test_operators_and_types(family: str, monkeypatch: pytest.MonkeyPatch) -> None:
    # What it returns is on the CPU there, as tested below.
    for module in (image_by_image, example_selection):
        monkeypatch.setattr(module, "in_float64", lambda tensor: tensor)
    with fake_run(family, triton=False) as run:
        run.step()
        run.step(describe=True)
        look(run)
        assert [asked for asked in run.recorder.dtypes if asked[2] == torch.float64] == []
        names = set(run.recorder.operators)
    learner, batch, _ = learner_of(family)
    with operators() as on_cpu:
        learner.step(batch, None, describe=True, wait=False)
        with torch.no_grad():
            learner.state.detector.eval().detect([np.zeros((96, 128, 3), np.uint8)] * 2)
    assert len(on_cpu) > 60
    assert sorted(name for name in names | on_cpu - _ASKED if not is_on_mps(name)) == []


def test_the_list_knows_what_is_missing() -> None:
    """Metal has convolutions and sorting, but no eigenvalues of general matrices and no maxima of volumes."""
    assert is_on_mps("aten::convolution")
    assert is_on_mps("aten::add.Tensor")
    assert is_on_mps("aten::sort.stable")
    assert not is_on_mps("aten::linalg_eig.out")
    assert not is_on_mps("aten::adaptive_max_pool3d")
    assert not is_on_mps("torchvision::unknown")
    assert all(is_on_mps(name) for name in CALLED)


def test_float64_is_computed_on_the_cpu(monkeypatch: pytest.MonkeyPatch) -> None:
    """What holds for a tensor of `mps`; on others nothing moves."""
    tensor = torch.tensor([1.1])
    exact = in_float64(tensor)
    assert exact.dtype == torch.float64
    assert exact.item() == pytest.approx(1.1, abs=1e-7)

    class OnMps:
        device = torch.device("mps")

        def cpu(self) -> Tensor:
            return tensor

    assert in_float64(OnMps()).dtype == torch.float64  # type: ignore[arg-type]


@pytest.mark.skipif(torch.backends.mps.is_available(), reason="this machine has one of Apple's GPUs")
def test_a_machine_without_one_says_so() -> None:
    with pytest.raises(ConfigError, match=r"^device 'mps' cannot be used: "):
        usable_device("mps")
