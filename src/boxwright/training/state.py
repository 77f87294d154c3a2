"""What a run knows of itself between two steps, and how that is kept."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch

from boxwright.builders.training import TrainingPlan
from boxwright.errors import CheckpointError
from boxwright.models.detector import Detector
from boxwright.optimization.moving_average import MovingAverage
from boxwright.optimization.optimizers import Optimizer

__all__ = ["TrainingState", "new_state"]


@dataclass
class TrainingState:
    """A run's state.

    Attributes:
        detector: What is trained.
        optimizer: With its slots.
        average: The weights' moving average, or None.
        step: Steps done.
    """

    detector: Detector
    optimizer: Optimizer
    average: MovingAverage | None
    step: int = 0

    def content(self, config_text: str) -> dict[str, Any]:
        """Return what a checkpoint holds, beside its step.

        Args:
            config_text: The configuration as run, in text format.

        Returns:
            Tensors and plain data.
        """
        categories = self.detector.categories
        return {
            "network": self.detector.network.state_dict(),
            "optimizer": self.optimizer.state_dict(),
            "optimizer_kind": type(self.optimizer.rule).__name__,
            "average": self.average.shadow if self.average else {},
            "categories": categories.to_list() if categories else [],
            "config": config_text,
            # Dropout draws from the process's generator; all other randomness is counted.
            "generator": torch.get_rng_state(),
            "cuda_generators": torch.cuda.get_rng_state_all() if torch.cuda.is_available() else [],
        }

    def restore(self, content: dict[str, Any]) -> None:
        """Go back to where a checkpoint was written.

        Args:
            content: What it holds.

        Raises:
            CheckpointError: Where it is of another network or optimizer.
        """
        if content["optimizer_kind"] != type(self.optimizer.rule).__name__:
            raise CheckpointError(
                f"the run so far used {content['optimizer_kind']}, the configuration asks for "
                f"{type(self.optimizer.rule).__name__}; use another model_dir"
            )
        try:
            self.detector.network.load_state_dict(content["network"])
            self.optimizer.load_state_dict(content["optimizer"])
        except (RuntimeError, ValueError) as error:
            first = str(error).splitlines()[1].strip() if "\n" in str(error) else str(error)
            raise CheckpointError(f"the checkpoint is of another network ({first}); use another model_dir") from None
        if self.average is not None:
            names = dict(self.detector.network.named_parameters())
            self.average.load(content["average"] or {name: names[name].detach() for name in self.average.shadow})
        self.step = int(content["step"])
        torch.set_rng_state(content["generator"])
        if content["cuda_generators"] and torch.cuda.is_available():
            torch.cuda.set_rng_state_all(content["cuda_generators"])


def new_state(detector: Detector, plan: TrainingPlan) -> TrainingState:
    """Start a run.

    Args:
        detector: What is trained, on its device.
        plan: How.

    Returns:
        The state at step 0.
    """
    trainable = [p for p in detector.network.parameters() if p.requires_grad]
    decay = plan.optimizer.average_decay
    average = None if decay is None else MovingAverage(detector.network, decay)
    return TrainingState(detector, Optimizer(trainable, plan.optimizer.rule), average)
