"""How long a run is: steps, for so many times through the data."""

from __future__ import annotations

import math

from boxwright.base.errors import ConfigError
from boxwright.data.dataset import Dataset
from boxwright.pipeline.input_reader import build_dataset
from boxwright.pipeline.messages import TrainEvalPipelineConfig


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


def epochs_text(epochs: float) -> str:
    """Return "1 epoch", "0.1 epochs" or "187 epochs": two digits where there are fewer than ten."""
    return f"{epochs:.0f} epochs" if epochs >= 10 else f"{epochs:.2g} epoch{'' if epochs == 1 else 's'}"


def steps_through(images: int, epochs: float, batch_size: int) -> int:
    """Return how many steps go through so many images so often, at least 1; the last batch may begin another epoch."""
    return max(math.ceil(epochs * images / max(batch_size, 1)), 1)
