"""How much of a step a GPU is still told operation by operation where `--cuda_graphs` captures what it can."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any
from unittest import mock

from torch import Tensor
from torch.utils._pytree import tree_leaves

from boxwright.families.two_stage.network import FasterRCNN
from boxwright.training.losses import ForwardResult
from tests.cuda import backward
from tests.cuda.families import FakeRun
from tests.cuda.ledger import OperationRecorder


class _Captured:
    """A part of a step of which operations are counted, those of its forward pass and of the nodes that it leaves."""

    def __init__(self, recorder: OperationRecorder, run: Callable[..., Any]) -> None:
        self.recorder, self.run = recorder, run
        self.operations = 0
        self.nodes: set[Any] = set()

    def __call__(self, *given: Any) -> Any:
        before = sum(self.recorder.kernels.values())
        found = self.run(*given)
        self.operations += sum(self.recorder.kernels.values()) - before
        self.nodes |= _behind(_tensors(found))
        return found

    def hand_on(self, plain: Callable[..., None], node: Any, *given: Any) -> None:
        before = sum(self.recorder.kernels.values())
        plain(node, *given)
        if node in self.nodes:
            self.operations += sum(self.recorder.kernels.values()) - before


def launches(run: FakeRun) -> int:
    """Take a step; return the operations outside of graphs, and a launch for each replay, forward and backward."""
    learner, recorder = run.learner, run.recorder
    network = learner.state.detector.network
    two_stages = isinstance(network, FasterRCNN)
    captured = _Captured(recorder, network.first_stage if two_stages else learner.losses)
    hand_on = backward._hand_on
    with mock.patch.object(backward, "_hand_on", lambda *given: captured.hand_on(hand_on, *given)):
        if two_stages:
            with mock.patch.object(network, "first_stage", captured):
                run.step()
        else:
            with mock.patch.object(learner, "module", captured):
                run.step()
    assert captured.operations > 0
    return sum(recorder.kernels.values()) - captured.operations + 2


def _tensors(found: Any) -> list[Tensor]:
    if isinstance(found, ForwardResult):
        return [term.total for term in found.terms.values()]
    return [one for one in tree_leaves(list(vars(found).values())) if isinstance(one, Tensor)]


def _behind(tensors: list[Tensor]) -> set[Any]:
    """Return the nodes of autograd's graph that gradients of some tensors flow through."""
    roots = [one.grad_fn for one in tensors if one.grad_fn is not None]
    return {node for root in roots for node in (root, *backward._dependencies(root))}
