"""What a run learns from: samples with all that is done to them before they become batches."""

from __future__ import annotations

from boxwright.data.dataset import Dataset
from boxwright.data.groundtruth import without_masks
from boxwright.data.loader import TrainingExamples
from boxwright.nn.detector import Detector
from boxwright.pipeline import messages as m
from boxwright.pipeline.augmentation.steps import build_augmentation
from boxwright.pipeline.groundtruth import build_groundtruth
from boxwright.pipeline.input_sizes import build_input_sizes


def training_examples(
    config: m.TrainEvalPipelineConfig, dataset: Dataset, detector: Detector, seed: int, *, skip_bad: bool
) -> TrainingExamples:
    """Return samples augmented, resized, and with what the detector learns of their objects.

    Args:
        detector: Wants them at its size, and masks or not.
        skip_bad: Whether the sample after one that cannot be read takes its place.

    Raises:
        ConfigError: Where a step cannot be built, or fields contradict each other.
    """
    further = (
        *build_groundtruth(config, dataset.categories, detector.num_classes),
        # Masks are the largest part of a batch; they are not resized, padded and sent to a network that ignores them.
        *(() if detector.network.learns_masks else (without_masks,)),
    )
    augmentation, resizer = build_augmentation(config, dataset).then(further), detector.preprocessor.resizer
    sizes = build_input_sizes(config, resizer, seed)
    return TrainingExamples(dataset, augmentation, resizer, seed, sizes=sizes, skip_bad=skip_bad)
