"""What a run knows of itself between two steps, and how that is kept."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch

from boxwright.builders.training import TrainingPlan
from boxwright.models.detector import Detector
from boxwright.optimization.moving_average import MovingAverage

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
    optimizer: torch.optim.Optimizer
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
            "average": self.average.shadow if self.average else {},
            "categories": categories.to_list() if categories else [],
            "config": config_text,
            # Dropout draws from the process's generator; all other randomness is counted.
            "generator": torch.get_rng_state(),
        }

    def restore(self, content: dict[str, Any]) -> None:
        """Go back to where a checkpoint was written.

        Args:
            content: What it holds.
        """
        self.detector.network.load_state_dict(content["network"])
        self.optimizer.load_state_dict(content["optimizer"])
        if self.average is not None and content["average"]:
            self.average.load(content["average"])
        self.step = int(content["step"])
        torch.set_rng_state(content["generator"])


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
    return TrainingState(detector, plan.optimizer.make(trainable), average)
