"""Proposals of a region proposal network."""

from __future__ import annotations

import pytest
import torch

from boxwright.families.two_stage.network import LevelProposals, suppressed_by_level
from boxwright.nn.ops.box_coder import FasterRcnnBoxCoder
from boxwright.types import AnchorPredictions

LEVELS = (300, 80, 20, 3)
SIZES = torch.tensor([[100.0, 120.0], [64.0, 100.0]])


def predictions(seed: int) -> AnchorPredictions:
    generator = torch.Generator().manual_seed(seed)
    anchors = torch.rand(sum(LEVELS), 4, generator=generator) * 90
    anchors[:, 2:] = anchors[:, :2] + 5 + torch.rand(sum(LEVELS), 2, generator=generator) * 30
    codes, logits = (torch.randn(2, sum(LEVELS), last, generator=generator) for last in (4, 2))
    return AnchorPredictions(codes, logits, anchors, (), (100, 120), LEVELS)


@pytest.mark.parametrize(("per_level", "most"), [(50, 40), (50, 1000), (1000, 100), (5, 3)])
@pytest.mark.parametrize("seed", [0, 1, 2])
def test_levels_apart_are_as_classes_of_an_image(seed: int, per_level: int, most: int) -> None:
    """What a GPU runs, on the CPU: levels as images of their own, against levels as classes of one image."""
    propose = LevelProposals(FasterRcnnBoxCoder(), 0.5, (per_level, per_level), (most, most))
    given = predictions(seed)
    expected = propose(given, SIZES, training=True)

    taken: list[torch.Tensor] = []
    chosen = []
    first = 0
    for size in LEVELS:
        margin = given.class_logits[:, first : first + size]
        rank = (margin[..., 1] - margin[..., 0]).topk(min(per_level, size), 1).indices + first
        chosen.append(rank)
        first += size
    rows = torch.cat(chosen, 1)
    boxes = FasterRcnnBoxCoder().decode(
        given.box_codes.gather(1, rows[..., None].expand(-1, -1, 4)), given.anchors[rows]
    )
    for number, (height, width) in enumerate(SIZES):
        taken.append(torch.minimum(boxes[number].clamp(min=0), torch.tensor([width, height, width, height])))
    scores = given.class_logits.softmax(-1)[..., 1].gather(1, rows)
    counts = [min(per_level, size) for size in LEVELS]
    found = suppressed_by_level(torch.stack(taken), scores, SIZES, counts, 0.5, most)

    assert expected.valid.sum() > 3
    assert found.valid.sum(1).tolist() == expected.valid.sum(1).tolist()
    torch.testing.assert_close(found.scores, expected.scores)
    torch.testing.assert_close(found.boxes, expected.boxes)
