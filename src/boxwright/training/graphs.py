"""CUDA graphs of steps, which a GPU replays without launching each operation.

Network and losses of a one-stage detector are one graph. Of a two-stage detector the first stage is: the shapes of the
second depend on its proposals.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn

from boxwright.base.errors import TrainingError, first_line
from boxwright.nn.detector import Detector
from boxwright.nn.network import TwoStage
from boxwright.pipeline.training import TrainingPlan
from boxwright.training.losses import ForwardResult, LossModule
from boxwright.types import Targets

Backend = str | Callable[..., Any] | None

# Inputs of one size differ only in the number of objects: a graph for few, one for many, and for a crowd one of each
# power of two. torch.compile gives up after 8 shapes by itself.
_FEW_OBJECTS, _MANY_OBJECTS = 32, 128
_MOST_SHAPES = 16


def in_bucket(targets: Targets) -> Targets:
    """Pad the objects of each image to 32, to 128, or to a power of two above: a graph is of one shape."""
    count = targets.boxes.shape[1]
    if count <= _FEW_OBJECTS:
        return targets.padded_to(_FEW_OBJECTS)
    return targets.padded_to(max(_MANY_OBJECTS, 1 << (count - 1).bit_length()))


def graphed(losses: LossModule, plan: TrainingPlan) -> nn.Module:
    """Return a loss module as far as possible in graphs."""
    network = losses.detector.network
    if isinstance(network, TwoStage):
        return GraphedFirstStage(losses.detector, network, plan)
    return GraphedLosses(losses)


class GraphedLosses(nn.Module):
    """A loss module in one graph for each shape of its inputs."""

    def __init__(self, losses: LossModule, backend: Backend = None) -> None:
        """Compile at the first call.

        Args:
            losses: What is compiled; of a detector of one stage, whose shapes do not depend on what it finds.
            backend: What torch.compile compiles with; by default its own, with CUDA graphs.
        """
        super().__init__()
        self._run: Callable[..., ForwardResult] = _compiled(losses, backend)

    def forward(self, images: Tensor, true_sizes: Tensor, targets: Targets) -> ForwardResult:
        """Return the losses of a batch; they and the gradients are gone when the next call begins."""
        with _graph_step("this detector and its losses"):
            return self._run(images, true_sizes, in_bucket(targets))


class GraphedFirstStage(nn.Module):
    """A loss module of which backbone, neck and region proposal network are one graph."""

    def __init__(self, detector: Detector, network: TwoStage, plan: TrainingPlan, backend: Backend = None) -> None:
        """Compile at the first call.

        Args:
            backend: What torch.compile compiles with; by default its own, with CUDA graphs.
        """
        super().__init__()
        first_stage = _compiled(network.first_stage, backend)

        def predict(inputs: Tensor, true_sizes: Tensor, targets: Targets) -> Any:
            return network.later_stages(first_stage(inputs), true_sizes, targets)

        self.losses = LossModule(detector, plan, predict)

    def forward(self, images: Tensor, true_sizes: Tensor, targets: Targets) -> ForwardResult:
        """Return the losses of a batch; maps and gradients of the first stage are gone when the next call begins."""
        with _graph_step("the first stage"):
            result: ForwardResult = self.losses(images, true_sizes, targets)
        return result


def _compiled(run: Callable[..., Any], backend: Backend) -> Callable[..., Any]:
    if backend is not None:
        compiled: Callable[..., Any] = torch.compile(run, fullgraph=True, dynamic=False, backend=backend)
        return compiled
    torch._inductor.config.triton.cudagraph_or_error = True  # what is skipped at a replay reads the process's setting
    # Otherwise what cannot be captured runs without a graph, as slow as before, and silently.
    options: dict[str, Any] = {"triton.cudagraphs": True, "triton.cudagraph_or_error": True}
    return torch.compile(run, fullgraph=True, dynamic=False, options=options)


@contextmanager
def _graph_step(what: str) -> Iterator[None]:
    """Begin a step of compiled graphs; what keeps them from being captured is raised as TrainingError."""
    # A graph writes into the same memory at each replay; this says that results of the last step are no longer needed.
    torch.compiler.cudagraph_mark_step_begin()
    try:
        with torch._dynamo.config.patch(recompile_limit=_MOST_SHAPES):
            yield
    except torch._dynamo.exc.FailOnRecompileLimitHit:
        raise TrainingError(
            f"--cuda_graphs: batches have more than {_MOST_SHAPES} shapes, each of which needs a graph of its own"
        ) from None
    except torch._dynamo.exc.Unsupported as error:
        raise TrainingError(f"--cuda_graphs: {what} cannot be one graph: {first_line(error)}") from None
    except RuntimeError as error:
        check_capture(error)
        raise


def check_capture(error: RuntimeError) -> None:
    """Raise TrainingError where an error says why PyTorch's compiler captured nothing."""
    # PyTorch has no exception type for this; the text is Inductor's.
    reason = next((line for line in str(error).splitlines() if "skipping cudagraph" in line), None)
    if reason is not None:
        raise TrainingError(f"--cuda_graphs: nothing was captured: {reason}") from None
