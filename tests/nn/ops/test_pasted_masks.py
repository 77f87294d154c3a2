"""Masks that cover more than their box, in the image: worked by hand, and against PyTorch's interpolation."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from numpy.typing import NDArray
from pycocotools import mask as coco_mask
from torch.nn import functional as F

from boxwright.nn.ops.pasted_masks import mask_run_lengths, whole_masks
from boxwright.nn.ops.roi import masks_at
from boxwright.types import Array, Detections
from boxwright.types.masks import InstanceMasks


def detections(masks: object, mask_box: object, size: tuple[int, int]) -> Detections[Array]:
    values = np.asarray(masks, np.float32)
    count = len(values)
    return Detections(
        boxes=np.zeros((count, 4), np.float32),
        scores=np.ones(count, np.float32),
        labels=np.zeros(count, np.int64),
        image_size=size,
        masks=values,
        mask_boxes=np.tile(np.asarray(mask_box, np.float32), (count, 1)),
    )


def probabilities(log_odds: object) -> NDArray[np.float32]:
    return (1 / (1 + np.exp(-np.asarray(log_odds, np.float64)))).astype(np.float32)


def test_log_odds_are_interpolated_between_cells() -> None:
    """Two cells over four pixels have log-odds 8, 5.5, 0.5 and -2; probabilities would be below a half at the third."""
    (mask,) = whole_masks(detections(probabilities([[[8, -2]]]), (0, 0, 4, 1), (1, 4)))
    assert mask.tolist() == [[1, 1, 1, 0]]


def test_another_threshold() -> None:
    """Of log-odds 8, 5.5, 0.5 and -2 a probability of 0.9, whose log-odds are 2.2, leaves two."""
    found = detections(probabilities([[[8, -2]]]), (0, 0, 4, 1), (1, 4))
    assert whole_masks(found, 0.9).tolist() == [[[1, 1, 0, 0]]]
    assert whole_masks(found, 0.1).tolist() == [[[1, 1, 1, 1]]]


@pytest.mark.parametrize(
    ("mask_box", "expected"),
    [
        ((4, 0, 8, 1), [0, 0, 0, 0, 1, 1, 1, 0]),
        ((-1, 0, 3, 1), [1, 1, 0, 0, 0, 0, 0, 0]),
        ((6, 0, 10, 1), [0, 0, 0, 0, 0, 0, 1, 1]),
        ((-9, 0, -5, 1), [0, 0, 0, 0, 0, 0, 0, 0]),
    ],
)
def test_a_mask_is_where_its_mask_box_is(mask_box: tuple[float, ...], expected: list[int]) -> None:
    """Also of a tile, and of one that reaches beyond the image or lies beside it."""
    (mask,) = whole_masks(detections(probabilities([[[8, -2]]]), mask_box, (1, 8)))
    assert mask.tolist() == [expected]


def test_certain_and_empty_masks() -> None:
    found = detections([[[1, 1], [1, 1]], [[0, 0], [0, 0]], [[1, 0], [0, 0]]], (0, 0, 6, 4), (4, 6))
    masks = whole_masks(found)
    assert masks.sum((1, 2)).tolist()[:2] == [24, 0]
    assert 0 < masks[2].sum() < 24
    assert masks[2][0, 0] == 1


def test_pytorch_and_coco_agree() -> None:
    """The window around what is above the threshold leaves nothing out."""
    generator = np.random.default_rng(0)
    log_odds = generator.normal(-1, 2, (20, 12, 9))
    found = detections(probabilities(log_odds), (0, 0, 50, 70), (70, 50))
    resized = F.interpolate(torch.from_numpy(log_odds)[:, None], (70, 50), mode="bilinear", align_corners=False)[:, 0]
    masks = whole_masks(found)
    steady = (resized.abs() > 1e-4).numpy()
    assert np.array_equal(masks[steady], (resized > 0).numpy()[steady])
    for mask, code in zip(masks, mask_run_lengths(found), strict=True):
        assert np.array_equal(coco_mask.decode({**code, "counts": code["counts"].encode()}), mask)


def test_points_in_masks_of_groundtruth() -> None:
    """Of two objects in an image of 4 × 2 pixels, by their windows; an empty mask has none, nor has padding."""
    planes = np.array([[[0, 1, 1, 0], [0, 1, 0, 0]], [[0, 0, 0, 0], [0, 0, 0, 0]]], np.uint8)
    masks = InstanceMasks.stack([planes], 3, (2, 4))
    points = torch.tensor([[[[0.1, 0.2], [0.3, 0.2], [0.6, 0.4], [0.6, 0.6], [0.3, 0.99], [0.99, 0.99]]]])
    inside = masks_at(masks, torch.tensor([[0, 1, 2]]), points)
    assert inside.tolist() == [[[0, 1, 1, 0, 1, 0], [0] * 6, [0] * 6]]
    dense = masks.dense(0)[:1].float()
    drawn = torch.rand(1, 1, 500, 2, generator=torch.Generator().manual_seed(0))
    sampled = F.grid_sample(dense[None], drawn * 2 - 1, mode="nearest", align_corners=False)[:, :, 0]
    assert torch.equal(masks_at(masks, torch.tensor([[0]]), drawn), sampled)
    nothing = InstanceMasks.stack([planes[1:]], 1, (2, 4))
    assert not masks_at(nothing, torch.tensor([[0]]), points).any()
