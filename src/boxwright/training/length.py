"""How long a run is: steps, for so many times through the data."""

from __future__ import annotations

import copy
import math

from boxwright.base.errors import ConfigError
from boxwright.data.dataset import Dataset
from boxwright.pipeline.input_reader import build_dataset
from boxwright.pipeline.messages import TrainEvalPipelineConfig
from boxwright.training.rehearsal import DryRunReport, rehearse


def fitting_batch(config: TrainEvalPipelineConfig, most: int, device: str = "auto") -> tuple[int, DryRunReport]:
    """Try steps of one and two images, and return the largest batch that should fit.

    Args:
        device: On which, as for `device.usable_device`.

    Returns:
        `most`, or the first of its halves, quarters, … that fits; and what was measured.

    Raises:
        TrainingError: Where a step of two images fails, or does not fit.
    """
    tried = copy.deepcopy(config)
    if tried.train_config is None:
        raise ConfigError("train_config is not set; there is no batch to fit")
    # A rehearsal tries 1, 2 and the configured size; memory is predicted from the first two, so no larger batch is
    # tried.
    tried.train_config.batch_size = 2
    measured = rehearse(tried, device)
    return fitting(measured, most), measured


def fitting(measured: DryRunReport, most: int) -> int:
    """Return `most`, or the first of its halves, quarters, … that fits; 1 where none does."""
    size = most
    while size > 1 and not measured.fits(size):
        size //= 2
    return size


def steps_of_epochs(config: TrainEvalPipelineConfig, epochs: float, dataset: Dataset | None = None) -> tuple[int, int]:
    """Return how many steps go through the training data so often, and how many images those have.

    Args:
        epochs: More than 0; a part of an epoch is a part of the data.
        dataset: The training data; None for those that the configuration names.

    Returns:
        The steps, at least 1 (the last batch may begin another epoch), and the images.

    Raises:
        ConfigError: Where the configuration trains nothing, or epochs is not above 0.
    """
    if not isinstance(epochs, int | float) or not epochs > 0 or not math.isfinite(epochs):
        raise ConfigError(f"epochs: expected a number above 0, found {epochs!r}")
    if config.train_config is None:
        raise ConfigError("train_config is not set; there is nothing to count epochs of")
    images = len(build_dataset(config.train_input_reader, "train_input_reader") if dataset is None else dataset)
    return steps_through(images, epochs, config.train_config.batch_size), images


def steps_through(images: int, epochs: float, batch_size: int) -> int:
    """Return how many steps go through so many images so often, at least 1; the last batch may begin another epoch."""
    return max(math.ceil(epochs * images / max(batch_size, 1)), 1)
