"""From images to losses: what a step differentiates.

A loss module whose gradients are exchanged between the processes of a run.

Less memory for more time: a backbone's maps are recomputed in the backward pass (gradient checkpointing).
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
from boxwright.nn.criteria.criterion import REGULARIZATION, LossTerm
from boxwright.nn.detector import Detector
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
    if len(within) > 1 or isinstance(module, nn.ModuleList) or _convolutions(module) < 2:
        return within
    return [module]


def _convolutions(module: nn.Module) -> int:
    return sum(isinstance(submodule, nn.Conv2d) for submodule in module.modules())


def _forward(block: nn.Module, plain: Any, *given: Any) -> Any:
    if not block.training:
        return plain(*given)
    # The reentrant form computes no gradients where no input needs one, as in the block that gets the image.
    return checkpoint(plain, *given, use_reentrant=False, context_fn=partial(_contexts, block))


def _contexts(block: nn.Module) -> tuple[AbstractContextManager[None], AbstractContextManager[None]]:
    """Return the contexts of the first computation and of the second."""
    return nullcontext(), _statistics_unchanged(block)


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
