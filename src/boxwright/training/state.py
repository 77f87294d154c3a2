"""What a run knows of itself between two steps, and how that is kept: weights, counters, the best evaluation, threads.

Sums that threads share are rounded in an order that depends on their number, so that a resumed run has the bits of an
uninterrupted one only with the number that it began with.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from boxwright.base.errors import CheckpointError, ConfigError, pass_shortage
from boxwright.base.text import counted
from boxwright.base.threads import MOST_THREADS, usable_cpus
from boxwright.nn.detector import Detector
from boxwright.nn.initial_statistics import InitialShares, shares_of_layers, shares_of_new
from boxwright.nn.optimization.moving_average import MovingAverage
from boxwright.nn.optimization.optimizers import Optimizer, grouped
from boxwright.pipeline.training import TrainingPlan
from boxwright.training.divergence import DivergenceMonitor
from boxwright.weights.initial_shares import AVERAGE_SHARES, SHARES
from boxwright.weights.tensorflow.variables import parameter_names


@dataclass(frozen=True)
class Selection:
    """The evaluations so far, as far as choosing goes.

    Attributes:
        metric: What is compared; empty for the first metric that an evaluation gives.
        patience: Evaluations in a row without a better one after which training stops; 0 for never.
        best: The best value yet; None before there is one.
        evaluated: The step of the last evaluation; -1 before the first.
    """

    metric: str = ""
    patience: int = 0
    best: float | None = None
    best_step: int = -1
    waited: int = 0
    evaluated: int = -1

    @property
    def exhausted(self) -> bool:
        """Whether patience is at its end."""
        return 0 < self.patience <= self.waited

    def after(self, step: int, metrics: dict[str, float], *, diverged: bool = False) -> Selection:
        """Take in an evaluation.

        Args:
            diverged: Whether the run had diverged at that step, which is never the best then.

        Returns:
            The selection after it; `best_step` is `step` where this one is the best.

        Raises:
            ConfigError: Where the metric is not among those computed.
        """
        if not metrics and not self.metric:  # groundtruth is ignored: there is nothing to choose by
            return replace(self, evaluated=step)
        metric = self.metric or next(iter(metrics), "")
        if metric not in metrics:
            raise ConfigError(
                f"the best checkpoint is to be chosen by {metric!r}, which is not computed; "
                f"computed: {', '.join(metrics) or 'nothing'}"
            )
        value, seen = metrics[metric], replace(self, metric=metric, evaluated=step)
        if not diverged and self._is_better(metric, value):
            return replace(seen, best=value, best_step=step, waited=0)
        return replace(seen, waited=self.waited + 1)

    def _is_better(self, metric: str, value: float) -> bool:
        # NaN, or TF's -1 for a metric without groundtruth: such an evaluation is never the best, but patience counts
        # it.
        lower_is_better = metric.startswith("Loss/")
        if value != value or (value < 0 and not lower_is_better):  # nothing to measure
            return False
        if self.best is None:
            return True
        return value < self.best if lower_is_better else value > self.best

    def content(self) -> dict[str, Any]:
        """Return what a checkpoint keeps."""
        return {"metric": self.metric, "best": self.best, "best_step": self.best_step} | {
            "waited": self.waited,
            "evaluated": self.evaluated,
        }

    def restored(self, content: dict[str, Any]) -> Selection:
        """Continue from a checkpoint; with another metric, selection restarts.

        Args:
            content: What `content` returned.

        Returns:
            The selection there, with this one's metric and patience.

        Raises:
            CheckpointError: Where it is not what `content` returns.
        """
        kinds: dict[str, Any] = {"metric": str, "best": float | None, "best_step": int, "waited": int, "evaluated": int}
        if set(content) != set(kinds) or not all(isinstance(content[name], kind) for name, kind in kinds.items()):
            raise CheckpointError(f"the checkpoint's evaluations are not as they were written: {str(content)[:120]}")
        if self.metric and content["metric"] != self.metric:
            return replace(self, evaluated=content["evaluated"])
        return replace(self, **content)


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
        divergence: Knows the last losses, and whether the last of all was far above them.
        groups: A line for the log on each of the groups of weights that learn alike, where there are several.
        changed_freezing: How many weights the program froze or unfroze itself, against the configuration.
        restarts: How often training went back to the best state (`train_config.restart_from_best_step`).
        restarted_at: The step at which it did so last; -1 for never.
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
    divergence: DivergenceMonitor = field(default_factory=DivergenceMonitor)
    groups: tuple[str, ...] = ()
    changed_freezing: int = 0
    restarts: int = 0
    restarted_at: int = -1

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
        decay = self.average.decay_after(self.step) if self.average is not None and averaged else None
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
            "recent_losses": list(self.divergence.losses),
            "began": self.began,
            RESTARTS: [self.restarts, self.restarted_at],
            **({CHANGED_FREEZING: self.changed_freezing} if self.changed_freezing else {}),
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
        self._restore_weights(content)
        self.step, self.samples, self.parts = content["step"], content["samples"], max(content["parts"], 1)
        self.seed, self.began = content["seed"], float(content["began"])
        self.selection = self.selection.restored(content["selection"])
        # Those of earlier versions have neither losses nor restarts.
        self.divergence.restore(content.get("recent_losses", []))
        self.restarts, self.restarted_at = _read_restarts(content)
        self._shorten_average()

    def restart(self, content: dict[str, Any]) -> None:
        """Take over weights, averages and the optimizer of another step; steps, data and schedules go on from here.

        The window of the average, 1 / (1 - decay), is a half of the configured one after the second restart, then a
        third, and so on.

        Args:
            content: As for `restore`.

        Raises:
            CheckpointError: Where it is of another network.
        """
        self._restore_weights(content)
        self.restarts, self.restarted_at = self.restarts + 1, self.step
        self._shorten_average()

    def _shorten_average(self) -> None:
        if self.average is not None:
            self.average.shorten(max(self.restarts, 1))

    def _restore_weights(self, content: dict[str, Any]) -> None:
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
            pass_shortage(error, "the checkpoint")
            lines = str(error).splitlines() or [type(error).__name__]
            # The first line of load_state_dict's message only says that there are errors.
            first = lines[min(1, len(lines) - 1)].strip()
            raise CheckpointError(f"the checkpoint is of another network ({first}); use another model_dir") from None
        network = self.detector.network
        network.initial_shares = shares_of_layers(network, content[SHARES], content[AVERAGE_SHARES])


def _read_restarts(content: Mapping[str, Any]) -> tuple[int, int]:
    """Return how often a run restarted and when last; a `CheckpointError` where a checkpoint says something else."""
    restarts = content.get(RESTARTS, [0, -1])
    match restarts:
        case [int(count), int(step)] if 0 <= count <= content["step"] + 1:
            return count, step
    raise CheckpointError(f"the checkpoint's restarts are not as they were written: {str(restarts)[:120]}")


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
    """Return a run's state at step 0; `selection` says by what the best checkpoint is chosen."""
    detector.network.initial_shares, detector.network.debiases = shares_of_new(detector.network), plan.debias
    groups, said = grouped(detector.network, plan.optimizer.groups, parameter_names(detector.network))
    decay = plan.optimizer.average_decay
    statistics = detector.network.named_statistics() if plan.optimizer.average_statistics else ()
    ramp_steps = plan.optimizer.average_ramp_steps
    average = None if decay is None else MovingAverage(detector.network, decay, statistics, ramp_steps=ramp_steps)
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


# Keys of a checkpoint.
CHANGED_FREEZING = "changed_freezing"
RESTARTS = "restarts"
THREADS = "threads"


def run_seed(newest: tuple[Path, Mapping[str, Any]] | None, asked: int | None) -> int:
    """Return the seed of the run that is resumed, or the one that is asked for.

    Args:
        newest: The file and the content of the checkpoint that is resumed from.

    Raises:
        CheckpointError: If the run began with another seed.
    """
    if newest is None:
        return asked or 0
    path, content = newest
    if "seed" not in content:
        raise CheckpointError(
            f"{path}: written by an earlier version, whose runs cannot be resumed exactly; "
            "start another model_dir from it by train_config.fine_tune_checkpoint"
        )
    own = int(content["seed"])
    if asked is not None and asked != own:
        raise CheckpointError(f"{path}: the run began with seed {own}, not {asked}; use another model_dir")
    return own


@contextmanager
def run_threads(asked: int, content: Mapping[str, Any] | None, log: logging.Logger) -> Iterator[int]:
    """Let PyTorch compute with a run's number of threads; afterwards with as many as before.

    Args:
        asked: The number that the settings ask for; 0 for the run's own.
        content: The checkpoint that is resumed from; None for a new run, which begins with as many as PyTorch has.
        log: Gets a line about the number.

    Yields:
        The number.

    Raises:
        CheckpointError: If the checkpoint's number is none.
    """
    before = torch.get_num_threads()
    begun = (content or {}).get(THREADS, 0)  # those of earlier versions have none
    if not isinstance(begun, int) or not 0 <= begun <= MOST_THREADS:
        raise CheckpointError(f"not a whole checkpoint: its {THREADS!r} is {begun!r}")
    count = asked or begun or before
    log.info(_line(count, begun, before))
    torch.set_num_threads(count)
    try:
        yield count
    finally:
        torch.set_num_threads(before)


def _line(count: int, begun: int, before: int) -> str:
    line = counted(count, "thread")
    if begun and count != begun:
        line += f", {begun} until now: rounding makes results differ from those of an uninterrupted run"
    elif begun and count != before:
        line += f", with which the run began (this machine's default is {before}; --threads changes it)"
    if count > (usable := usable_cpus()):
        line += f"; slower than necessary, as there are {usable} CPUs"
    return line
