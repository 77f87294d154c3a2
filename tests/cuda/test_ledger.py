"""The recorder sees what it is there for: each kind of wait, another device, a type that CUDA lacks; planted, and caught."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor

from tests.cuda.dtypes import Tables, read_tables, recorded_release, recorded_tables, unsupported
from tests.cuda.fake import CUDA, fake_cuda
from tests.cuda.families import fake_run
from tests.cuda.ledger import MixedDevicesError

WAITS: dict[str, tuple[Callable[[Tensor], Any], str]] = {
    "item": (lambda x: x.sum().item(), "item"),
    "bool": (lambda x: bool((x > 0).any()), "item"),
    "int": (lambda x: int(x.long().sum()), "item"),
    "float": (lambda x: float(x.amax()), "item"),
    "if": (lambda x: 1 if x.amax() > 0 else 0, "item"),
    "tolist": (lambda x: x[:1].sum().tolist(), "item"),
    "nonzero": (lambda x: x.nonzero(), "nonzero"),
    "mask": (lambda x: x[x > 0], "boolean mask"),
    "mask that is written": (lambda x: x.masked_fill_(x > 0, 1.0).index_put_((x > 0,), x.sum()), "boolean mask"),
    "equal": (lambda x: torch.equal(x, x + 1), "equal"),
    "to the CPU": (lambda x: x.cpu(), "copy to the CPU"),
    "from the CPU": (lambda x: x + torch.ones(4).to(x.device), "copy from the CPU"),
    "a list": (lambda x: x + torch.tensor([1.0, 2.0, 3.0, 4.0], device=x.device), "copy from the CPU"),
    "a list of its type": (lambda x: x + x.new_tensor([1.0, 2.0, 3.0, 4.0]), "copy from the CPU"),
    "from memory that is not pinned": (
        lambda x: x + torch.ones(4).to(x.device, non_blocking=True),
        "copy from the CPU",
    ),
    "from pinned memory at once": (lambda x: x + torch.ones(4).pin_memory().to(x.device), "copy from the CPU"),
    "a number": (lambda x: x + torch.tensor(2.0, device=x.device), "copy from the CPU"),
    "a product to learn from": (lambda x: (x.requires_grad_() * 2).view(2, 2).prod(-1), "prod's backward pass"),
    "products to learn from": (lambda x: (x.requires_grad_() * 2).cumprod(0), "cumprod's backward pass"),
    "an element": (lambda x: x.clone().copy_(torch.ones(4)), "copy from the CPU"),
}
FINE: dict[str, Callable[[Tensor], Any]] = {
    "arithmetic": lambda x: (x * 2 + 1).clamp(min=0).sum(),
    "where": lambda x: torch.where(x > 0, x, 0.0),
    "full": lambda x: torch.full((4,), 3.0, device=x.device),
    "from pinned memory": lambda x: x + torch.ones(4).pin_memory().to(x.device, non_blocking=True),
    "sent on its way": lambda x: x.to("cpu", non_blocking=True),
    "a product": lambda x: x.view(2, 2).prod(-1) + x.view(2, 2).cumprod(-1).sum(),
    "rows": lambda x: x[torch.arange(2, device=x.device)],
}


@pytest.mark.parametrize("name", WAITS)
def test_waits_are_seen(name: str) -> None:
    wait, operation = WAITS[name]
    with fake_cuda() as recorder:
        values = torch.rand(4, device=CUDA)
        recorder.clear()
        wait(values)
        assert {what for _, what in recorder.waits} == {operation}


@pytest.mark.parametrize("name", FINE)
def test_what_does_not_wait_is_no_wait(name: str) -> None:
    with fake_cuda() as recorder:
        values = torch.rand(4, device=CUDA)
        recorder.clear()
        FINE[name](values)
        assert not recorder.waits


@pytest.mark.parametrize(
    "mix", [lambda x: x + torch.ones(4), lambda x: x * torch.tensor(2.0), lambda x: x[torch.tensor([0])]]
)
def test_a_tensor_on_the_cpu_takes_no_part(mix: Callable[[Tensor], Tensor]) -> None:
    """Nor a scalar or an index, which PyTorch takes to the GPU by itself, and waits."""
    with fake_cuda():
        values = torch.rand(4, device=CUDA)
        with pytest.raises(MixedDevicesError):
            mix(values)


@pytest.mark.slow  # all of PyTorch's own test tables are made
def test_recorded_tables_are_those_of_pytorch() -> None:
    if torch.__version__ != recorded_release():
        pytest.skip(f"the recorded tables are of PyTorch {recorded_release()}")

    def as_sets(tables: Tables) -> dict[str, list[tuple[str, set[str], set[str]]]]:
        return {
            name: [(variant, set(forward), set(backward)) for variant, forward, backward in entries]
            for name, entries in tables.items()
        }

    assert as_sets(recorded_tables()) == as_sets(read_tables())


def test_types_that_cuda_lacks_are_seen() -> None:
    """CPUs scatter maxima of bools; CUDA has no such kernel."""
    with fake_cuda() as recorder:
        index, flags = torch.zeros(4, dtype=torch.int64, device=CUDA), torch.ones(4, dtype=torch.bool, device=CUDA)
        flags.scatter_reduce(0, index, flags, "amax")
        (flags | flags).sum()
    wrong, unknown = unsupported(recorder.dtypes)
    assert wrong == {"scatter_reduce (amax) of torch.bool"}
    assert unknown == set()


def test_lists_of_several_types_are_seen() -> None:
    with fake_cuda() as recorder:
        whole, counts = torch.zeros(3, device=CUDA), torch.zeros(3, dtype=torch.int64, device=CUDA)
        torch._foreach_add_([whole, whole], 1.0)
        assert not recorder.mixed_lists
        torch._foreach_add_([whole, counts], 1)
        assert list(recorder.mixed_lists.values()) == [1]
        square = torch.zeros(1, 3, 2, 2, device=CUDA)
        torch._foreach_add_([square], [square.contiguous(memory_format=torch.channels_last)])
        assert sum(recorder.mixed_lists.values()) == 2


# What is planted is seen outside a step by the tests above.
@pytest.mark.slow
@pytest.mark.parametrize("planted", ["item", "constant", "bool amax"])
def test_what_is_planted_in_a_step_is_caught(planted: str) -> None:
    with fake_run("ssd") as run:
        criterion = run.detector.criterion

        def with_a_fault(predictions: Any, targets: Any) -> Any:
            if planted == "item":
                targets.weights.sum().item()
            elif planted == "constant":
                predictions.anchors + torch.ones(4)
            else:
                taken = targets.valid.long()
                targets.valid.scatter_reduce(1, taken, targets.valid, "amax")
            return criterion(predictions, targets)

        run.detector.criterion = with_a_fault  # type: ignore[assignment]
        if planted == "constant":
            with pytest.raises(MixedDevicesError):
                run.step()
            return
        run.step()
    if planted == "item":
        assert ("training/losses.py forward", "item") in run.recorder.waits
    else:
        assert unsupported(run.recorder.dtypes)[0] == {"scatter_reduce (amax) of torch.bool"}
