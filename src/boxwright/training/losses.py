"""From images to losses: what a step differentiates."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.profiler import record_function

from boxwright.nn.criteria.terms import REGULARIZATION, LossTerm
from boxwright.nn.detector import Detector
from boxwright.pipeline.training import TrainingPlan
from boxwright.types import Targets
from boxwright.types.packing import each_tensor

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
