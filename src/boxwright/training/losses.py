"""From images to losses: what a step differentiates.

Gradients may be exchanged between the processes of a run; a backbone's maps may be recomputed in the backward pass
(gradient checkpointing); and network and losses may be CUDA graphs, which a GPU replays without launching each
operation: one graph of a one-stage detector, and of a two-stage detector its first stage, as the shapes of the second
depend on its proposals.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel
from torch.profiler import record_function
from torch.utils.checkpoint import checkpoint

from boxwright.base.distributed import is_sharded_module
from boxwright.base.errors import TrainingError, first_line
from boxwright.nn.criteria.criterion import REGULARIZATION, LossTerm
from boxwright.nn.detector import Detector
from boxwright.nn.network import TwoStage
from boxwright.nn.ops.gpu_kernels import has_kernels
from boxwright.pipeline.training import TrainingPlan
from boxwright.types import Targets
from boxwright.types.packing import each_tensor


def data_parallel(losses: nn.Module) -> DistributedDataParallel:
    """Return losses whose gradients are averaged over the processes."""
    # Depthwise kernels lie in memory the same under two strides; nothing is copied.
    warnings.filterwarnings("ignore", message="Grad strides do not match bucket view strides")
    device = next(losses.parameters()).device
    return DistributedDataParallel(
        losses,
        device_ids=[device.index] if device.type == "cuda" else None,
        # Gradients lie in the buffers that are exchanged; otherwise each process holds them twice.
        gradient_as_bucket_view=True,
        # Statistics are read in evaluations and checkpoints alone, which take the leader's; training reads a batch's.
        broadcast_buffers=False,
    )


def exchanging_gradients(module: nn.Module, *, enabled: bool) -> AbstractContextManager[None]:
    """Return the context of a forward and backward pass: its gradients are exchanged, or stay in this process."""
    # FSDP2 has a switch that stays as it is set, where DistributedDataParallel has a context.
    if is_sharded_module(module):
        module.set_requires_gradient_sync(enabled)
    return module.no_sync() if isinstance(module, DistributedDataParallel) and not enabled else nullcontext()


def recompute_blocks(backbone: nn.Module) -> int:
    """Let each block of a backbone in training keep its input alone; return how many blocks there are.

    Losses, gradients and statistics are the same to the last bit: the second computation does not update statistics.

    Args:
        backbone: Its blocks' `forward` is replaced.
    """
    blocks = _blocks(backbone)
    for block in blocks:
        block.forward = partial(_forward, block, block.forward)
    return len(blocks)


def _blocks(module: nn.Module) -> list[nn.Module]:
    """Return the smallest modules that hold several convolutions; where there is but one in another, that other."""
    within = [block for child in module.children() for block in _blocks(child)]
    convolutions = sum(isinstance(submodule, nn.Conv2d) for submodule in module.modules())
    if len(within) > 1 or isinstance(module, nn.ModuleList) or convolutions < 2:
        return within
    return [module]


def _forward(block: nn.Module, plain: Any, *given: Any) -> Any:
    if not block.training:
        return plain(*given)
    # The reentrant form computes no gradients where no input needs one, as in the block that gets the image.
    return checkpoint(
        plain, *given, use_reentrant=False, context_fn=lambda: (nullcontext(), _statistics_unchanged(block))
    )


@contextmanager
def _statistics_unchanged(block: nn.Module) -> Iterator[None]:
    """Let normalization update copies of its statistics."""
    kept = [(part, dict(part._buffers)) for part in block.modules() if isinstance(part, nn.BatchNorm2d)]
    for part, buffers in kept:
        part._buffers.update({name: None if value is None else value.clone() for name, value in buffers.items()})
    try:
        yield
    finally:
        for part, buffers in kept:
            part._buffers.update(buffers)


_DTYPES = {"float32": torch.float32, "bfloat16": torch.bfloat16, "float16": torch.float16}


@dataclass(frozen=True)
class ForwardResult:
    """What a forward pass of a batch, or of a part of one, gives.

    Attributes:
        penalty: On the weights, a scalar without a graph; None where it is not part of the loss.
        predictions: What the network said, without its graph.
    """

    terms: dict[str, LossTerm]
    penalty: Tensor | None
    predictions: Any

    def losses(self) -> dict[str, Tensor]:
        """Return all losses by name, where this batch is all there is."""
        return LossTerm.values(self.terms) | ({} if self.penalty is None else {REGULARIZATION: self.penalty})


class LossModule(nn.Module):
    """Images in, losses out: what is wrapped for many processes."""

    def __init__(
        self, detector: Detector, plan: TrainingPlan, predict: Callable[[Tensor, Tensor, Targets], Any] | None = None
    ) -> None:
        """Remember the parts.

        Args:
            plan: For the precision in which the network computes, and whether weights are penalized.
            predict: Runs the network, instead of the detector's own `predict`.
        """
        super().__init__()
        self.detector, self.precision, self.regularize = detector, plan.precision, plan.regularize
        self._predict = predict or detector.predict

    def forward(self, images: Tensor, true_sizes: Tensor, targets: Targets) -> ForwardResult:
        """Return the losses of a batch, or of a part of one."""
        detector = self.detector
        with record_function("forward"):
            inputs = detector.preprocessor.normalize(images, true_sizes)
            with torch.autocast(images.device.type, _DTYPES[self.precision], enabled=self.precision != "float32"):
                predictions = self._predict(inputs, true_sizes, targets)
        with record_function("criterion"):
            terms = detector.criterion(predictions, targets)
            with torch.no_grad():  # its gradients are added to those of the losses
                penalty = detector.regularization() if self.regularize else None
        # Gradients come from the losses alone: a compiled step's backward pass is then given scalars.
        return ForwardResult(terms, penalty, each_tensor(predictions, Tensor.detach))


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
    # The question is no part of a graph; the answer is.
    has_kernels()
    torch.compiler.assume_constant_result(has_kernels)
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
