"""What a checkpoint's statistics of batch normalization still hold of their initial values, and statistics without it.

A checkpoint of an earlier version does not say; it follows from its step and from what its run began with.
"""

from __future__ import annotations

import warnings
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from boxwright.nn.initial_statistics import (
    InitialShares,
    impossible_shares,
    normalized_layers,
    shares_of_layers,
    without_initial,
)
from boxwright.nn.network import Parts, is_within
from boxwright.nn.optimization.moving_average import average_decay
from boxwright.pipeline import messages as m
from boxwright.pipeline.detector import build_detector
from boxwright.pipeline.optimizer import build_optimizer
from boxwright.pipeline.tensorflow_version import tensorflow_version
from boxwright.pipeline.training import read_fine_tune, wants_pretrained

SHARES, AVERAGE_SHARES = "initial_shares", "average_initial_shares"
# Nothing has to be taken out of statistics that hold less.
_NEGLIGIBLE = 1e-9

Shares = dict[str, dict[str, float]]


def debiased(
    content: Mapping[str, Any], config: m.TrainEvalPipelineConfig, path: Path, *, use_average: bool
) -> dict[str, Tensor]:
    """Return a checkpoint's statistics by name, without what they hold of their initial values.

    Args:
        content: Of the checkpoint.
        config: The run's.
        path: The file, for warnings.
        use_average: Whether the averages of statistics are wanted, where the run kept them.
    """
    shares = stored_shares(content, config, path)
    weights = without_initial(content["network"], shares[SHARES])
    return weights | (without_initial(content["average"], shares[AVERAGE_SHARES]) if use_average else {})


def stored_shares(content: Mapping[str, Any], config: m.TrainEvalPipelineConfig, path: Path) -> Shares:
    """Return the shares of initial values by the names of layers: `SHARES` of statistics, `AVERAGE_SHARES` of averages.

    They are empty where a checkpoint of an earlier version does not let them be known, and a warning says so.
    """
    if SHARES in content:
        return {SHARES: content[SHARES], AVERAGE_SHARES: content.get(AVERAGE_SHARES, {})}
    shares, problem = _derived(content, config)
    if not problem and (layers := impossible_shares(content["network"], shares.by_layer())):
        problem = f"those of {layers[0]} did not begin with mean 0 and variance 1"
    if problem:
        warnings.warn(
            f"{path}: statistics of batch normalization are used as they are: {problem}; after a short run they are "
            "mostly what they began with, and little is detected",
            stacklevel=2,
        )
        shares = InitialShares()
    return {SHARES: shares.by_layer(), AVERAGE_SHARES: shares.of_average().by_layer()}


def _derived(content: Mapping[str, Any], config: m.TrainEvalPipelineConfig) -> tuple[InitialShares, str]:
    """Return the shares that follow from a run's step and beginning, and why they do not, or ""."""
    train = config.train_config
    if train is None or train.optimizer is None or config.model is None:
        return InitialShares(), "the configuration does not say how it was trained"
    with torch.device("meta"):
        network = build_detector(config).network
    fresh = [name for name in normalized_layers(network) if not _came_with_weights(name, network.parts, config)]
    shares = shares_of_layers(network, dict.fromkeys(fresh, 1.0), {})
    passes = train.gradient_accumulation_steps
    at_the_end = shares.after(passes * content["step"])
    if all(group.share < _NEGLIGIBLE for group in at_the_end.groups):
        return InitialShares(), ""
    if content["parts"] > passes:
        return InitialShares(), "memory was short, and batches were learned from in an unknown number of parts"
    plan = build_optimizer(train.optimizer, tensorflow_version(config.model))
    if plan.average_decay is None or not plan.average_statistics:
        return at_the_end, ""
    for step in range(content["step"]):
        shares = shares.after(passes, average_decay(plan.average_decay, step, plan.average_ramp_steps))
        if all(group.share < _NEGLIGIBLE and group.average_share < _NEGLIGIBLE for group in shares.groups):
            return InitialShares(), ""
    return shares, ""


def _came_with_weights(layer: str, parts: Parts, config: m.TrainEvalPipelineConfig) -> bool:
    """Return whether a run's first weights held a layer's statistics."""
    name = f"{layer}.running_var"
    if config.train_config is None or config.model is None:
        return False
    start = read_fine_tune(config.train_config, tensorflow_version(config.model))
    if not start.source:
        return wants_pretrained(config.model) and is_within(name, parts.backbone)
    if start.scope == "classification":
        return parts.in_classifier(name)
    return start.scope != "detection" or not is_within(name, parts.heads)
