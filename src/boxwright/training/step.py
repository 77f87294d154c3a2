"""One training step: losses, gradients, update; in one process or many, whole or in parts.

The losses of a batch are sums divided by counts, such as its matched anchors. The counts of all processes are
added up, so that N processes with a batch of B/N each do what one does with B. A batch that is too large for the
memory is learnt from in parts: their gradients are summed.
"""

from __future__ import annotations

import warnings
from collections.abc import Sequence
from contextlib import AbstractContextManager, nullcontext, suppress
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

import torch
from torch import Tensor, nn
from torch.distributed.fsdp import FSDPModule
from torch.distributed.tensor import DTensor
from torch.nn.parallel import DistributedDataParallel
from torch.profiler import record_function

from boxwright.base.errors import TrainingError, first_line
from boxwright.builders.training import TrainingPlan
from boxwright.criteria.criterion import Description
from boxwright.criteria.terms import REGULARIZATION, TOTAL, LossTerm
from boxwright.data.batch import Batch
from boxwright.device import free_cached_memory, is_out_of_memory, random_devices
from boxwright.distributed import Processes, gathered
from boxwright.models.regularization import add_penalty_gradients
from boxwright.optimization.trainable import Trainable
from boxwright.optimization.undo import Kept
from boxwright.tensorflow.variables import names_of
from boxwright.training.graphs import check_capture
from boxwright.training.losses import Forward, LossModule
from boxwright.training.sharding import learn_as_their_rows, shard_state
from boxwright.training.state import TrainingState, seed_step
from boxwright.types import Targets

# Below this scale float16 gradients do not overflow for their size: they are not finite.
_LEAST_SCALE = 2.0**-10


@dataclass(frozen=True)
class StepResult:
    """What a step found.

    Attributes:
        names: TF's names of the losses.
        numbers: Their values, of the whole batch, and the norm of all gradients together, before clipping; on the CPU,
            where they may still be on their way.
        arrived: Whoever reads numbers from a GPU waits for this first.
        rate: The learning rate.
        description: How the batch was assigned, where that was asked for; of the last part.
        skipped: Whether the weights stayed, as float16 gradients overflowed.
    """

    names: tuple[str, ...]
    numbers: Tensor
    arrived: torch.cuda.Event | None
    rate: float
    description: Description | None = None
    skipped: bool = False

    @cached_property
    def losses(self) -> dict[str, float]:
        """TF's loss names to values; waits for the step."""
        return dict(zip(self.names, self._read[:-1], strict=True))

    @property
    def gradient_norm(self) -> float:
        """Of all gradients together, before clipping; waits for the step."""
        return self._read[-1]

    @cached_property
    def _read(self) -> list[float]:
        if self.arrived is not None:
            self.arrived.synchronize()
        return list(self.numbers.tolist())

    @property
    def finite(self) -> bool:
        """Whether all numbers are; waits for the step."""
        return all(_finite(number) for number in self._read)


class NotFiniteError(TrainingError):
    """A loss or gradient is NaN or infinite; the state is as before the step.

    Attributes:
        losses: TF's loss names to values.
        gradient_norm: Of all gradients together.
        batch: What was to be learned from, this process's part of it.
    """

    def __init__(self, step: int, found: StepResult, batch: Batch) -> None:
        """Say what was found.

        Args:
            step: The step's number, from 1.
            batch: What was to be learned from.
        """
        super().__init__(_not_finite_text(step, found.losses, found.gradient_norm, found.rate))
        self.losses, self.gradient_norm, self.batch = found.losses, found.gradient_norm, batch


class Learner:
    """Takes the steps of a run."""

    def __init__(
        self,
        state: TrainingState,
        plan: TrainingPlan,
        processes: Processes,
    ) -> None:
        """Set up.

        Args:
            state: What is trained; its weights and step change.
        """
        self.state, self.plan, self.processes = state, plan, processes
        self.trainable = self._trainable()
        self.losses = LossModule(state.detector, plan)
        self.module: nn.Module = self.losses
        self._wrapped_for: frozenset[str] | None = None
        # Of the step under way: the statistics before it, and whether weights are half-changed.
        self._statistics: Kept | None = None
        self._updating = False
        # The step before, where it was not waited for.
        self._unread: tuple[StepResult, Batch] | None = None

    def shard(self) -> None:
        """Spread weights, averages and slots over the processes; no step has been taken yet."""
        shard_state(self.losses, self.state, self.processes.count)
        self.trainable = self._trainable()

    def learn(self, batch: Batch, *, describe: bool = False, wait: bool = True) -> StepResult:
        """Learn from a batch.

        Args:
            batch: This process's part of it, on the device.
            describe: Whether to say how it was assigned.
            wait: Whether to know before the update that losses and gradients are finite. Without, the device leaves
                out an update where they are not, and the program hears of it in the next step or by `look_back`.

        Raises:
            NotFiniteError: Where a loss or gradient is not finite, of this step or of one before that was not waited
                for; the state is as before that step.
            TrainingError: Where the memory does not hold one image.
        """
        state, plan = self.state, self.plan
        self._thaw()
        rate = plan.optimizer.schedule(state.step)
        for group in state.optimizer.param_groups:
            group["lr"] = rate
        self._statistics = Kept(state.detector.network.statistics())
        try:
            losses, predictions, targets = self._gradients(batch)
        except Exception:
            self.look_back()  # weights that are not finite are the cause of whatever they bring about
            raise
        with record_function("optimizer"):
            gradients, norm = self._finish_gradients()
            numbers = torch.stack([*losses.values(), norm])
            found, finite = _arriving(tuple(losses), numbers, rate), None
            self.look_back()
            overflow = state.scaler.is_enabled() and self._overflowed(found)
            if not state.scaler.is_enabled() and not wait:
                self._unread, finite = (found, batch), (numbers - numbers == 0).all()
            elif not overflow and not found.finite:
                self._undo_statistics()
                state.scaler.update()  # a scaler that is not told of the end of a step refuses the next
                raise NotFiniteError(state.step + 1, found, batch)
            if plan.clip_norm > 0 and not overflow:
                # As tf.clip_by_global_norm: no epsilon in the divisor.
                torch._foreach_mul_(gradients, (plan.clip_norm / norm).clamp(max=1.0))
            self._update(overflow, finite)
        state.step += 1
        state.samples += plan.stream.batch_size
        self._statistics, self._updating = None, False
        description = state.detector.criterion.describe(predictions, targets) if describe else None
        return replace(found, description=description, skipped=overflow)

    def _update(self, overflow: bool, finite: Tensor | None) -> None:
        """Change the weights, and let the average follow them; nothing changes where the device knows of a reason."""
        state = self.state
        self._updating = True
        try:
            if finite is None:
                state.scaler.step(state.optimizer)
                state.scaler.update()
            else:
                state.optimizer.step(finite=finite)
            if state.average is not None and not overflow:
                state.average.update(state.detector.network, state.step, finite=finite)
            if self._statistics is not None and finite is not None:
                self._statistics.restore(unless=finite)
        except RuntimeError as error:
            if not is_out_of_memory(error):
                raise
            raise TrainingError(
                f"step {state.step + 1}: not enough memory to update the weights ({first_line(error)}); "
                "a smaller network, or an optimizer that remembers less of each weight, needs less"
            ) from None

    def look_back(self) -> None:
        """Find out whether the last step was finite, where it was not waited for.

        Raises:
            NotFiniteError: Where it was not; the state is as before it.
        """
        if self._unread is None:
            return
        (found, batch), self._unread = self._unread, None
        if not found.finite:
            self._undo_statistics()  # of a step that has begun since; the device changed nothing else
            self.state.step -= 1
            self.state.samples -= self.plan.stream.batch_size
            for group in self.state.optimizer.param_groups:
                group["count"] -= 1
            self._statistics = None
            raise NotFiniteError(self.state.step + 1, found, batch)

    def untie(self) -> None:
        """Let go of the other processes, so that their group can be ended: torch 2.8 waits for ever where not."""
        self.module, self._wrapped_for = self.losses, None

    def settle(self) -> bool:
        """Go back to the last step that is known to be finite, and return whether the state is whole.

        Returns:
            False where the weights themselves were being changed.
        """
        self._undo_statistics()
        if not self._updating:
            with suppress(NotFiniteError):
                self.look_back()
        return not self._updating

    def _undo_statistics(self) -> None:
        if self._statistics is not None:
            self._statistics.restore()

    def _trainable(self) -> Trainable:
        network = self.state.detector.network
        return Trainable(network, self.plan.freezing, names_of(network))

    def _thaw(self) -> None:
        """Let learn what may at this step; processes are tied anew where that changed."""
        names = self.trainable.apply(self.state.step)
        if names == self._wrapped_for:
            return
        self._wrapped_for = names
        if isinstance(self.losses, FSDPModule):
            learn_as_their_rows(self.losses)
        elif self.processes.count > 1:
            self.module = _tied(self.losses)

    def _gradients(self, batch: Batch) -> tuple[dict[str, Tensor], Any, Targets]:
        """Compute losses and gradients, in more parts where the memory is too small."""
        while True:
            seed_step(self.state.seed, self.state.step, self.processes.rank)
            self.state.optimizer.zero_grad(set_to_none=True)
            try:
                return self._gradients_in_parts(batch)
            except RuntimeError as error:
                if not is_out_of_memory(error):
                    check_capture(error)  # a backward pass is compiled when it first runs
                    raise
                problem = first_line(error)
            self._split_further(batch, problem)
            self._undo_statistics()

    def _split_further(self, batch: Batch, problem: str) -> None:
        parts = self._parts(batch)
        if parts >= len(batch) or self.module is not self.losses or self.processes.count > 1:
            how = "one image is too much"
            if parts < len(batch) and self.processes.count == 1:
                how = "CUDA graphs learn from a batch at once; a smaller batch_size needs less"
            elif parts < len(batch):
                how = (
                    "set train_config.gradient_accumulation_steps higher; processes do not split a batch by themselves"
                )
            raise TrainingError(f"step {self.state.step + 1}: not enough memory: {how} ({problem})")
        self.state.optimizer.zero_grad(set_to_none=True)
        free_cached_memory()
        self.state.parts = min(parts * 2, len(batch))
        self.processes.log.info(
            f"not enough memory for a batch at once: learning from it in {self.state.parts} parts from here on"
        )

    def _gradients_in_parts(self, batch: Batch) -> tuple[dict[str, Tensor], Any, Targets]:
        """Run forward and backward; `Loss/total_loss` is added to the losses."""
        pieces = batch.split(self._parts(batch))
        sums: dict[str, Tensor] = {}
        counts: list[Tensor] = []
        divisors: list[Tensor] = []
        for number, piece in enumerate(pieces):
            last = number == len(pieces) - 1
            with _adding_up(self.module, last=last):
                found: Forward = self.module(piece.images, piece.true_sizes, piece.targets)
                counts.append(_stacked(LossTerm.distinct_counts(found.terms)))
                if number == 0:
                    divisors = self._divisors(found.terms, counts[0], pieces[1:])
                losses = _divided(found.terms, divisors)
                # DistributedDataParallel averages over processes; the losses are to be summed.
                objective = torch.stack(list(losses.values())).sum() * self.processes.count
                correction = self._correction(divisors, counts) if last and len(pieces) > 1 else None
                with record_function("backward"):
                    torch.autograd.backward(self.state.scaler.scale(objective))
            for name, value in losses.items():
                sums[name] = sums[name] + value.detach() if name in sums else value.detach()
        if correction is not None:
            torch._foreach_mul_(self._present_gradients(), correction)
            sums = {name: value * correction for name, value in sums.items()}
        sums = dict(zip(sums, self.processes.total(torch.stack(list(sums.values()))), strict=True))
        if found.penalty is not None:
            sums[REGULARIZATION] = found.penalty
        sums[TOTAL] = torch.stack(list(sums.values())).sum()
        return sums, found.predictions, piece.targets

    def _divisors(self, terms: dict[str, LossTerm], counts: Tensor, others: Sequence[Batch]) -> list[Tensor]:
        """Return what each distinct count of the first part's terms is divided by.

        A batch in one part is divided by its count over all processes. In several parts the count is known after
        the last of them: where all terms have the same one, a guess serves, and gradients are put right at the end.
        Where they have several, no one factor could, so the other parts are counted first.
        """
        together = len(counts) == 1 and all(term.count is not None for term in terms.values())
        if others and not together and len(counts):
            counts = counts + self._count(others)
        elif others:
            counts = counts * (1 + len(others))
        return list(self.processes.total(counts).clamp(min=1.0).unbind()) if len(counts) else []

    def _correction(self, divisors: list[Tensor], counts: list[Tensor]) -> Tensor | None:
        """Return what summed gradients are multiplied with; None where the divisors were no guess."""
        if len(divisors) != 1:
            return None
        return divisors[0] / self.processes.total(torch.stack(counts).sum()).clamp(min=1.0)

    @torch.no_grad()
    def _count(self, pieces: Sequence[Batch]) -> Tensor:
        """Return the distinct counts of some parts of a batch, [n], and leave no trace of looking at them."""
        device = next(self.state.detector.network.parameters()).device
        found = []
        with torch.random.fork_rng(random_devices(device)):
            for piece in pieces:
                # Copies take the changes of normalization's statistics, which a backward pass to come still reads.
                buffers = {name: buffer.clone() for name, buffer in self.losses.named_buffers()}
                arguments = (piece.images, piece.true_sizes, piece.targets)
                found.append(torch.func.functional_call(self.losses, buffers, arguments).terms)
        return torch.stack([_stacked(LossTerm.distinct_counts(terms)) for terms in found]).sum(0)

    def _parts(self, batch: Batch) -> int:
        """Say in how many parts a batch is learnt from: as asked for, or as memory forces."""
        return min(max(self.plan.accumulation, self.state.parts), len(batch))

    def _present_gradients(self) -> list[Tensor]:
        return [p.grad for p in self.state.detector.network.parameters() if p.grad is not None]

    def _finish_gradients(self) -> tuple[list[Tensor], Tensor]:
        """Undo float16's scale, add the penalty's gradients, multiply biases'; return all gradients and their norm."""
        state = self.state
        if state.scaler.is_enabled():
            state.scaler.unscale_(state.optimizer)
        if self.plan.regularize:
            add_penalty_gradients(state.detector.network)
        if self.plan.bias_multiplier != 1:
            torch._foreach_mul_(self.trainable.bias_gradients(), self.plan.bias_multiplier)
        gradients = self._present_gradients()
        return gradients, _total_norm(gradients)

    def _overflowed(self, found: StepResult) -> bool:
        """Tell gradients too large for float16, which a smaller scale cures, from what is not finite at all."""
        return (
            all(_finite(loss) for loss in found.losses.values())
            and not _finite(found.gradient_norm)
            and self.state.scaler.get_scale() > _LEAST_SCALE
        )


def _adding_up(module: nn.Module, *, last: bool) -> AbstractContextManager[None]:
    """Return what holds while a part is learnt from: before the last one gradients stay in this process, and add up."""
    if isinstance(module, FSDPModule):
        module.set_requires_gradient_sync(last)
    return module.no_sync() if isinstance(module, DistributedDataParallel) and not last else nullcontext()


def _tied(losses: LossModule) -> DistributedDataParallel:
    """Return losses whose gradients are averaged over the processes."""
    # Depthwise kernels lie in memory the same under two strides; nothing is copied.
    warnings.filterwarnings("ignore", message="Grad strides do not match bucket view strides")
    device = next(losses.parameters()).device
    return DistributedDataParallel(
        losses,
        device_ids=[device.index] if device.type == "cuda" else None,
        gradient_as_bucket_view=True,
        # Statistics are read in evaluations and checkpoints alone, which take the leader's; training reads a batch's.
        broadcast_buffers=False,
    )


def _arriving(names: tuple[str, ...], numbers: Tensor, rate: float) -> StepResult:
    """Send a step's numbers to the CPU, waiting for nothing."""
    arrived = None
    if numbers.is_cuda:
        numbers = numbers.to("cpu", non_blocking=True)  # into pinned memory
        arrived = torch.cuda.Event()  # type: ignore[no-untyped-call]  # torch's
        arrived.record()
    return StepResult(names, numbers, arrived, rate)


def _total_norm(gradients: list[Tensor]) -> Tensor:
    """Return the norm of all gradients together, a scalar; of those that are spread over processes, the whole ones'."""
    if not gradients or any(isinstance(one, DTensor) for one in gradients):
        return gathered(torch.nn.utils.get_total_norm(gradients))
    norm: Tensor = torch.linalg.vector_norm(torch.stack(torch._foreach_norm(gradients)))
    return norm


def _stacked(counts: list[Tensor]) -> Tensor:
    return torch.stack(counts) if counts else torch.zeros(0)


def _divided(terms: dict[str, LossTerm], divisors: list[Tensor]) -> dict[str, Tensor]:
    """Divide each term by what stands for its count."""
    distinct = zip(LossTerm.distinct_counts(terms), divisors, strict=True)
    by_count = {id(count): divisor for count, divisor in distinct}
    return {
        name: term.total if term.count is None else term.total / by_count[id(term.count)]
        for name, term in terms.items()
    }


def _finite(value: float) -> bool:
    return value - value == 0


def _not_finite_text(step: int, losses: dict[str, float], norm: float, rate: float) -> str:
    what = "gradient" if all(_finite(loss) for loss in losses.values()) else "loss"
    terms = ", ".join(f"{name} {value:g}" for name, value in losses.items())
    return f"step {step}: the {what} is not finite: {terms}; gradient norm {norm:g}; learning rate {rate:g}"
