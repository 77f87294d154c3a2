"""Greedy suppression of all classes at once, beside torchvision's of one class after another."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor
from torchvision.ops import nms

from boxwright.base.device import is_plain
from boxwright.nn.criteria import target_assigner
from boxwright.nn.suppression.image_by_image import bounded, suppress_classes


def by_torchvision(boxes: Tensor, scores: Tensor, classes: Tensor, iou_threshold: float) -> Tensor:
    """Return the same, class by class."""
    boxes, kept = bounded(boxes.double()), []
    for label in classes.unique():
        rows = (classes == label).nonzero().squeeze(1)
        kept.append(rows[nms(boxes[rows], scores[rows].double(), iou_threshold)])
    rows = torch.cat(kept).sort().values
    return rows[scores[rows].argsort(descending=True, stable=True)]


def some_boxes(seed: int, count: int) -> tuple[Tensor, Tensor, Tensor]:
    """Return crowded boxes on a grid, so that overlaps of exactly a threshold occur; many scores are equal."""
    random = torch.Generator().manual_seed(seed)
    corners = torch.randint(0, 12, (count, 2), generator=random).float()
    sides = torch.randint(0, 6, (count, 2), generator=random).float()
    scores = torch.randint(0, 40, (count,), generator=random) / 40
    return torch.cat([corners, corners + sides], 1), scores, torch.randint(0, 3, (count,), generator=random)


@pytest.mark.parametrize("iou_threshold", [0.0, 0.25, 0.5, 0.6, 1.0])
@pytest.mark.parametrize("seed", range(5))
def test_classes_are_suppressed_apart(seed: int, iou_threshold: float) -> None:
    boxes, scores, classes = some_boxes(seed, 700)
    kept = suppress_classes(boxes, scores, classes, iou_threshold)
    assert 3 <= len(kept) <= 700
    assert torch.equal(kept, by_torchvision(boxes, scores, classes, iou_threshold))


def test_boxes_inside_out_infinite_and_nan() -> None:
    boxes, scores, classes = some_boxes(9, 300)
    boxes[::7] = boxes[::7].flip(1)
    boxes[3], boxes[4, 2], boxes[5, 0], scores[6] = torch.nan, torch.inf, -torch.inf, torch.nan
    kept = suppress_classes(boxes, scores, classes, 0.5)
    assert torch.equal(kept, by_torchvision(boxes, scores, classes, 0.5))


def test_overlaps_of_the_threshold_stay() -> None:
    """Half of the union of the first two is shared; the third is of another class, the fourth overlaps by more."""
    boxes = torch.tensor([[0, 0, 4, 3], [0, 1, 4, 4], [0, 0, 4, 3], [0, 0, 4, 3.5]])
    classes = torch.tensor([7, 7, 8, 7])
    assert suppress_classes(boxes, torch.tensor([0.9, 0.8, 0.7, 0.6]), classes, 0.5).tolist() == [0, 1, 2]


def test_operators_are_called_in_graphs_alone() -> None:
    values = torch.rand(2, 4, 9, generator=torch.Generator().manual_seed(0))
    assert is_plain(values)
    assert not is_plain(values.to("meta"))
    assert not is_plain(torch.nn.Parameter(values))
    valid = torch.ones(2, 4, dtype=torch.bool)
    found = target_assigner.BipartiteMatcher()(values, valid)
    assert torch.equal(torch.ops.boxwright.greedy_pairs(values), found)
    exported = torch.export.export(Matched(), (values, valid))
    assert [node.target for node in exported.graph.nodes if "boxwright" in str(node.target)] == [
        torch.ops.boxwright.greedy_pairs.default
    ]
    assert torch.equal(exported.module()(values, valid), found)


class Matched(torch.nn.Module):
    def forward(self, similarity: Tensor, valid: Tensor) -> Tensor:
        return target_assigner.BipartiteMatcher()(similarity, valid)
