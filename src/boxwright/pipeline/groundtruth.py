"""Groundtruth transforms after augmentation, from `TrainConfig` and `InputReader`."""

from __future__ import annotations

import numpy as np

from boxwright.data.augmentation.transform import Transform
from boxwright.data.groundtruth import (
    ClassScores,
    KeepFirst,
    MergeLabels,
    WeighClasses,
    without_class_scores,
    without_verified_labels,
)
from boxwright.families.shared.choice import require
from boxwright.pipeline import messages as m
from boxwright.types import Categories


def build_groundtruth(
    config: m.TrainEvalPipelineConfig, categories: Categories, num_classes: int
) -> tuple[Transform, ...]:
    """Return the transforms after augmentation, in order; `num_classes` counts foreground classes."""
    train = require(config.train_config, config, "train_config")
    reader = require(config.train_input_reader, config, "train_input_reader")
    steps: list[Transform] = []
    if reader.class_weight:
        steps.append(_weigher(reader, categories))
    if train.merge_multiple_label_boxes:
        steps.append(MergeLabels(num_classes))
    if train.use_multiclass_scores:
        steps.append(ClassScores(num_classes))
    elif reader.load_multiclass_scores:
        steps.append(without_class_scores)
    if "max_number_of_boxes" in reader.present():
        steps.append(KeepFirst(reader.max_number_of_boxes))
    center_net = config.model.center_net if config.model else None
    centers = center_net.object_center_params if center_net else None
    if centers is None or not centers.use_labeled_classes:
        steps.append(without_verified_labels)
    return tuple(steps)


def _weigher(reader: m.InputReader, categories: Categories) -> WeighClasses:
    weights = np.ones(categories.num_slots, np.float32)
    for item in reader.class_weight:
        category = categories.by_name(item.name)
        if category is None:
            known = ", ".join(category.name for category in categories)
            raise item.refusal("name", f"unknown class {item.name!r}; known: {known}")
        weights[category.label] = item.weight
    return WeighClasses(weights)
