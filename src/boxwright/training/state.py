"""What a run knows of itself between two steps, and how that is kept."""

from __future__ import annotations

import time
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch
from torch import Tensor

from boxwright.base.errors import CheckpointError
from boxwright.nn.detector import Detector
from boxwright.nn.initial_statistics import InitialShares, shares_of_layers, shares_of_new
from boxwright.nn.optimization.optimizers import MovingAverage, Optimizer, average_decay, grouped
from boxwright.pipeline.training import TrainingPlan
from boxwright.training.selection import Selection
from boxwright.training.threads import THREADS
from boxwright.weights.initial_shares import AVERAGE_SHARES, SHARES
from boxwright.weights.tensorflow.variables import names_of


@dataclass(frozen=True)
class Counters:
    """How far a run has come: steps, samples, updates of each group of the optimizer's, and of statistics."""

    step: int
    samples: int
    updates: tuple[int, ...]
    initial_shares: InitialShares


@dataclass
class TrainingState:
    """A run's state.

    Attributes:
        average: The moving average of weights, and of statistics where that is asked for; or None.
        scaler: The scale of float16's gradients; disabled in other precisions.
        seed: Decides order, augmentation and what the network draws at random.
        parts: The number of parts in which a batch is learned from, because memory is too small for fewer.
        samples: Samples seen: where the stream of data resumes.
        began: When the run began, in seconds since 1970.
        updating: Whether an update has begun and not ended: weights may be half-changed.
        groups: A line for the log on each of the groups of weights that learn alike, where there are several.
    """

    detector: Detector
    optimizer: Optimizer
    average: MovingAverage | None
    scaler: torch.amp.GradScaler
    seed: int
    parts: int = 1
    step: int = 0
    samples: int = 0
    selection: Selection = field(default_factory=Selection)
    began: float = field(default_factory=time.time)
    updating: bool = False
    groups: tuple[str, ...] = ()

    def counters(self) -> Counters:
        """Return how far the run has come."""
        updates = tuple(group["count"] for group in self.optimizer.param_groups)
        return Counters(self.step, self.samples, updates, self.detector.network.initial_shares)

    def go_back(self, counters: Counters) -> None:
        """Count from there on again."""
        self.step, self.samples = counters.step, counters.samples
        self.detector.network.initial_shares = counters.initial_shares
        for group, count in zip(self.optimizer.param_groups, counters.updates, strict=True):
            group["count"] = count

    def advance(self, samples: int, *, passes: int, averaged: bool) -> None:
        """Count a step.

        Args:
            samples: How many it took.
            passes: Of the network in training, each of which moved the statistics of normalization.
            averaged: Whether the moving average was updated, if there is one.
        """
        decay = average_decay(self.average.decay, self.step) if self.average is not None and averaged else None
        network = self.detector.network
        network.initial_shares = network.initial_shares.after(passes, decay)
        self.step += 1
        self.samples += samples

    def content(self, config_text: str) -> dict[str, Any]:
        """Return what a checkpoint holds, beside its step.

        Nothing of a random generator is in it: what is drawn at a step follows from seed and step.

        Args:
            config_text: The configuration as run, in text format.
        """
        categories = self.detector.categories
        return {
            "network": self.detector.network.state_dict(),
            "optimizer": self.optimizer.state_dict(),
            "optimizer_kind": type(self.optimizer.rule).__name__,
            "average": self.average.shadow if self.average else {},
            SHARES: self.detector.network.initial_shares.by_layer(),
            AVERAGE_SHARES: self.detector.network.initial_shares.of_average().by_layer(),
            "scaler": self.scaler.state_dict(),
            "categories": categories.to_list() if categories else [],
            "config": config_text,
            "seed": self.seed,
            "samples": self.samples,
            "parts": self.parts,
            THREADS: torch.get_num_threads(),
            "selection": self.selection.content(),
            "began": self.began,
        }

    def restore(self, content: dict[str, Any]) -> None:
        """Go back to where a checkpoint was written.

        Args:
            content: As `content` returned it, with its step; shares that an earlier version lacks are added.

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
            _check_slots(self.optimizer)
            if self.average is not None:
                # What was not averaged so far starts at its value.
                self.average.load({**self.average.followed(self.detector.network), **content["average"]})
            if content["scaler"] and self.scaler.is_enabled():
                self.scaler.load_state_dict(content["scaler"])
        except (RuntimeError, ValueError, LookupError, TypeError, AttributeError) as error:
            lines = str(error).splitlines() or [type(error).__name__]
            # The first line of load_state_dict's message only says that there are errors.
            first = lines[min(1, len(lines) - 1)].strip()
            raise CheckpointError(f"the checkpoint is of another network ({first}); use another model_dir") from None
        self.step, self.samples, self.parts = content["step"], content["samples"], max(content["parts"], 1)
        self.seed, self.began = content["seed"], float(content["began"])
        network = self.detector.network
        network.initial_shares = shares_of_layers(network, content[SHARES], content[AVERAGE_SHARES])
        self.selection = self.selection.restored(content["selection"])


def _check_slots(optimizer: Optimizer) -> None:
    """Raise where a slot is not of its parameter's shape, which torch finds out in the middle of a step."""
    for parameter, slots in optimizer.state.items():
        for name, value in slots.items():
            if isinstance(value, Tensor) and value.ndim and value.shape != parameter.shape:
                raise ValueError(f"optimizer: {name} has shape {list(value.shape)}, not {list(parameter.shape)}")


def placed(detector: Detector, device: torch.device) -> Detector:
    """Return a detector after moving it to where it is trained, with channels last in memory."""
    detector.to(device=device, memory_format=torch.channels_last)  # type: ignore[call-overload]  # torch's stubs lack it
    return detector


def new_state(detector: Detector, plan: TrainingPlan, selection: Selection | None = None) -> TrainingState:
    """Start a run.

    Args:
        selection: By what the best checkpoint is chosen.

    Returns:
        The state at step 0.
    """
    detector.network.initial_shares, detector.network.debiases = shares_of_new(detector.network), plan.debias
    groups, said = grouped(detector.network, plan.optimizer.groups, names_of(detector.network))
    decay = plan.optimizer.average_decay
    statistics = detector.network.named_statistics() if plan.optimizer.average_statistics else ()
    average = None if decay is None else MovingAverage(detector.network, decay, statistics)
    device = next(detector.network.parameters()).device
    scaler = torch.amp.GradScaler(device.type, enabled=plan.precision == "float16")
    return TrainingState(
        detector,
        Optimizer(groups, plan.optimizer.rule),
        average,
        scaler,
        seed=plan.stream.seed,
        selection=selection or Selection(),
        groups=tuple(said),
    )


def seed_step(seed: int, step: int, rank: int) -> None:
    """Make what the network draws at random (dropout, sampled anchors) follow from the step alone."""
    # SeedSequence mixes its words, so that neighboring steps and ranks share no stream; torch takes 63 bits.
    torch.manual_seed(int(np.random.SeedSequence([seed, step, rank]).generate_state(1, np.uint64)[0]) >> 1)
