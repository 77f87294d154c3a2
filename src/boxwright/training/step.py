"""A training step: forward, losses, backward, clip, update, average, report; in one process or many."""

from __future__ import annotations

from typing import Any, cast

import torch
from torch import Tensor, nn
from torch.profiler import record_function

from boxwright.base.device import free_cached_memory, is_out_of_memory
from boxwright.base.distributed import Processes, is_sharded_module
from boxwright.base.errors import TrainingError, first_line
from boxwright.data.batch import Batch
from boxwright.nn.drop_path import drop_paths
from boxwright.nn.optimization.gradient_clipping import global_norm
from boxwright.nn.optimization.trainable import Trainable
from boxwright.nn.optimization.undo import Snapshot, undone_on_error
from boxwright.nn.regularization import add_penalty_gradients
from boxwright.pipeline.training import TrainingPlan
from boxwright.training.data_parallel import data_parallel
from boxwright.training.finite_guard import all_finite, check_previous_step, check_step, overflowed
from boxwright.training.gradient_accumulation import BatchLosses, accumulate_gradients, present_gradients
from boxwright.training.graphs import check_capture
from boxwright.training.losses import LossModule
from boxwright.training.sharding import freeze_whole_weights, shard_state
from boxwright.training.state import TrainingState, seed_step
from boxwright.training.step_report import StepReport, send_report
from boxwright.weights.tensorflow.variables import names_of


class Learner:
    """Takes the steps of a run.

    Attributes:
        state: What is trained; its weights and step change.
        module: The same, wrapped for graphs or for other processes where it is.
        learning: The names of the weights that learn in the module as it is wrapped; empty before the first step.
    """

    def __init__(self, state: TrainingState, plan: TrainingPlan, processes: Processes) -> None:
        """Set up."""
        self.state, self.plan, self.processes = state, plan, processes
        self.trainable = self._trainable()
        self.losses = LossModule(state.detector, plan)
        self.module: nn.Module = self.losses
        self.learning: frozenset[str] = frozenset()
        self.drop_paths = drop_paths(state.detector.network)

    def shard(self) -> None:
        """Spread weights, averages and slots over the processes; no step has been taken yet."""
        shard_state(self.losses, self.state, self.processes.count)
        self.trainable = self._trainable()

    def unwrap(self) -> None:
        """Drop DistributedDataParallel: torch 2.8 waits forever to end a group of processes that it still uses."""
        self.module, self.learning = self.losses, frozenset()

    def step(
        self, batch: Batch, previous: StepReport | None = None, *, describe: bool = False, wait: bool = True
    ) -> StepReport:
        """Learn from a batch.

        Args:
            batch: This process's part of it, on the device.
            previous: What the step before reported, where that was not waited for.
            describe: Whether to report how the batch was assigned.
            wait: Whether to know before the update that losses and gradients are finite. Without, the device leaves
                out an update where they are not; the report is to be checked by the next step or `check_previous_step`.

        Raises:
            NotFiniteError: Where a loss or gradient of this step or the previous one is not finite; the state is as
                before that step.
            TrainingError: Where the memory does not hold one image, or the update.
        """
        state, plan, network = self.state, self.plan, self.state.detector.network
        before, pending, finite = state.counters(), not wait and not state.scaler.is_enabled(), None
        rate = plan.optimizer.schedule(state.step)
        state.optimizer.set_rate(rate)
        for paths in self.drop_paths:
            paths.set_step(state.step)
        self._freeze()
        network.begin_step(state.step)
        with undone_on_error(network.statistics()) as statistics:
            try:
                losses = self._forward_backward(batch, statistics)
            except Exception:
                check_previous_step(previous, state)  # weights that are not finite explain whatever they bring about
                raise
            with record_function("optimizer"):
                gradients = self._finish_gradients()
                norm = global_norm(gradients)
                numbers = torch.stack([*losses.values.values(), norm])
                report = send_report(before, losses.values, numbers, rate, batch)
                check_previous_step(previous, state)
                skipped = overflowed(report, state.scaler)
                if pending:
                    finite = all_finite(numbers)
                elif not skipped:
                    check_step(report, state)
                if not skipped:
                    plan.clip(gradients, norm)
                # What interrupts the update leaves weights half changed, which no checkpoint may hold.
                state.updating = True
                self._update(finite, statistics, skipped=skipped)
            state.advance(plan.stream.batch_size, passes=losses.passes, averaged=not skipped)
        state.updating = False
        description = state.detector.criterion.describe(losses.predictions, losses.targets) if describe else None
        return report.finished(description, pending=pending, skipped=skipped)

    # Its name until this version: programs of others that take steps, a race against TensorFlow's graphs, call it.
    learn = step

    def _freeze(self) -> None:
        """Make the weights of this step trainable and freeze the others; rewrap the module when they change."""
        learning = self.trainable.apply(self.state.step)
        if learning == self.learning:
            return
        self.learning = learning
        if is_sharded_module(self.losses):
            freeze_whole_weights(self.losses)
        elif self.processes.count > 1:
            self.module = data_parallel(self.losses)

    def _forward_backward(self, batch: Batch, statistics: Snapshot) -> BatchLosses:
        """Compute losses and gradients, in more parts where the memory is too small."""
        while True:
            # What a step draws follows from its number, so that a resumed run, or a second attempt, draws the same.
            seed_step(self.state.seed, self.state.step, self.processes.rank)
            self.state.optimizer.zero_grad()
            parts = batch.split(self._parts(batch))
            try:
                return accumulate_gradients(self.losses, self.module, parts, self.state.scaler, self.processes)
            except RuntimeError as error:
                if not is_out_of_memory(error):
                    check_capture(error)  # a backward pass is compiled when it first runs
                    raise
                problem = first_line(error)
            # Outside of the handler, where the error's traceback would hold the tensors of the attempt (PyTorch's FAQ).
            self._double_parts(batch, problem)
            statistics.restore()

    def _parts(self, batch: Batch) -> int:
        """Return in how many parts a batch is computed: as configured, or as memory forces."""
        return min(max(self.plan.accumulation, self.state.parts), len(batch))

    def _double_parts(self, batch: Batch, problem: str) -> None:
        parts, alone = self._parts(batch), self.processes.count == 1
        if parts >= len(batch):
            how = "one image is too much"
        elif not alone:
            how = "set train_config.gradient_accumulation_steps higher; processes do not split a batch by themselves"
        elif self.module is not self.losses:
            how = "CUDA graphs learn from a batch at once; a smaller batch_size needs less"
        else:
            how = ""
        if how:
            raise TrainingError(f"step {self.state.step + 1}: not enough memory: {how} ({problem})")
        self.state.optimizer.zero_grad()
        free_cached_memory()
        self.state.parts = min(parts * 2, len(batch))
        self.processes.log.info(
            f"not enough memory for a batch at once: learning from it in {self.state.parts} parts from here on"
        )

    def _finish_gradients(self) -> list[Tensor]:
        """Undo float16's scale, add the penalty's gradients, multiply biases'; return all gradients."""
        state = self.state
        if state.scaler.is_enabled():
            state.scaler.unscale_(cast(Any, state.optimizer))  # reads its groups alone
        # Penalties carry no scale of float16's, so they come after it is undone.
        if self.plan.regularize:
            add_penalty_gradients(state.detector.network)
        biases = self.trainable.bias_gradients() if self.plan.bias_multiplier != 1 else []
        if biases:  # none where all convolutions are normalized: PyTorch takes no empty list
            torch._foreach_mul_(biases, self.plan.bias_multiplier)
        return present_gradients(state.detector.network)

    def _update(self, finite: Tensor | None, statistics: Snapshot, *, skipped: bool) -> None:
        """Update the weights, and their average.

        Args:
            finite: Where it is false on the device, nothing changes, and statistics go back; None where all is finite.
            skipped: Whether the scaler is to leave the update out.
        """
        state = self.state
        try:
            if finite is None:
                state.scaler.step(cast(Any, state.optimizer))
                state.scaler.update()
            else:
                state.optimizer.step(finite=finite)
            if state.average is not None and not skipped:
                state.average.update(state.detector.network, state.step, finite=finite)
            if finite is not None:
                statistics.restore(unless=finite)
        except RuntimeError as error:
            if not is_out_of_memory(error):
                raise
            raise TrainingError(
                f"step {state.step + 1}: not enough memory to update the weights ({first_line(error)}); "
                "a smaller network, or an optimizer that remembers less of each weight, needs less"
            ) from None

    def _trainable(self) -> Trainable:
        network = self.state.detector.network
        return Trainable(network, self.plan.freezing, names_of(network))
