"""What a run learns from: augmented and resized samples, on the device as batches, or shown to its user."""

from __future__ import annotations

from collections.abc import Generator, Iterable, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import torch

from boxwright.base.errors import ConfigError, DataError
from boxwright.base.text import counted
from boxwright.data.augmentation.functional.pixels import as_levels
from boxwright.data.augmentation.transform import apply_recorded
from boxwright.data.batch import Batch, to_input
from boxwright.data.dataset import Dataset, DecodingDataset
from boxwright.data.groundtruth import HiddenRegionsDataset, without_masks
from boxwright.data.listed import ListedDataset
from boxwright.data.loader import TrainingExamples
from boxwright.data.pixel_cache import PixelCache, plan_pixel_cache
from boxwright.nn.detector import Detector
from boxwright.pipeline import messages as m
from boxwright.pipeline.augmentation import build_augmentation, in_use
from boxwright.pipeline.detector import build_detector
from boxwright.pipeline.input_reader import build_dataset, build_groundtruth
from boxwright.pipeline.training import build_batch_mixup, build_input_sizes
from boxwright.types import Sample


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
    mixup = build_batch_mixup(config, seed)
    return TrainingExamples(dataset, augmentation, resizer, seed, sizes=sizes, mixup=mixup, skip_bad=skip_bad)


def keep_pixels(dataset: Dataset) -> PixelCache:
    """Let a data set keep its decoded pictures in a file, which is to be made before the first sample is read.

    Raises:
        ConfigError: If the pictures are not files on this machine.
        OutputError: If there is no room for the file.
    """
    whole: Dataset = dataset
    indices: Sequence[int] = range(len(dataset))
    while isinstance(whole, ListedDataset | HiddenRegionsDataset):
        indices = whole.indices if isinstance(whole, ListedDataset) else indices
        whole = whole.whole
    if not isinstance(whole, DecodingDataset) or whole.at_address:
        kind = "at an address" if isinstance(whole, DecodingDataset) else "neither files nor records of one image"
        what = f"the cache of decoded pictures is for files on this machine, and these are {kind}"
        raise ConfigError(f"{dataset.name}: {what}; train without it")
    pictures: list[tuple[Path, tuple[int, int]] | None] = [None] * len(whole)
    for index in indices:
        with suppress(DataError):  # raised where it is read
            pictures[index] = whole.picture(index)
    whole.pixels = plan_pixel_cache(pictures, whole.read_as)
    return whole.pixels


@dataclass(frozen=True)
class Preview:
    """A sample as the network gets it.

    Attributes:
        sample: At the network's size, its pixels uint8.
        choices: What each step drew and did, in order.
    """

    sample: Sample
    choices: tuple[str, ...]


def preview_training(config: m.TrainEvalPipelineConfig, count: int, *, step: int = 0) -> tuple[Dataset, list[Preview]]:
    """Make samples as a run with this configuration and seed 0 makes them in its first epoch.

    Args:
        count: How many, spread evenly over the data; samples that a run of one epoch would see.
        step: The training step, from 0, whose augmentation is shown.

    Raises:
        ConfigError: Where the configuration cannot be trained.
        DataError: Where a sample cannot be read.
    """
    dataset = build_dataset(config.train_input_reader, "train_input_reader")
    with torch.device("meta"):  # only how it wants images
        detector = build_detector(config, dataset.categories)
    chain = build_augmentation(config, dataset).at(step)
    steps = config.train_config.data_augmentation_options if config.train_config else ()
    names = [str(option.which("preprocessing_step")) for option in steps if in_use(option, step)]
    groundtruth = build_groundtruth(config, dataset.categories, detector.num_classes)
    resizer = detector.preprocessor.resizer
    sizes = build_input_sizes(config, resizer, seed=0)
    previews = []
    for index in np.unique(np.linspace(0, len(dataset) - 1, count).astype(np.int64)).tolist():
        rng = np.random.default_rng([0, 0, index])  # seed, epoch, sample
        sample, lines = apply_recorded(list(zip(names, chain.transforms, strict=True)), dataset[index], rng)
        for transform in groundtruth:
            sample = transform(sample, rng)
        sample = to_input(sample, resizer if sizes is None else sizes.at(step))
        size = f"{sample.image.shape[1]}×{sample.image.shape[0]}"
        previews.append(
            Preview(
                replace(sample, image=as_levels(sample.image)),
                (*lines, f"input: {size}, {counted(len(sample.boxes), 'object')}"),
            )
        )
    return dataset, previews
