"""Suppression near an overlap of 1, which looks for what overlaps before it compares: the same as comparing all."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from numpy.typing import NDArray

from boxwright.nn.criteria.example_selection import suppress_batch, suppress_best


def greedy(boxes: NDArray[np.float32], scores: NDArray[np.float32], threshold: float, most: int) -> NDArray[np.bool_]:
    """Suppress one box after the other, as the definition says."""
    kept: list[int] = []
    for number in np.argsort(-scores, kind="stable"):
        one = boxes[number]
        low, high = np.maximum(one[:2], boxes[kept, :2]), np.minimum(one[2:], boxes[kept, 2:])
        shared = np.prod(np.maximum(high - low, np.float32(0)), axis=1)
        area = (one[2] - one[0]) * (one[3] - one[1])
        others = (boxes[kept, 2] - boxes[kept, 0]) * (boxes[kept, 3] - boxes[kept, 1])
        with np.errstate(all="ignore"):
            overlap = shared / (area + others - shared)
        if not (overlap > threshold).any():
            kept.append(int(number))
    found = np.zeros(len(boxes), np.bool_)
    found[kept[:most]] = True
    return found


def anchors() -> torch.Tensor:
    """Two levels of a grid, as a network that has learnt nothing decodes them."""
    found = []
    for stride, count in ((16, 8), (32, 4)):
        centre = torch.cartesian_prod(*[torch.arange(count) * stride + stride / 2] * 2)
        for ratio in (0.5, 1.0, 2.0):
            half = stride * torch.tensor([ratio**0.5, ratio**-0.5])
            found.append(torch.cat([centre - half, centre + half], 1))
    return torch.cat(found)


def shaken(boxes: torch.Tensor, by: float) -> torch.Tensor:
    return boxes + by * torch.randn(boxes.shape, generator=torch.Generator().manual_seed(1))


ONE = torch.tensor([[10.0, 20, 90, 120]])
CASES = {
    "a grid": torch.stack([anchors(), shaken(anchors(), 0.5)]),
    "anchors that see the same": shaken(torch.cat([anchors()[::3], ONE.expand(100, 4), ONE.expand(80, 4) / 3]), 0.1)[
        None
    ],
    "all on one object": shaken(ONE.expand(2, 200, 4), 0.2),
    "all the same": ONE.expand(1, 50, 4),
    "one": ONE[None],
    "none": torch.zeros(2, 0, 4),
    "a chain, each box a little further": ONE + torch.arange(60)[:, None] * torch.tensor([0.3, 0, 0.3, 0]),
}


@pytest.mark.parametrize("most", [1000, 20])
@pytest.mark.parametrize(
    "threshold", [0.98, *(pytest.param(value, marks=pytest.mark.slow) for value in (0.99, 0.999)), 1.0]
)
@pytest.mark.parametrize("case", CASES)
def test_equals_comparing_all(case: str, threshold: float, most: int) -> None:
    assert len(CASES) == 7
    boxes = CASES[case] if CASES[case].ndim == 3 else CASES[case][None]
    scores = torch.rand(boxes.shape[:2], generator=torch.Generator().manual_seed(2)).mul(20).round()  # many are equal
    found = suppress_batch(boxes, scores, threshold, most)
    for one, image, values in zip(found, boxes, scores, strict=True):
        np.testing.assert_array_equal(one, greedy(image.numpy(), values.numpy(), threshold, most))


def test_boxes_that_are_none() -> None:
    """What is not finite, empty or turned inside out overlaps nothing; what is beside it is suppressed all the same."""
    odd = torch.tensor([[torch.nan, 0, 1, 1], [0, 0, torch.inf, 5], [7, 7, 7, 7], [9, 9, 3, 3], [3e38, 0, 3.1e38, 1]])
    boxes = torch.cat([odd, ONE, ONE + 0.01])[None]
    scores = torch.arange(7.0)[None]
    assert suppress_batch(boxes, scores, 0.99, 10).tolist() == [[True] * 5 + [False, True]]


@pytest.mark.parametrize("seed", range(4))
@pytest.mark.parametrize(("iou", "most"), [(0.5, 20), (0.7, 400), (0.99, 100), (0.2, 300)])
def test_the_best_of_all_images_together(seed: int, iou: float, most: int) -> None:
    """Where it says that it is complete it is what is found image by image; and it says so where images are full."""
    generator = torch.Generator().manual_seed(seed)
    corner = torch.rand(3, 900, 2, generator=generator) * 200
    boxes = torch.cat([corner, corner + 5 + torch.rand(3, 900, 2, generator=generator) * 60], 2)
    scores = torch.rand(3, 900, generator=generator)
    chosen, complete = suppress_best(boxes, scores, iou, most)
    expected = suppress_batch(boxes, scores, iou, most)
    assert torch.equal(chosen[complete], expected[complete])
    assert bool(complete.all()) == (iou != 0.2)
    assert expected.any()
