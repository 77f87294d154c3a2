"""The largest batch that fits the memory of a device."""

from __future__ import annotations

import copy

from boxwright.base.errors import ConfigError
from boxwright.pipeline.messages import TrainEvalPipelineConfig
from boxwright.training.rehearsal import DryRunReport, rehearse


def fitting_batch(config: TrainEvalPipelineConfig, most: int, device: str = "auto") -> tuple[int, DryRunReport]:
    """Try steps of one and two images and, if it should fit, of `most`; return the largest batch that fits.

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
    tried.train_config.batch_size = max(most, 2)
    measured = rehearse(tried, device)
    return fitting(measured, most // 2 if measured.killed or measured.split else most), measured


def fitting(measured: DryRunReport, most: int) -> int:
    """Return `most`, or the first of its halves, quarters, … that fits; 1 where none does."""
    size = most
    while size > 1 and not measured.fits(size):
        size //= 2
    return size
