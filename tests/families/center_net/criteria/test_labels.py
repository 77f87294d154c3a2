"""CenterNet's losses with what labels carry: classes that were labeled, weights of masks; by hand."""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np
import pytest
import torch
from torch import Tensor

from boxwright.config.load import parse_message
from boxwright.families.center_net.build_tasks import build_center_task, build_mask_task
from boxwright.families.center_net.criteria.criterion import labeled_classes
from boxwright.families.center_net.predictions import StageMaps
from boxwright.pipeline import messages as m
from boxwright.types import Targets
from boxwright.types.masks import InstanceMasks

# Two images of 16 by 16 pixels, which are 4 by 4 cells, without objects: the loss of every cell is that of a logit of 0
# where none is wanted.
GRID = (4, 4)
SIGMOID = "classification_loss { weighted_sigmoid {} }"
VALID = torch.ones(2, *GRID, dtype=torch.bool)
EACH = math.log(2)


def targets(**changes: Tensor | InstanceMasks | None) -> Targets:
    """Return no objects in two images, padded to one."""
    nothing = torch.zeros(2, 1)
    empty = Targets(torch.zeros(2, 1, 4), nothing.long(), nothing, nothing.bool())
    return replace(empty, **changes)  # type: ignore[arg-type]


def maps(classes: int = 3) -> tuple[StageMaps, ...]:
    zeros = torch.zeros(2, classes, *GRID)
    return (StageMaps(centers=zeros, masks=zeros),)


@pytest.mark.parametrize(
    ("labels", "counted"),
    [
        (None, 6),
        ([[0, 2], [1, -1]], 3),
        ([[0, 0], [-1, -1]], 4),  # the second image lists none, which stands for all
    ],
)
def test_centers_of_labeled_classes(labels: list[list[int]] | None, counted: int) -> None:
    config = parse_message(f"use_labeled_classes: true {SIGMOID}", m.CenterNetObjectCenterParams)
    given = targets(verified_labels=None if labels is None else torch.tensor(labels))
    (term,) = build_center_task(config, [])(maps(), given, VALID).values()
    torch.testing.assert_close(term.total, torch.tensor(counted * 16 * EACH))
    every = build_center_task(parse_message(SIGMOID, m.CenterNetObjectCenterParams), [])
    (term,) = every(maps(), given, VALID).values()
    torch.testing.assert_close(term.total, torch.tensor(6 * 16 * EACH))


def test_labeled_classes() -> None:
    found = labeled_classes(torch.tensor([[0, 2], [1, -1], [-1, -1]]), 3)
    assert found.tolist() == [[1, 0, 1], [0, 1, 0], [1, 1, 1]]


@pytest.mark.parametrize(("weight", "cells"), [(None, 32.0), (1.0, 32.0), (0.5, 30.0), (0.0, 28.0)])
def test_weights_of_masks(weight: float | None, cells: float) -> None:
    """An object in 2 by 2 cells of the first image (a margin included): what its mask's weight is, those cells count."""
    box = torch.tensor([[[4.0, 4.0, 11.2, 11.2]], [[0, 0, 0, 0]]])
    masks = [np.zeros((1, 16, 16), np.uint8), np.zeros((0, 16, 16), np.uint8)]
    given = targets(
        boxes=box,
        weights=torch.tensor([[1.0], [0.0]]),
        masks=InstanceMasks.stack(masks, 1, (16, 16)),
        mask_weights=None if weight is None else torch.tensor([[weight], [0.0]]),
    )
    config = parse_message(SIGMOID, m.CenterNetMaskEstimation)
    (term,) = build_mask_task(config)(maps(), given, VALID).values()
    assert float(term.count) == cells
    torch.testing.assert_close(term.total, torch.tensor(cells * 3 * EACH))
