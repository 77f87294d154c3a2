"""The detector that a run starts with: its classes and its first weights."""

from __future__ import annotations

from functools import partial

from boxwright.base.distributed import Processes
from boxwright.base.errors import ConfigError
from boxwright.data.dataset import Dataset
from boxwright.evaluation.data import check_same_classes
from boxwright.nn.detector import Detector
from boxwright.pipeline import messages as m
from boxwright.pipeline.training import TrainingPlan
from boxwright.weights.find_weights import find_weights
from boxwright.weights.load_weights import load_weights
from boxwright.weights.pretrained import load_pretrained
from boxwright.weights.restore import other_meaning
from boxwright.weights.sources import is_tensorflow
from boxwright.weights.zoo_archive import is_archive


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


def initialize(detector: Detector, config: m.TrainEvalPipelineConfig, plan: TrainingPlan, processes: Processes) -> None:
    """Load a new run's first weights: those of its fine-tune checkpoint, or of the backbone's library."""
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
    # Reached only by a new run without a checkpoint, so that nothing else ever needs the network.
    elif plan.pretrained:
        processes.log.info(load_pretrained(detector.network, processes.from_leader))
