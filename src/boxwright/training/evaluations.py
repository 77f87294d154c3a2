"""The evaluations of a run: the network runs over the data, and the metrics are known some steps later."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

from torch import nn

from boxwright.base.distributed import Processes
from boxwright.data.loader import samples_in_order
from boxwright.evaluation.data import EvaluationData
from boxwright.evaluation.images import EvaluatedImage, evaluate_images
from boxwright.evaluation.network import batches_ahead, network_on_samples
from boxwright.evaluation.results import Evaluation
from boxwright.evaluation.summary import WORTH_A_PROCESS, summarize_in_process
from boxwright.nn.optimization.schedules import Schedule
from boxwright.training.background_writer import Content
from boxwright.training.log import Evaluated, TrainingLog
from boxwright.training.sharding import whole_weights
from boxwright.training.state import TrainingState


@dataclass(frozen=True)
class EvaluatedStep:
    """A step whose evaluation has been collected.

    Attributes:
        content: What a checkpoint of that step holds, its selection included; on the CPU.
    """

    step: int
    content: Content
    best: bool


@dataclass(frozen=True)
class _PendingEvaluation:
    """An evaluation whose metrics are being computed."""

    step: int
    content: Content
    futures: list[Future[Evaluation]]
    diverged: bool


class Evaluations:
    """Evaluates a state on every reader, the processes together; the leader gets the metrics.

    One evaluation at a time is pending; it is collected before the selection is used.
    """

    def __init__(
        self,
        sets: Sequence[EvaluationData],
        state: TrainingState,
        processes: Processes,
        log: TrainingLog | None,
        workers: int,
        run: Path | None,
        learning_rates: Schedule,
    ) -> None:
        """Evaluate nothing yet.

        Args:
            sets: The data of each reader, and how; the first decides which checkpoint is best.
            state: The run's; its selection follows what is collected.
            run: The run's folder, for the workers' sockets.
            learning_rates: Of each step; reported with the metrics.
        """
        self._learning_rates = learning_rates
        self.sets, self._state, self._processes, self._log = sets, state, processes, log
        self._workers, self._run = workers, run
        self._pending: _PendingEvaluation | None = None

    def start(self, losses: nn.Module, content: Callable[[], Content], stop_requested: Callable[[], int]) -> bool:
        """Run the network over the data, as the state is now; what was pending has been collected.

        Args:
            losses: Has the state's network, and gathers its weights where they are sharded.
            content: Makes what a checkpoint of this step holds.
            stop_requested: Asked before each reader; those that remain are left out then.

        Returns:
            Whether all metrics are known already, the same in every process.
        """
        state, processes, futures, known = self._state, self._processes, [], True
        # Without synchronised normalization each process has statistics of its own; the leader's are kept.
        averaged = state.average
        more = [] if averaged is None else [averaged.shadow[name] for name in averaged.statistics]
        processes.copy_from_leader([*state.detector.network.statistics(), *more])
        with self._averaged_weights(), whole_weights(losses):
            for data in self.sets:
                # A signal reaches processes at different times, and an evaluation is one of all: they stop together or
                # wait forever.
                if processes.largest(stop_requested()):
                    break
                images = self._images(data)
                known = known and len(images) < WORTH_A_PROCESS
                if processes.leads:
                    futures.append(summarize_in_process(images, data.plan, data.counted_categories))
        # Outside of the average: a checkpoint holds the weights from which training continues.
        kept = content()
        if futures:
            self._pending = _PendingEvaluation(state.step, kept, futures, state.divergence.diverged)
        return known

    def _images(self, data: EvaluationData) -> list[EvaluatedImage]:
        """Return, in every process, all evaluated images, which the processes share; their networks are the same."""
        read = partial(samples_in_order, workers=self._workers, run=self._run)
        detector = self._state.detector
        with network_on_samples(detector, data.plan) as detect:
            images = evaluate_images(detect, data, read, share=self._processes.share, ahead=batches_ahead(detector))
            own = list(images)
        return [image for images in self._processes.gather(own) for image in images]

    @property
    def pending(self) -> bool:
        """Whether there is an evaluation that has not been collected."""
        return self._pending is not None

    @property
    def ready(self) -> bool:
        """Whether an evaluation can be collected without waiting."""
        return self._pending is not None and all(future.done() for future in self._pending.futures)

    def collect(self) -> EvaluatedStep | None:
        """Wait for the metrics of the pending evaluation; log them, and choose by them. At an error it stays pending.

        Returns:
            The step that was evaluated; None where none is pending.

        Raises:
            BoxwrightError: Where metrics cannot be computed of this data, or the one to choose by is not computed.
        """
        if self._pending is None:
            return None
        pending, state = self._pending, self._state
        results = [future.result() for future in pending.futures]
        selection = state.selection.after(pending.step, results[0].metrics, diverged=pending.diverged)
        self._pending, state.selection, step = None, selection, pending.step
        rate, best = self._learning_rates(step), selection.best_step == step
        # After a request to stop the last readers have no results.
        for data, result in zip(self.sets, results, strict=False):
            if self._log is not None:
                chosen_by = selection.metric if best and data is self.sets[0] else ""
                notes = tuple(result.notes)
                self._log.tell(step, Evaluated(result.metrics, result.pictures, data.name, notes, rate, chosen_by))
        content: dict[str, Any] = {**pending.content, "selection": state.selection.content()}
        return EvaluatedStep(step, content, best=best)

    @contextmanager
    def _averaged_weights(self) -> Iterator[None]:
        """Evaluate the moving average where that is asked for; the weights are the same afterwards."""
        network, average = self._state.detector.network, self._state.average
        if average is None or not self.sets[0].plan.use_average:
            yield
            return
        # Statistics of normalization are the network's own in both, unless they are averaged too.
        own = {name: value.clone() for name, value in average.followed(network).items()}
        shares = network.initial_shares
        network.load_state_dict(average.shadow, strict=False)
        if average.statistics:
            network.initial_shares = shares.of_average()
        try:
            yield
        finally:
            network.load_state_dict(own, strict=False)
            network.initial_shares = shares
