"""What a run learns from: samples with all that is done to them before they become batches.

Bringing batches to the device while it computes.
"""

from __future__ import annotations

from collections.abc import Generator, Iterable

import torch

from boxwright.data.batch import Batch
from boxwright.data.dataset import Dataset
from boxwright.data.groundtruth import without_masks
from boxwright.data.loader import TrainingExamples
from boxwright.nn.detector import Detector
from boxwright.pipeline import messages as m
from boxwright.pipeline.augmentation.steps import build_augmentation
from boxwright.pipeline.input_reader import build_groundtruth
from boxwright.pipeline.input_sizes import build_input_sizes


def on_device(batches: Iterable[Batch], device: torch.device) -> Generator[Batch]:
    """Bring batches to a device; to a GPU one ahead, on a stream of its own.

    Args:
        batches: In pinned memory, if the device is a GPU.
    """
    if device.type != "cuda":
        yield from (batch.to(device) for batch in batches)
        return
    # On the stream of the step a copy would wait for all kernels that have been launched before it.
    copying = torch.cuda.Stream(device)
    waiting: Batch | None = None
    for batch in batches:
        with torch.cuda.stream(copying):
            arriving = batch.to(device)
        if waiting is not None:
            yield waiting
        torch.cuda.current_stream(device).wait_stream(copying)
        for tensor in (arriving.images, arriving.true_sizes, *arriving.targets.tensors()):
            # Else the allocator, which knows of the copying stream alone, reuses the memory while the step reads it.
            tensor.record_stream(torch.cuda.current_stream(device))
        waiting = arriving
    if waiting is not None:
        yield waiting


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
