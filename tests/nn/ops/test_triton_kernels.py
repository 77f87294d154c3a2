"""Kernels for GPUs; without one they run in Triton's interpreter. Suppression is tested beside the rules, with `Nms`."""

from __future__ import annotations

import logging
import os
import subprocess
import sys
from types import SimpleNamespace
from unittest import mock

import numpy as np
import pytest
import torch
from scipy.optimize import linear_sum_assignment
from torch import Tensor

from boxwright.nn.ops.gpu_kernels import _find_problem, _has_kernels

pytest.importorskip("triton", reason="no Triton here: nothing shows that its kernels match as SciPy does")
DEVICE = "cuda" if torch.cuda.is_available() else "cpu"


def assign(costs: Tensor, valid: Tensor) -> Tensor:
    from boxwright.nn.ops import triton_kernels

    return triton_kernels.assign(costs.to(DEVICE), valid.to(DEVICE), 1e6).cpu()


@pytest.mark.slow_cases("24-20-False", "24-20-True")
@pytest.mark.parametrize("equal_costs", [False, True])
@pytest.mark.parametrize(
    ("queries", "objects"), [(30, 8), (24, 20), (16, 16), (9, 5), (5, 9), (1, 3), (1, 1), (10, 33)]
)
def test_each_set_is_matched_at_scipys_least_cost(queries: int, objects: int, equal_costs: bool) -> None:
    """Of more objects than queries some are left out, and of others some do not count."""
    random = torch.Generator().manual_seed(queries * objects)
    costs = torch.randn(2, 3, queries, objects, generator=random) * 10
    costs = costs.round() if equal_costs else costs
    valid = torch.rand(3, objects, generator=random) < 0.8
    matches = assign(costs, valid).numpy()
    for image in range(3):
        numbers = valid[image].nonzero().squeeze(1).numpy()
        for number in range(2):
            theirs = costs[number, image].double().numpy()[:, numbers]
            rows, columns = linear_sum_assignment(theirs)
            matched = np.flatnonzero(matches[number, image] >= 0)
            ours = matches[number, image][matched]
            assert len(matched) == len(rows) == len(set(ours))
            assert set(ours) <= set(numbers)
            total = costs[number, image].double().numpy()[matched, ours].sum()
            assert total == pytest.approx(theirs[rows, columns].sum(), abs=1e-9)
            assert equal_costs or dict(zip(matched, ours, strict=True)) == dict(
                zip(rows, numbers[columns], strict=True)
            )


def test_no_objects_and_none_that_counts() -> None:
    assert assign(torch.zeros(2, 1, 4, 0), torch.zeros(1, 0, dtype=torch.bool)).tolist() == [[[-1] * 4]] * 2
    assert assign(torch.zeros(1, 1, 4, 3), torch.zeros(1, 3, dtype=torch.bool)).tolist() == [[[-1] * 4]]
    assert assign(torch.zeros(1, 0, 4, 3), torch.zeros(0, 3, dtype=torch.bool)).shape == (1, 0, 4)


def test_what_is_not_a_number_is_matched_last() -> None:
    both = torch.ones(1, 2, dtype=torch.bool)
    assert assign(torch.tensor([[[[torch.nan, 2.0], [3.0, torch.inf], [torch.inf, torch.nan]]]]), both).tolist() == [
        [[1, 0, -1]]
    ]
    assert assign(torch.tensor([[[[7.0, 1.0], [torch.inf, torch.nan], [5.0, -torch.inf]]]]), both).tolist() == [
        [[0, -1, 1]]
    ]


@pytest.fixture
def as_on_gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let Triton say that there is a Hopper GPU, and its kernels run here."""
    triton = pytest.importorskip("triton")
    driver = SimpleNamespace(get_current_target=lambda: SimpleNamespace(backend="cuda", arch=90))
    monkeypatch.setattr(triton.runtime.driver, "_active", driver)
    monkeypatch.setattr("boxwright.nn.ops.triton_kernels._CHECKED", 40)  # as interpreting 1,024 takes minutes
    monkeypatch.setattr("boxwright.nn.ops.gpu_kernels.torch.device", lambda name: torch.empty(0, device=DEVICE).device)


@pytest.mark.usefixtures("as_on_gpu")
def test_kernels_that_give_known_answers_are_used() -> None:
    assert _find_problem() == ""


@pytest.mark.usefixtures("as_on_gpu")
@pytest.mark.parametrize(
    ("kernel", "answer", "what"),
    [
        ("keep_greedily", torch.ones(1, 40, dtype=torch.bool), "for suppression"),
        ("assign", torch.tensor([[[0, 1, 2, *[-1] * 297]]]), "for matching"),
    ],
)
def test_kernels_that_give_other_answers_are_not_used(
    kernel: str, answer: Tensor, what: str, caplog: pytest.LogCaptureFixture
) -> None:
    with (
        mock.patch(f"boxwright.nn.ops.triton_kernels.{kernel}", return_value=answer),
        caplog.at_level(logging.WARNING, "boxwright"),
    ):
        assert not _has_kernels.__wrapped__()
    assert what in caplog.text
    assert "with the same results" in caplog.text


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a GPU")
def test_without_a_gpu_there_are_no_kernels() -> None:
    assert _find_problem()


# For a Turing and a Hopper GPU.
COMPILE = """
import triton
from triton.backends.compiler import GPUTarget
from triton.compiler import ASTSource
from boxwright.nn.ops.triton_kernels import _assign, _compare_pairs, _keep_greedily

pointers = dict(boxes="*fp32", labels="*i64", bits="*i32", passing="*i1", kept="*i1", costs="*fp32", valid="*i1", matches="*i64")
floats = dict(iou_threshold="fp32", impossible="fp32")
for kernel, constants in ((_assign, dict(padded=512)), (_compare_pairs, dict(block=128)), (_keep_greedily, dict(padded=32))):
    types = {name: ({**pointers, **floats} | dict.fromkeys(constants, "constexpr")).get(name, "i32") for name in kernel.arg_names}
    for architecture in (75, 90):
        source = ASTSource(fn=kernel, signature=types, constexprs=constants)
        options = dict(enable_fp_fusion=False)
        print(len(triton.compile(source, target=GPUTarget("cuda", architecture, 32), options=options).asm["cubin"]))
"""


@pytest.mark.slow
def test_kernels_compile_without_a_gpu() -> None:
    environment = {name: value for name, value in os.environ.items() if name != "TRITON_INTERPRET"}
    done = subprocess.run([sys.executable, "-c", COMPILE], env=environment, capture_output=True, text=True, check=False)
    sizes = [int(line) for line in done.stdout.split()]
    assert len(sizes) == 6, done.stderr
    assert all(sizes)
