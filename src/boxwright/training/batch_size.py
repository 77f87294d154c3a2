"""The largest batch that fits the memory of a device."""

from __future__ import annotations

import copy

from boxwright.base.errors import ConfigError
from boxwright.pipeline.messages import TrainEvalPipelineConfig
from boxwright.training.rehearsal import DryRunReport, rehearse


def fitting_batch(
    config: TrainEvalPipelineConfig, most: int, device: str = "auto", *, tried: int = 2
) -> tuple[int, DryRunReport]:
    """Try steps, and return the largest batch that should fit.

    Args:
        device: On which, as for `device.usable_device`.
        tried: The batch that is tried after one and two images, where that should be quick and fit.

    Returns:
        `most`, or the first of its halves, quarters, … that fits; and what was measured.

    Raises:
        TrainingError: Where a step of two images fails, or does not fit.
    """
    trial = copy.deepcopy(config)
    if trial.train_config is None:
        raise ConfigError("train_config is not set; there is no batch to fit")
    trial.train_config.batch_size = max(tried, 2)
    measured = rehearse(trial, device)
    failed = measured.killed or measured.split
    return fitting(measured, max(min(most, tried // 2), 1) if failed else most), measured


def fitting(measured: DryRunReport, most: int) -> int:
    """Return `most`, or the first of its halves, quarters, … that fits; 1 where none does."""
    size = most
    while size > 1 and not measured.fits(size):
        size //= 2
    return size
