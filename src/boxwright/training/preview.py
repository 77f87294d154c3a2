"""What a network will see in training: samples as they are augmented and resized."""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np
import torch

from boxwright.data.augmentation.functional.pixels import as_levels
from boxwright.data.augmentation.recorded import apply_recorded
from boxwright.data.batch import to_input
from boxwright.data.dataset import Dataset
from boxwright.pipeline import messages as m
from boxwright.pipeline.augmentation.steps import build_augmentation, in_use
from boxwright.pipeline.detector import build_detector
from boxwright.pipeline.input_reader import build_dataset, build_groundtruth
from boxwright.pipeline.input_sizes import build_input_sizes
from boxwright.types import Sample


@dataclass(frozen=True)
class Preview:
    """A sample as the network gets it.

    Attributes:
        sample: At the network's size, its pixels uint8.
        choices: What each step drew and did, in order.
    """

    sample: Sample
    choices: tuple[str, ...]


def preview_training(
    config: m.TrainEvalPipelineConfig, count: int, *, seed: int = 0, epoch: int = 0, step: int = 0
) -> tuple[Dataset, list[Preview]]:
    """Make samples as a run with this configuration and seed makes them.

    Args:
        count: How many, spread evenly over the data; samples that a run of one epoch would see.
        epoch: Of the run, from 0.
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
    sizes = build_input_sizes(config, resizer, seed)
    previews = []
    for index in np.unique(np.linspace(0, len(dataset) - 1, count).astype(np.int64)).tolist():
        rng = np.random.default_rng([seed, epoch, index])
        sample, lines = apply_recorded(list(zip(names, chain.transforms, strict=True)), dataset[index], rng)
        for transform in groundtruth:
            sample = transform(sample, rng)
        sample = to_input(sample, resizer if sizes is None else sizes.at(step))
        size = f"{sample.image.shape[1]}×{sample.image.shape[0]}"
        previews.append(
            Preview(
                replace(sample, image=as_levels(sample.image)), (*lines, f"input: {size}, {len(sample.boxes)} objects")
            )
        )
    return dataset, previews
