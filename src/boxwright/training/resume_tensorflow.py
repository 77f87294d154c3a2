"""Resuming a run that TensorFlow began: weights, moments, averages and the step of its newest checkpoint."""

from __future__ import annotations

from pathlib import Path

import torch

from boxwright.base.errors import CheckpointError
from boxwright.nn.optimization.optimizers import Adam, Momentum, MomentumTF1, RMSProp, RMSPropTF1, UpdateRule
from boxwright.training.state import TrainingState
from boxwright.weights.load_weights import load_weights
from boxwright.weights.tensorflow.checkpoint import open_tensorflow, step_of
from boxwright.weights.tensorflow.variables import slots_of, updates_of, written_by

# Rule, and TensorFlow that wrote → our slot → its own, and the sign that it has here: Keras's momentum points down.
_SLOTS: dict[tuple[type[UpdateRule], int], dict[str, tuple[str, int]]] = {
    (Momentum, 2): {"momentum": ("momentum", -1)},
    (RMSProp, 2): {"squares": ("rms", 1), "momentum": ("momentum", 1)},
    (Adam, 2): {"mean": ("m", 1), "squares": ("v", 1)},
    (MomentumTF1, 1): {"momentum": ("Momentum", 1)},
    (RMSPropTF1, 1): {"squares": ("RMSProp", 1), "momentum": ("RMSProp_1", 1)},
    (Adam, 1): {"mean": ("Adam", 1), "squares": ("Adam_1", 1)},
}


def resume_tensorflow(state: TrainingState, checkpoint: Path, batch_size: int) -> str:
    """Restore a checkpoint of TensorFlow's training.

    Args:
        checkpoint: As `find_tensorflow` finds it.

    Returns:
        What was restored, for the log.

    Raises:
        CheckpointError: Where a weight is missing, or a moment has another shape than its weight.
    """
    detector, optimizer = state.detector, state.optimizer
    loaded = load_weights(detector, checkpoint)
    arrays = open_tensorflow(checkpoint)
    network = detector.network
    parameters = {name: p for name, p in network.named_parameters() if p.requires_grad}
    said = [str(loaded)]
    restored = 0
    for ours, (theirs, sign) in _SLOTS.get((type(optimizer.rule), written_by(arrays)), {}).items():
        found = slots_of(network, arrays, theirs)
        for name, value in found.items():
            if name in parameters:
                parameter = parameters[name]
                if value.shape != parameter.shape:
                    raise CheckpointError(
                        f"{checkpoint}: {theirs} of {name} has shape {list(value.shape)}, not {list(parameter.shape)}"
                    )
                # In the weight's memory format, so that updates of tensor lists stay a few kernels.
                kept = torch.empty_like(parameter)
                optimizer.state.setdefault(parameter, {})[ours] = kept.copy_(sign * value).detach()
        restored = sum(name in parameters for name in found)
        said.append(f"{theirs}: restored for {restored} of {len(parameters)} weights; others start fresh")
    if state.average is not None:
        names = {name: p.detach() for name, p in parameters.items()}
        averages = {n: v.to(names[n]) for n, v in slots_of(network, arrays, "average").items() if n in names}
        state.average.load({**state.average.followed(network), **averages})
        said.append(f"average: restored for {len(averages)} of {len(names)} weights; others start at the weight")
    state.step = step_of(arrays)
    # TF's checkpoint has no position in the data; the stream continues where a run of ours would be at this step.
    state.samples = state.step * batch_size
    for group in optimizer.param_groups:
        # Where moments start fresh, so do corrections for their start.
        group["count"] = updates_of(arrays, state.step) if restored else 0
    return "\n".join(said)
