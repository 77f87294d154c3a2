"""DeepMAC's losses, worked out pixel by pixel."""

from __future__ import annotations

import math
from dataclasses import replace

import cv2
import numpy as np
import pytest
import torch
from torch import Tensor

from boxwright.families.center_net.consistency_features import lab_of_rgb
from boxwright.families.center_net.criteria.deep_masks import (
    JITTERS,
    DeepMaskTask,
    DeepMaskTerm,
    FromBoxes,
    FromFeatures,
    FromMasks,
    FromPoints,
    FromViews,
    MaskSupervision,
    RegionJitter,
    WarmUp,
    balanced,
    by_direction,
    by_distance,
    divergence_of_views,
    mean_of_pixels,
    overlap_of_views,
    per_foreground_pixel,
    square_error_of_views,
)
from boxwright.families.center_net.predictions import DeepMaskPredictions
from boxwright.nn.criteria.criterion import LossTerm
from boxwright.nn.criteria.losses import SigmoidCrossEntropy
from boxwright.types import Targets
from boxwright.types.masks import InstanceMasks

# A grid of 4 by 5 cells, in pixels; two objects.
SIZE = (16, 20)
BOXES = torch.tensor([[[4.0, 4.0, 12.0, 8.0], [0.0, 0.0, 20.0, 16.0]]])
RELATIVE = BOXES / torch.tensor([20.0, 16.0, 20.0, 16.0])
# Which cells lie in the first box, ends included: columns 1 to 3, rows 1 and 2.
INSIDE = np.array([[0] * 5, [0, 1, 1, 1, 0], [0, 1, 1, 1, 0], [0] * 5])
CROSS_ENTROPY = SigmoidCrossEntropy()


def targets(labels: tuple[int, int] = (0, 1)) -> Targets:
    rng = np.random.default_rng(0)
    masks = InstanceMasks.stack([rng.integers(0, 2, (2, *SIZE)).astype(np.uint8)], 2, SIZE)
    ones = torch.ones(1, 2)
    points = torch.tensor([[[[5.0, 9.0], [torch.nan, torch.nan]], [[19.9, 15.9], [20.0, 16.0]]]])
    depths = torch.tensor([[[1.0, 1.0], [-1.0, 1.0]]])
    return Targets(BOXES, torch.tensor([labels]), ones, ones > 0, points, masks=masks, keypoint_depths=depths)


def given(**more: Tensor) -> MaskSupervision:
    return MaskSupervision(RELATIVE, RELATIVE, targets(), SIZE, **more)


@pytest.fixture
def logits() -> Tensor:
    return torch.randn(1, 2, 4, 5, generator=torch.Generator().manual_seed(3))


def entropy(logit: float, wanted: float) -> float:
    logit, wanted = float(logit), float(wanted)
    probability = 1 / (1 + math.exp(-logit))
    return -wanted * math.log(probability) - (1 - wanted) * math.log(1 - probability)


def test_masks_of_the_image(logits: Tensor) -> None:
    """The mean over all pixels of the logits enlarged as images are."""
    (found,) = FromMasks(CROSS_ENTROPY)(logits, given())
    masks = targets().masks
    assert masks is not None
    for number, mask in enumerate(masks.dense(0).numpy()):
        large = cv2.resize(logits[0, number].numpy(), (20, 16), interpolation=cv2.INTER_LINEAR)
        wanted = np.mean([entropy(a, b) for a, b in zip(large.flat, mask.flat, strict=True)])
        assert found[number].item() == pytest.approx(wanted, rel=1e-5)


def test_overlaps_of_a_class_are_left_out(logits: Tensor) -> None:
    """Where boxes of one class overlap, logits are 0: there each pixel costs log 2."""
    loss = FromMasks(CROSS_ENTROPY, side=None, skip_overlaps=True)
    alike = replace(given(), targets=targets((1, 1)))
    masks = targets().masks
    assert masks is not None
    large = cv2.resize(logits[0, 0].numpy(), (20, 16), interpolation=cv2.INTER_LINEAR)
    large[4:9, 4:13] = 0
    wanted = np.mean([entropy(a, b) for a, b in zip(large.flat, masks.dense(0)[0].numpy().flat, strict=True)])
    assert loss(logits, alike)[0, 0].item() == pytest.approx(wanted, rel=1e-5)
    assert torch.equal(loss(logits, given()), FromMasks(CROSS_ENTROPY)(logits, given()))


@pytest.mark.parametrize("tight", [False, True])
@pytest.mark.parametrize("normalize", [mean_of_pixels, per_foreground_pixel, balanced])
def test_rows_and_columns_end_where_the_box_does(logits: Tensor, tight: bool, normalize: object) -> None:
    (found,) = FromBoxes(CROSS_ENTROPY, normalize, tight=tight)(logits, given())  # type: ignore[arg-type]
    values, total = logits[0, 0].numpy(), 0.0
    for axis in (0, 1):
        largest, wanted = values.max(axis), INSIDE.max(axis)
        if tight:
            largest = np.where(wanted, (values * INSIDE).max(axis), largest)
        losses = np.array([entropy(a, b) for a, b in zip(largest, wanted, strict=True)])
        total += {
            mean_of_pixels: losses.mean(),
            per_foreground_pixel: losses.sum() / wanted.sum(),
            balanced: losses[wanted == 1].mean() + losses[wanted == 0].mean(),
        }[normalize]  # type: ignore[index]
    assert found[0].item() == pytest.approx(total, rel=1e-5)


@pytest.mark.parametrize("compare", [by_distance, by_direction])
def test_neighbors_that_look_alike_have_one_label(logits: Tensor, compare: object) -> None:
    features = torch.rand(1, 3, 4, 5, generator=torch.Generator().manual_seed(1))
    threshold = 0.8
    loss = FromFeatures(threshold, dilation=2, compare=compare)  # type: ignore[arg-type]
    (found,) = loss(logits, given(features=features))
    colors = np.pad(features[0].numpy(), ((0, 0), (2, 2), (2, 2)))
    masks = np.pad(logits[0, 0].sigmoid().numpy(), 2)
    total = 0.0
    for row, column in zip(*np.nonzero(INSIDE), strict=True):
        own, mask = colors[:, row + 2, column + 2], masks[row + 2, column + 2]
        for y, x in ((y, x) for y in (-2, 0, 2) for x in (-2, 0, 2) if (y, x) != (0, 0)):
            other, neighbor = colors[:, row + 2 + y, column + 2 + x], masks[row + 2 + y, column + 2 + x]
            if compare is by_distance:
                alike = math.exp(-np.linalg.norm(own - other) / 2)
            else:
                lengths = math.sqrt(max(own @ own, 1e-4)) * math.sqrt(max(other @ other, 1e-4))
                alike = own @ other / lengths
            if alike > threshold:
                total -= math.log(max(mask * neighbor + (1 - mask) * (1 - neighbor), 1e-3))
    assert found[0].item() == pytest.approx(total / INSIDE.sum(), rel=1e-5)
    assert FromFeatures()(logits, given()).tolist() == [[0.0, 0.0]]


def test_another_view_of_the_image(logits: Tensor) -> None:
    """Within the box alone; of the other view's foreground, its probabilities, or both of its classes."""
    view = torch.randn(1, 2, 4, 5, generator=torch.Generator().manual_seed(9))
    cells = INSIDE.astype(bool)
    ours, theirs = (one[0, 0].sigmoid().numpy()[cells].astype(float) for one in (logits, view))
    seen = theirs > 0.5
    wanted = {
        overlap_of_views: 1 - 2 * ours[seen].sum() / max(ours.sum() + seen.sum(), 1),
        square_error_of_views: ((ours - theirs) ** 2).mean(),
        divergence_of_views: (theirs * np.log(theirs / ours) + (1 - theirs) * np.log((1 - theirs) / (1 - ours))).mean(),
    }
    for compare, value in wanted.items():
        found = FromViews(compare)(logits, given(view=view))[0, 0].item()
        assert found == pytest.approx(value, rel=1e-4)
        assert FromViews(compare)(logits, given(view=logits))[0, 0].item() < (
            0.8 if compare is overlap_of_views else 1e-6
        )
    with pytest.raises(ValueError, match="has not seen another view"):
        FromViews(overlap_of_views)(logits, given())


def test_points_are_read_in_their_cells(logits: Tensor) -> None:
    """Unknown points cost nothing, but count; those on the far border are of the last cell."""
    (found,) = FromPoints(CROSS_ENTROPY)(logits, given())
    assert found[0].item() == pytest.approx(entropy(logits[0, 0, 2, 1].item(), 1) / 2, rel=1e-5)
    last = logits[0, 1, 3, 4].item()
    assert found[1].item() == pytest.approx((entropy(last, 0) + entropy(last, 1)) / 2, rel=1e-5)


@pytest.mark.parametrize(("step", "factor"), [(0, 0), (10, 0), (15, 0.25), (30, 1), (99, 1), (None, 1)])
def test_a_loss_that_warms_up(step: int | None, factor: float) -> None:
    losses = torch.tensor([[2.0, 4.0]])
    now = None if step is None else torch.tensor(float(step))
    assert torch.equal(WarmUp(10, 20)(losses, now), losses * factor)
    assert torch.equal(WarmUp(10, 0)(losses, now), losses)


class Constant:
    """A loss of 1 for the first object, and 3 for the second."""

    def __call__(self, logits: Tensor, given: MaskSupervision) -> Tensor:
        return logits.sum((-2, -1)) * 0 + torch.tensor([1.0, 3.0])


def test_each_loss_is_divided_by_the_weights_that_it_learns_from(logits: Tensor) -> None:
    """Masks of allowed classes alone, and all objects for the others; stages are averaged."""
    weighted = replace(targets(), weights=torch.tensor([[1.0, 0.5]]))
    terms = (DeepMaskTerm("a", 2.0, Constant(), (1,)), DeepMaskTerm("b", 10.0, Constant()))
    found = DeepMaskTask(terms)(DeepMaskPredictions((logits, logits)), weighted, SIZE)
    assert {name: (one.total.item(), float(one.count)) for name, one in found.items()} == {  # type: ignore[arg-type]
        "Loss/a": (3.0, 0.5),
        "Loss/b": (25.0, 1.5),
    }
    values = LossTerm.values(found)
    assert values["Loss/a"].item() == 3.0
    assert values["Loss/b"].item() == pytest.approx(25 / 1.5)


@pytest.mark.parametrize("name", JITTERS)
def test_regions_move_within_their_limits(name: str) -> None:
    """Each mode moves edges the way that its name says, by at most half of the ratio each, within the image."""
    torch.manual_seed(0)
    boxes = torch.tensor([0.4, 0.3, 0.6, 0.7]).expand(1, 500, 4)
    moved = RegionJitter(JITTERS[name], 0.2)(boxes)
    outward = (moved - boxes) * torch.tensor([-1.0, -1.0, 1.0, 1.0]) / torch.tensor([0.2, 0.4, 0.2, 0.4])
    assert outward.abs().max() <= 0.1 + 1e-5
    assert outward.abs().max() > 0.09
    assert (outward.max() <= 1e-6) == name.startswith("SHRINK")
    assert (outward.min() >= -1e-6) == name.startswith("EXPAND")
    alike = torch.allclose(outward[..., :2], outward[..., 2:], atol=1e-5)
    assert alike == ("SYMMETRIC" in name)
    assert torch.allclose(outward[..., 0], outward[..., 1], atol=1e-5) == name.endswith("XY")
    at_border = RegionJitter(JITTERS[name], 0.5)(torch.tensor([0.0, 0.0, 1.0, 1.0]).expand(1, 50, 4))
    assert 0 <= at_border.min() <= at_border.max() <= 1
    padding = RegionJitter(JITTERS[name], 0.5)(torch.zeros(1, 1, 4))
    assert torch.equal(padding, torch.zeros(1, 1, 4))


def test_colors_in_lab() -> None:
    """The primaries' well-known values; any color as in OpenCV, which computes in tables."""
    primaries = torch.eye(3)[None, :, :, None]
    wanted = [[53.24, 80.09, 67.20], [87.73, -86.18, 83.18], [32.30, 79.19, -107.86]]
    np.testing.assert_allclose(lab_of_rgb(primaries)[0, :, :, 0].T, wanted, atol=0.02)
    colors = np.random.default_rng(0).random((8, 9, 3)).astype(np.float32)
    colors[0, :3] = [[0, 0, 0], [1, 1, 1], [0.02, 0.03, 0.01]]
    found = lab_of_rgb(torch.from_numpy(colors).permute(2, 0, 1)[None])[0].permute(1, 2, 0).numpy()
    np.testing.assert_allclose(found, cv2.cvtColor(colors, cv2.COLOR_RGB2LAB), atol=0.4)
