"""A step compiled ahead of time: what its backward pass is given, and that nothing in it lives on the CPU."""

from __future__ import annotations

from typing import Any
from unittest import mock

import pytest
import torch
from torch.fx import GraphModule, Node

from boxwright.families.two_stage.network import FasterRCNN
from boxwright.training.losses import GraphedFirstStage, GraphedLosses, graphed
from tests.cuda.families import learner_of

TWO_STAGE = ("faster_rcnn", "faster_rcnn, one map", "faster_rcnn, options", "mask_rcnn", "rfcn", "proposals")
ONE_STAGE = ("ssd", "ssd, softmax", "efficientdet", "refinedet", "srn", "align_det")


class Kept:
    """The graphs of forward and backward passes that are compiled; each runs as it is."""

    def __init__(self) -> None:
        self.forward: list[GraphModule] = []
        self.backward: list[GraphModule] = []

    def backend(self) -> Any:
        # Half a second, which each process that collects would take.
        from torch._dynamo.backends.common import aot_autograd
        from torch._functorch.aot_autograd import make_boxed_func

        def keep(into: list[GraphModule]) -> Any:
            def compiler(graph: GraphModule, _: Any) -> Any:
                into.append(graph)
                return make_boxed_func(graph.forward)

            return compiler

        return aot_autograd(fw_compiler=keep(self.forward), bw_compiler=keep(self.backward))


def constants(graph: GraphModule) -> list[str]:
    """Return the tensors that a graph carries: lists of numbers that became tensors on the CPU as it was traced."""
    return [str(node.target) for node in graph.graph.nodes if node.op == "get_attr"]


def tangents(graph: GraphModule) -> list[Node]:
    return [node for node in graph.graph.nodes if node.op == "placeholder" and "tangent" in node.name]


@pytest.mark.slow
@pytest.mark.parametrize("family", ONE_STAGE)
def test_gradients_come_from_scalars_alone(family: str) -> None:
    torch._dynamo.reset()
    kept = Kept()
    learner, batch, _ = learner_of(family)
    learner.module = GraphedLosses(learner.losses, backend=kept.backend())
    learner.step(batch)
    assert len(kept.forward) == len(kept.backward) == 1, "one graph, without a break"
    (forward,), (backward,) = kept.forward, kept.backward
    given = tangents(backward)
    assert given
    assert [node.meta["val"].shape for node in given] == [torch.Size([])] * len(given), "predictions leave detached"
    assert constants(forward) == []
    assert constants(backward) == []


@pytest.mark.slow
@pytest.mark.parametrize("family", TWO_STAGE)
def test_the_first_stage_is_one_graph(family: str) -> None:
    """Its shapes follow from those of the images, its losses are the plain ones, nothing in it lives on the CPU."""
    torch._dynamo.reset()
    kept = Kept()
    plain, batch, _ = learner_of(family, "fixed_shape")
    learner, _, plan = learner_of(family, "fixed_shape")
    network = learner.state.detector.network
    assert isinstance(network, FasterRCNN)
    learner.module = GraphedFirstStage(learner.state.detector, network, plan, backend=kept.backend())
    for _ in range(2):
        assert learner.step(batch).losses == pytest.approx(plain.step(batch).losses, rel=1e-3)
    (forward,), (backward,) = kept.forward, kept.backward
    convolutions = sum(isinstance(module, torch.nn.Conv2d) for module in network.backbone.modules())
    assert sum("convolution" in str(node.target) for node in forward.graph.nodes) > convolutions > 10
    assert constants(forward) == []
    assert constants(backward) == []


@pytest.mark.parametrize("family", ["ssd", "faster_rcnn"])
def test_what_is_graphed(family: str) -> None:
    learner, _, plan = learner_of(family, "fixed_shape")
    with mock.patch("torch.compile") as compiles:
        module = graphed(learner.losses, plan)
    ((compiled,), _) = compiles.call_args
    assert isinstance(module, GraphedFirstStage if family == "faster_rcnn" else GraphedLosses)
    assert compiled == (learner.losses if family == "ssd" else learner.state.detector.network.first_stage)


@pytest.mark.slow
def test_a_constant_is_seen() -> None:
    torch._dynamo.reset()
    kept = Kept()

    def step(x: torch.Tensor) -> torch.Tensor:
        return (x * torch.tensor([1.0, 2.0])).sum()

    torch.compile(step, backend=kept.backend())(torch.ones(2, requires_grad=True)).backward()
    assert constants(kept.forward[0])
