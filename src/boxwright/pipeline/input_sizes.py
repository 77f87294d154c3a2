"""`MultiScale`: the sizes of inputs in training."""

from __future__ import annotations

import math
from dataclasses import replace

from boxwright.data.input_sizes import DrawnSizes
from boxwright.families.shared.family import require
from boxwright.families.shared.image_resizer import build_image_resizer
from boxwright.nn.preprocessing.image_resizer import FixedShapeResizer, ImageResizer
from boxwright.pipeline import messages as m


def has_one_input_size(config: m.TrainEvalPipelineConfig) -> bool:
    """Return whether all inputs of a training have the same size."""
    model, train = require(config.model, config, "model"), require(config.train_config, config, "train_config")
    family = model.chosen("model")
    resizer = None if family is None else family.image_resizer
    return resizer is not None and train.multi_scale is None and build_image_resizer(resizer).output_size is not None


def build_input_sizes(config: m.TrainEvalPipelineConfig, resizer: ImageResizer, seed: int) -> DrawnSizes | None:
    """Return the sizes that batches have in turn; None where all have the resizer's."""
    scales = config.train_config.multi_scale if config.train_config is not None else None
    if scales is None or not isinstance(resizer, FixedShapeResizer):  # a rule of the table refuses other resizers
        return None
    own = (resizer.height, resizer.width)
    sizes = sorted([*(size for size in _sizes(scales, own) if size != own), *[own] * scales.own_size_weight] or [own])
    drawn = [replace(resizer, height=height, width=width) for height, width in sizes]
    return DrawnSizes(resizer, drawn, seed, scales.from_step, scales.until_step)


def _sizes(config: m.MultiScale, own: tuple[int, int]) -> list[tuple[int, int]]:
    """Return every (height, width) whose longer side is a multiple within the range; the other side follows it."""
    multiple, longer = config.multiple_of, max(own)
    low, high = math.ceil(config.min_scale * longer / multiple), math.floor(config.max_scale * longer / multiple)
    sides = [number * multiple for number in range(max(low, 1), high + 1)]
    return [(_nearest(own[0] * side / longer, multiple), _nearest(own[1] * side / longer, multiple)) for side in sides]


def _nearest(side: float, multiple: int) -> int:
    return max(round(side / multiple), 1) * multiple
