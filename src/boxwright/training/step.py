"""A training step: forward, losses, backward, clip, update, average, report; in one process or many.

The losses of a batch are sums divided by counts, such as its matched anchors. Gradients of parts are summed, and counts
of parts and processes too, so that each split of a batch gives the same losses and gradients.

A step whose losses or gradients are NaN or infinite changes nothing. On the CPU, and in float16, that is known before
the update. On a GPU the program does not wait to know: the device leaves the update out by a flag, and the program
reads the step's numbers while the next step runs.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any, cast

import torch
from torch import Tensor, nn
from torch.profiler import record_function

from boxwright.base.device import free_cached_memory, is_out_of_memory, random_devices
from boxwright.base.distributed import Processes, is_sharded_module
from boxwright.base.errors import TrainingError, first_line
from boxwright.data.batch import Batch
from boxwright.nn.criteria.criterion import REGULARIZATION, TOTAL, Description, LossTerm
from boxwright.nn.drop_path import drop_paths
from boxwright.nn.optimization.optimizers import global_norm
from boxwright.nn.optimization.trainable import Trainable
from boxwright.nn.optimization.undo import Snapshot, undone_on_error
from boxwright.nn.regularization import add_penalty_gradients
from boxwright.pipeline.training import TrainingPlan
from boxwright.training.losses import ForwardResult, LossModule, check_capture, data_parallel, exchanging_gradients
from boxwright.training.sharding import freeze_whole_weights, shard_state
from boxwright.training.state import Counters, TrainingState, seed_step
from boxwright.types import Targets
from boxwright.weights.tensorflow.variables import parameter_names


@dataclass(frozen=True)
class StepReport:
    """What a step reports.

    Attributes:
        before: Of the state, when the step began.
        numbers: Their values, of the whole batch, and the norm of all gradients together, before clipping; on the CPU,
            where they may still be on their way.
        arrived: The event to wait for before numbers are read from a GPU.
        batch: This process's part of the batch, until it is known whether the step was finite; else None.
        description: How the batch was assigned, where that was asked for; of the last part.
        skipped: Whether the weights stayed, as float16 gradients overflowed.
    """

    before: Counters
    names: tuple[str, ...]
    numbers: Tensor
    arrived: torch.cuda.Event | None
    rate: float
    batch: Batch | None
    description: Description | None = None
    skipped: bool = False

    @cached_property
    def losses(self) -> dict[str, float]:
        """TF's loss names to values; waits for the step."""
        return dict(zip(self.names, self._read[:-1], strict=True))

    @property
    def gradient_norm(self) -> float:
        """Return the norm of all gradients together, before clipping; waits for the step."""
        return self._read[-1]

    @property
    def finite(self) -> bool:
        """Whether all numbers are; waits for the step."""
        return all(math.isfinite(number) for number in self._read)

    def finished(self, description: Description | None, *, pending: bool, skipped: bool) -> StepReport:
        """Return the report of a step that has been taken.

        Args:
            pending: Whether it is not known yet if the step was finite.
        """
        return replace(self, description=description, skipped=skipped, batch=self.batch if pending else None)

    @cached_property
    def _read(self) -> list[float]:
        if self.arrived is not None:
            self.arrived.synchronize()
        return list(self.numbers.tolist())


def send_report(
    before: Counters, losses: Mapping[str, Tensor], numbers: Tensor, rate: float, batch: Batch
) -> StepReport:
    """Send a step's numbers to the CPU without waiting for them.

    Args:
        numbers: Their values and the norm of the gradients, [n + 1], on the device.
    """
    arrived = None
    if numbers.is_cuda:
        numbers = numbers.to("cpu", non_blocking=True)  # into pinned memory
        arrived = torch.cuda.Event()
        arrived.record()
    return StepReport(before, tuple(losses), numbers, arrived, rate, batch)


# Below this scale float16 gradients do not overflow for their size: they are not finite.
_LEAST_SCALE = 2.0**-10


class NotFiniteError(TrainingError):
    """A loss or gradient is NaN or infinite; the state is as before the step.

    Attributes:
        batch: What was to be learned from, this process's part of it.
    """

    def __init__(self, report: StepReport, batch: Batch) -> None:
        """Describe the step."""
        losses, norm = report.losses, report.gradient_norm
        what = "gradient" if all(math.isfinite(loss) for loss in losses.values()) else "loss"
        terms = ", ".join(f"{name} {value:g}" for name, value in losses.items())
        super().__init__(
            f"step {report.before.step + 1}: the {what} is not finite: {terms}; gradient norm {norm:g}; "
            f"learning rate {report.rate:g}"
        )
        self.losses, self.gradient_norm, self.batch = losses, norm, batch


def check_step(report: StepReport | None, state: TrainingState) -> None:
    """Go back to before the step where it was not finite, if that is not known yet; waits for it.

    Statistics of normalization are not among what goes back: a step restores them itself.

    Args:
        report: What the step reported; None if there was none.
    """
    # A report lost its batch when the step was known to be finite; reading it again would cost a wait.
    if report is None or report.batch is None or report.finite:
        return
    state.go_back(report.before)
    state.scaler.update()  # a scaler that is not told of the end of a step refuses the next
    raise NotFiniteError(report, report.batch)


def all_finite(numbers: Tensor) -> Tensor:
    """Return whether all numbers are, a bool scalar on their device."""
    # NaN and infinities minus themselves are NaN, which equals nothing.
    return (numbers - numbers == 0).all()


def overflowed(report: StepReport, scaler: torch.amp.GradScaler) -> bool:
    """Return whether gradients were too large for float16, which a smaller scale cures; in float16 this waits."""
    return (
        scaler.is_enabled()
        and all(math.isfinite(loss) for loss in report.losses.values())
        and not math.isfinite(report.gradient_norm)
        and scaler.get_scale() > _LEAST_SCALE
    )


@dataclass(frozen=True)
class BatchLosses:
    """The losses of a batch whose gradients have been computed.

    Attributes:
        values: TF's names of the losses to scalars, of the whole batch in all processes; the total is the last.
        passes: Training passes of the network, one for each part of the batch.
    """

    values: dict[str, Tensor]
    predictions: Any
    targets: Targets
    passes: int


def accumulate_gradients(
    losses: LossModule, module: nn.Module, parts: Sequence[Batch], scaler: torch.amp.GradScaler, processes: Processes
) -> BatchLosses:
    """Run forward and backward for each part of a batch, summing the gradients.

    Args:
        module: The same, wrapped for graphs or for other processes where it is.
        parts: This process's part of the batch, cut.
    """
    sums: dict[str, Tensor] = {}
    counts: list[Tensor] = []
    correction = None
    for number, part in enumerate(parts):
        last = number == len(parts) - 1
        # Gradients of the parts add up in place and are exchanged once, with the last.
        with exchanging_gradients(module, enabled=last):
            forward: ForwardResult = module(part.images, part.true_sizes, part.targets)
            counts.append(_counts(forward.terms))
            if number == 0:
                # One count can be estimated, as one factor corrects all gradients at the end; for several none could.
                estimated = len(parts) > 1 and LossTerm.share_count(forward.terms)
                if estimated:
                    whole = counts[0] * len(parts)
                elif len(parts) > 1 and len(counts[0]):
                    whole = counts[0] + compute_counts(losses, parts[1:])
                else:
                    whole = counts[0]
                divisors = _divisors(forward.terms, whole, processes)
            values = _divided(forward.terms, divisors)
            # DistributedDataParallel averages over processes; the losses are to be summed.
            objective = values.sum() * processes.count
            if estimated and last:
                correction = _correction(divisors, counts, processes)
            with record_function("backward"):
                torch.autograd.backward(scaler.scale(objective))
        for name, value in zip(forward.terms, values.detach(), strict=True):
            sums[name] = sums[name] + value if name in sums else value
    if correction is not None:
        torch._foreach_mul_(present_gradients(losses.detector.network), correction)
        sums = {name: value * correction for name, value in sums.items()}
    sums = dict(zip(sums, processes.total(torch.stack(list(sums.values()))), strict=True))
    if forward.penalty is not None:
        sums[REGULARIZATION] = forward.penalty
    sums[TOTAL] = torch.stack(list(sums.values())).sum()
    return BatchLosses(sums, forward.predictions, part.targets, len(parts))


def _divided(terms: Mapping[str, LossTerm], divisors: Mapping[str, Tensor]) -> Tensor:
    """Return the totals of terms over their divisors, where they have any, [n]."""
    # All at once: of a dozen terms, each would be a division of its own and two in the backward pass.
    totals = torch.stack([term.total for term in terms.values()])
    if not divisors:
        return totals
    one = totals.new_ones(())
    return totals / torch.stack([divisors.get(name, one) for name in terms])


def present_gradients(network: nn.Module) -> list[Tensor]:
    """Return the gradients of the weights that have one."""
    return [p.grad for p in network.parameters() if p.grad is not None]


def _counts(terms: Mapping[str, LossTerm]) -> Tensor:
    """Return the counts of the terms that are divided, [n], in order."""
    counts = [term.count.reshape(-1) for term in terms.values() if term.count is not None]
    return torch.cat(counts) if counts else torch.zeros(0)


@torch.no_grad()
def compute_counts(losses: LossModule, parts: Sequence[Batch]) -> Tensor:
    """Return the counts of some parts together, [n], after a forward pass of each that leaves no trace."""
    counts = []
    # Dropout and samplers draw here what they will draw when these parts have their turn, so the counts are the same.
    with torch.random.fork_rng(random_devices(parts[0].images.device)):
        for part in parts:
            # Copies take the changes of normalization's statistics, which a backward pass to come still reads.
            buffers = {name: buffer.clone() for name, buffer in losses.named_buffers()}
            arguments = (part.images, part.true_sizes, part.targets)
            counts.append(_counts(torch.func.functional_call(losses, buffers, arguments).terms))
    return torch.stack(counts).sum(0)


def _divisors(terms: Mapping[str, LossTerm], counts: Tensor, processes: Processes) -> dict[str, Tensor]:
    """Return what each term that is divided is divided by, over all processes.

    Args:
        counts: This process's, [n], in the order of those terms.
    """
    divided = {name: term.count for name, term in terms.items() if term.count is not None}
    if not divided:
        return {}
    totals = processes.total(counts).split([count.numel() for count in divided.values()])
    return {
        name: terms[name].divided_by(total.view(count.shape))
        for (name, count), total in zip(divided.items(), totals, strict=True)
    }


def _correction(divisors: Mapping[str, Tensor], counts: Sequence[Tensor], processes: Processes) -> Tensor:
    """Return the factor from losses divided by an estimate of their one count to losses divided by the count.

    Args:
        counts: Of each part, [n] with n times the one count.
    """
    estimate = next(iter(divisors.values()))
    return estimate / processes.total(torch.stack([part_counts[0] for part_counts in counts]).sum()).clamp(min=1.0)


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
        network = state.detector.network
        self.trainable = Trainable(network, plan.freezing, parameter_names(network))
        self.trainable.begin(state.step)
        self.losses = LossModule(state.detector, plan)
        self.module: nn.Module = self.losses
        self.learning: frozenset[str] = frozenset()
        self.drop_paths = drop_paths(state.detector.network)

    def shard(self) -> None:
        """Spread weights, averages and slots over the processes; no step has been taken yet."""
        shard_state(self.losses, self.state, self.processes.count)
        self.trainable = self.trainable.rebound(self.state.detector.network)

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
                out an update where they are not; the report is to be checked by the next step or `check_step`.

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
                check_step(previous, state)  # weights that are not finite explain whatever they bring about
                raise
            with record_function("optimizer"):
                gradients = self._finish_gradients()
                network.observe_gradients()
                norm = global_norm(gradients)
                numbers = torch.stack([*losses.values.values(), norm])
                report = send_report(before, losses.values, numbers, rate, batch)
                check_step(previous, state)
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
        """Unfreeze what the configuration begins to train at this step; rewrap the module when other weights learn."""
        self.trainable.advance(self.state.step)
        learning = self.trainable.learning()
        if not learning:
            raise TrainingError(
                f"step {self.state.step + 1}: nothing learns: requires_grad is False for all weights of the network"
            )
        if learning == self.learning:
            return
        self.state.changed_freezing = self.trainable.changed(self.state.step)
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
