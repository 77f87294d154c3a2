"""One training step."""

from __future__ import annotations

import torch
from torch import Tensor

from boxwright.builders.training import TrainingPlan
from boxwright.data.batch import Batch
from boxwright.errors import TrainingError
from boxwright.training.state import TrainingState

__all__ = ["compute_losses", "training_step"]


def compute_losses(state: TrainingState, batch: Batch, plan: TrainingPlan) -> dict[str, Tensor]:
    """Compute the losses of a batch.

    Args:
        state: The run.
        batch: On any device.
        plan: How.

    Returns:
        TF's loss names to scalars, `Loss/total_loss` among them.
    """
    detector = state.detector
    device = next(detector.parameters()).device
    inputs = detector.preprocessor.normalize(batch.images.to(device, non_blocking=True), batch.true_sizes)
    with torch.autocast(device.type, torch.bfloat16, enabled=plan.bfloat16):
        predictions = detector.predict(inputs)
    losses = detector.criterion(predictions, batch.targets.to(device))
    if plan.regularize:
        losses["Loss/regularization_loss"] = detector.regularization().to(device)
    losses["Loss/total_loss"] = torch.stack(list(losses.values())).sum()
    return losses


def training_step(state: TrainingState, batch: Batch, plan: TrainingPlan) -> dict[str, float]:
    """Learn from a batch.

    Args:
        state: The run; its weights and step change.
        batch: What to learn from.
        plan: How.

    Returns:
        TF's loss names, and `learning_rate`, to values.

    Raises:
        TrainingError: Where the loss is not finite; weights are as before the step.
    """
    rate = plan.optimizer.schedule(state.step)
    for group in state.optimizer.param_groups:
        group["lr"] = rate
    losses = compute_losses(state, batch, plan)
    values = dict(zip(losses, torch.stack([v.detach() for v in losses.values()]).tolist(), strict=True))
    if not all(value - value == 0 for value in values.values()):
        raise TrainingError(
            f"step {state.step + 1}: the loss is not finite: "
            + ", ".join(f"{name} {value:g}" for name, value in values.items())
            + f"; learning rate {rate:g}; images {', '.join(batch.ids)}"
        )
    state.optimizer.zero_grad(set_to_none=True)
    torch.autograd.backward(losses["Loss/total_loss"])
    if plan.clip_norm > 0:
        torch.nn.utils.clip_grad_norm_(state.detector.network.parameters(), plan.clip_norm)
    state.optimizer.step()
    if state.average is not None:
        state.average.update(state.detector.network)
    state.step += 1
    return {**values, "learning_rate": rate}
