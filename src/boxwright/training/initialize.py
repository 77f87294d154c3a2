"""The detector that a run starts with: its classes and its first weights.

Those may come from a checkpoint; from timm, which downloads a backbone's from the Hugging Face Hub, once, into the
cache of `HF_HOME`; or, with moments, averages and the step, from a run that TensorFlow began.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path

import torch
from torch import Tensor, nn

from boxwright.base.distributed import Processes
from boxwright.base.errors import CheckpointError, ConfigError, first_line
from boxwright.data.dataset import Dataset
from boxwright.evaluation.data import check_same_classes
from boxwright.nn.backbones.timm_backbone import TimmBackbone
from boxwright.nn.detector import Detector
from boxwright.nn.optimization.optimizers import Adam, Momentum, MomentumTF1, RMSProp, RMSPropTF1, UpdateRule
from boxwright.pipeline import messages as m
from boxwright.pipeline.training import TrainingPlan
from boxwright.training.state import TrainingState
from boxwright.weights.find_weights import find_weights
from boxwright.weights.load_weights import load_weights
from boxwright.weights.pedigree import origins, timm_origins
from boxwright.weights.restore import other_meaning
from boxwright.weights.sources import is_tensorflow
from boxwright.weights.tensorflow.checkpoint import open_tensorflow, read_step
from boxwright.weights.tensorflow.variables import count_updates, read_slots, written_by
from boxwright.weights.zoo_archive import is_archive

Weights = Mapping[str, Tensor]


def load_pretrained(network: nn.Module, from_leader: Callable[[Callable[[], Weights]], Weights]) -> str:
    """Load timm's weights into the backbones of a network.

    Args:
        network: Has at least one `TimmBackbone`.
        from_leader: Lets one of several processes download, and broadcasts the result.

    Returns:
        A line that describes what was loaded.

    Raises:
        CheckpointError: If there are none, or they can neither be found in the cache nor downloaded.
    """
    backbones = [module for module in network.modules() if isinstance(module, TimmBackbone)]
    for backbone in backbones:
        name = backbone.name
        backbone.body.load_state_dict(from_leader(partial(_fetch, name)))
    return f"weights of {', '.join(f'timm/{backbone.name}' for backbone in backbones)} from Hugging Face's hub"


def _fetch(name: str) -> Weights:
    import timm

    try:
        # With features_only, as the backbone is made: the names are then its own.
        return timm.create_model(name, pretrained=True, features_only=True).state_dict()
    except Exception as error:  # three libraries are involved, each with its own exceptions
        cache = os.environ.get("HF_HOME", "~/.cache/huggingface")
        raise CheckpointError(
            f"feature_extractor.pretrained: the weights of timm/{name} could not be fetched ({type(error).__name__}: "
            f"{first_line(error)}); connect to huggingface.co once, or copy the cache of a machine that has them to "
            f"{cache} (or where HF_HOME says), or remove pretrained"
        ) from error


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
        slots = read_slots(network, arrays, theirs)
        for name, value in slots.items():
            if name in parameters:
                parameter = parameters[name]
                if value.shape != parameter.shape:
                    raise CheckpointError(
                        f"{checkpoint}: {theirs} of {name} has shape {list(value.shape)}, not {list(parameter.shape)}"
                    )
                # In the weight's memory format, so that updates of tensor lists stay a few kernels.
                kept = torch.empty_like(parameter)
                optimizer.state.setdefault(parameter, {})[ours] = kept.copy_(sign * value).detach()
        restored = sum(name in parameters for name in slots)
        said.append(f"{theirs}: restored for {restored} of {len(parameters)} weights; others start fresh")
    if state.average is not None:
        names = {name: p.detach() for name, p in parameters.items()}
        averages = {n: v.to(names[n]) for n, v in read_slots(network, arrays, "average").items() if n in names}
        state.average.load({**state.average.followed(network), **averages})
        said.append(f"average: restored for {len(averages)} of {len(names)} weights; others start at the weight")
    state.step = read_step(arrays)
    # TF's checkpoint has no position in the data; the stream continues where a run of ours would be at this step.
    state.samples = state.step * batch_size
    for group in optimizer.param_groups:
        # Where moments start fresh, so do corrections for their start.
        group["count"] = count_updates(arrays, state.step) if restored else 0
    return "\n".join(said)


def with_classes(detector: Detector, dataset: Dataset) -> Detector:
    """Return a detector of the caller's own, with the data's classes if it has none.

    Raises:
        ConfigError: If it is optimized for inference, its classes differ from the data's, or they are too few.
    """
    if detector.optimized:
        raise ConfigError("detector: it is optimized for inference and cannot be trained; build a new one")
    slots = dataset.categories.num_slots
    if slots > detector.num_classes:
        raise ConfigError(f"detector: it has {detector.num_classes} classes, but the data need {slots}")
    check_same_classes(detector.categories, dataset.categories)
    detector.categories = dataset.categories
    return detector


def initialize(
    detector: Detector, config: m.TrainEvalPipelineConfig, plan: TrainingPlan, processes: Processes
) -> list[m.WeightsOrigin]:
    """Load a new run's first weights, of its fine-tune checkpoint or the backbone's library; return their pedigree."""
    start = plan.fine_tune
    if start.source:
        # One of several processes downloads; others find it in the cache, or on their own machine.
        find = partial(find_weights, start.source, start.folder)
        processes.from_leader(find)
        source, note = find()
        if note:
            processes.log.warning(note)
        if warning := other_meaning(source, config):
            processes.log.warning(warning)
        # Weights missing from a checkpoint are only a warning in TF1, and an error if the source is ours.
        share = start.min_share if is_tensorflow(source) or is_archive(source) else 1.0
        loaded = load_weights(detector, source, start.scope, channels=start.channels, min_share=share)
        processes.log.info(f"from {source}:\n{loaded}")
        return origins(Path(source))
    # Reached only by a new run without a checkpoint, so that nothing else ever needs the network.
    if plan.pretrained:
        processes.log.info(load_pretrained(detector.network, processes.from_leader))
        return timm_origins(detector.network)
    return []
