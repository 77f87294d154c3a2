"""Losses and gradients of a batch that is computed in one part or in several, by one process or many.

The losses of a batch are sums divided by counts, such as its matched anchors. Gradients of parts are summed, and counts
of parts and processes too, so that each split of a batch gives the same losses and gradients.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.profiler import record_function

from boxwright.base.device import random_devices
from boxwright.base.distributed import Processes
from boxwright.data.batch import Batch
from boxwright.nn.criteria.terms import REGULARIZATION, TOTAL, LossTerm
from boxwright.training.data_parallel import exchanging_gradients
from boxwright.training.losses import ForwardResult, LossModule
from boxwright.types import Targets


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
                # Of one count an estimate serves: one factor corrects all gradients at the end. Of several none could.
                estimated = len(parts) > 1 and LossTerm.share_count(forward.terms)
                if estimated:
                    whole = counts[0] * len(parts)
                elif len(parts) > 1 and len(counts[0]):
                    whole = counts[0] + counts_of(losses, parts[1:])
                else:
                    whole = counts[0]
                divisors = _divisors(forward.terms, whole, processes)
            values = _divided(forward.terms, divisors)
            # DistributedDataParallel averages over processes; the losses are to be summed.
            objective = torch.stack(list(values.values())).sum() * processes.count
            if estimated and last:
                correction = _correction(divisors, counts, processes)
            with record_function("backward"):
                torch.autograd.backward(scaler.scale(objective))
        for name, value in values.items():
            sums[name] = sums[name] + value.detach() if name in sums else value.detach()
    if correction is not None:
        torch._foreach_mul_(present_gradients(losses.detector.network), correction)
        sums = {name: value * correction for name, value in sums.items()}
    sums = dict(zip(sums, processes.total(torch.stack(list(sums.values()))), strict=True))
    if forward.penalty is not None:
        sums[REGULARIZATION] = forward.penalty
    sums[TOTAL] = torch.stack(list(sums.values())).sum()
    return BatchLosses(sums, forward.predictions, part.targets, len(parts))


def present_gradients(network: nn.Module) -> list[Tensor]:
    """Return the gradients of the weights that have one."""
    return [p.grad for p in network.parameters() if p.grad is not None]


def _counts(terms: Mapping[str, LossTerm]) -> Tensor:
    """Return the counts of the terms that are divided, [n], in order."""
    counts = [term.count.reshape(-1) for term in terms.values() if term.count is not None]
    return torch.cat(counts) if counts else torch.zeros(0)


@torch.no_grad()
def counts_of(losses: LossModule, parts: Sequence[Batch]) -> Tensor:
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


def _divided(terms: Mapping[str, LossTerm], divisors: Mapping[str, Tensor]) -> dict[str, Tensor]:
    return {name: term.total / divisors[name] if name in divisors else term.total for name, term in terms.items()}


def _correction(divisors: Mapping[str, Tensor], counts: Sequence[Tensor], processes: Processes) -> Tensor:
    """Return the factor from losses divided by an estimate of their one count to losses divided by the count.

    Args:
        counts: Of each part, [n] with n times the one count.
    """
    estimate = next(iter(divisors.values()))
    return estimate / processes.total(torch.stack([each[0] for each in counts]).sum()).clamp(min=1.0)
