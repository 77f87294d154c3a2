"""The task of DeepMAC's masks, learned from groundtruth, or without it from boxes, colors, other views and points.

The losses are those of TF's `deepmac_meta_arch`, of which some are from BoxInst (Tian et al., 2020) and DiscoBox. Boxes
are moved at random on the device (TF's `random_jitter_boxes`; `data/augmentation/labels.py` has it for records).

Dimensions: B batch, G objects (padded), C channels, H W grid of cells, h w mask, n pixels, P keypoints, N boxes of an
image.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol

import torch
from torch import Tensor
from torch.nn import functional as F

from boxwright.base.device import constants
from boxwright.families.center_net.criteria.task import known
from boxwright.families.center_net.predictions import STRIDE, DeepMaskPredictions
from boxwright.nn.criteria.criterion import LossTerm
from boxwright.nn.criteria.losses import ClassificationLoss, Dice
from boxwright.nn.ops.boxes import normalized
from boxwright.nn.ops.roi import crop_and_resize, mask_targets, whole_masks
from boxwright.types import Targets

_NEIGHBORS = tuple((y, x) for y in (-1, 0, 1) for x in (-1, 0, 1) if (y, x) != (0, 0))
# What the distance of colors is divided by, and the least probability that two neighbors are alike.
_THETA, _LEAST_ALIKE = 2.0, 1e-3


@dataclass(frozen=True)
class MaskSupervision:
    """What masks are learned from.

    Attributes:
        boxes: float [B, G, 4]; the groundtruth's, xyxy in 0..1 of the grid.
        regions: The same, moved a little at random; masks of boxes are compared there.
        targets: The groundtruth.
        size: (height, width) of the grid in pixels.
        view: float [B, G, h, w]; logits in another view of the image; or None.
        features: float [B, C, H, W]; what neighbors are compared by; or None.
        step: float scalar; the number of the training step; None outside of training.
    """

    boxes: Tensor
    regions: Tensor
    targets: Targets
    size: tuple[int, int]
    view: Tensor | None = None
    features: Tensor | None = None
    step: Tensor | None = None


class DeepMaskLoss(Protocol):
    """A loss of each mask."""

    def __call__(self, logits: Tensor, given: MaskSupervision) -> Tensor:
        """Return float [B, G], for logits [B, G, h, w]; those of padding are meaningless, but finite."""
        ...


@dataclass(frozen=True)
class WarmUp:
    """The factor of a loss that begins late, and grows; 1 outside of training.

    Attributes:
        start: The step at which it is 0 for the last time.
        steps: After so many more it is 1; 0 for always 1.
    """

    start: int = 0
    steps: int = 0

    def __call__(self, losses: Tensor, step: Tensor | None) -> Tensor:
        """Return losses times the factor."""
        if step is None or not self.steps:
            return losses
        return losses * ((step - self.start) / self.steps).clamp(0, 1)


# Given losses and targets, float [N, n], returns the loss of each row.
Normalize = Callable[[Tensor, Tensor], Tensor]


def mean_of_pixels(losses: Tensor, wanted: Tensor) -> Tensor:
    """Return the means."""
    del wanted
    return losses.mean(1)


def per_foreground_pixel(losses: Tensor, wanted: Tensor) -> Tensor:
    """Return the sums, divided by those of the targets."""
    return losses.sum(1) / wanted.sum(1).clamp(min=1e-6)


def balanced(losses: Tensor, wanted: Tensor) -> Tensor:
    """Return the sum of the means over foreground and over background."""
    inside, outside = wanted.sum(1, keepdim=True), (1 - wanted).sum(1, keepdim=True)
    return (losses / (wanted * inside + (1 - wanted) * outside).clamp(min=1e-6)).sum(1)


@dataclass(frozen=True)
class FromMasks:
    """How masks differ from the groundtruth's.

    Attributes:
        side: Of masks that span boxes; None for those that span the image.
        skip_overlaps: Whether logits are 0 where boxes of one class overlap.
    """

    loss: ClassificationLoss
    side: int | None = None
    skip_overlaps: bool = False

    def __call__(self, logits: Tensor, given: MaskSupervision) -> Tensor:
        """Return float [B, G]; 0 where there are no objects.

        Raises:
            DataError: If there are objects without masks.
        """
        given.targets.require_masks(
            "set load_instance_masks and mask_type in the input reader, or deepmac_mask_estimation.task_loss_weight: 0"
        )
        masks = given.targets.masks
        if masks is None:
            return logits.sum((-2, -1)) * 0.0
        if self.side is None:
            rows = logits.flatten(0, 1)[:, None]
            enlarged = F.interpolate(rows, size=given.size, mode="bilinear", align_corners=False)
            logits = enlarged.view(*logits.shape[:2], *given.size)
            wanted = whole_masks(masks, given.size)
        else:
            batch, count = given.boxes.shape[:2]
            numbers = torch.arange(count, device=given.boxes.device).expand(batch, -1)
            regions = given.regions * constants(given.size[::-1] * 2, given.boxes.device)
            wanted = mask_targets(masks, numbers, regions, (self.side, self.side), given.size, fade=True)
        if self.skip_overlaps:
            size = (logits.shape[2], logits.shape[3])
            logits = logits * ~_overlapping(given.regions, given.targets, size)
        return self.loss(*_columns(logits, wanted)).mean(1).view(logits.shape[:2])


@dataclass(frozen=True)
class FromBoxes:
    """Whether a mask's rows and columns end where its box does (BoxInst, equation 2).

    Attributes:
        normalize: Of each row's and column's loss, the object's.
        side: Of masks that span boxes; None for those that span the image.
        tight: Whether along the box only what lies inside counts, so that masks touch all of its sides.
    """

    loss: ClassificationLoss
    normalize: Normalize = mean_of_pixels
    side: int | None = None
    tight: bool = False

    def __call__(self, logits: Tensor, given: MaskSupervision) -> Tensor:
        """Return float [B, G]."""
        inside = filled(given.boxes, (logits.shape[2], logits.shape[3])).to(logits.dtype)
        if self.side is not None:
            # TF crops masks that span boxes as if they spanned the image.
            inside, logits = (_cropped(masks, given.regions, self.side) for masks in (inside, logits))
        both: Tensor | float = 0.0
        for axis in (2, 3):
            largest, wanted = logits.amax(axis), inside.amax(axis)
            if self.tight:
                within = (logits * inside).amax(axis)
                largest = wanted * within + (1 - wanted) * largest
            rows = wanted.flatten(0, 1)
            losses = self.loss(*_columns(largest, wanted))
            both = both + self.normalize(losses, rows).view(logits.shape[:2])
        return torch.as_tensor(both)


# Given features [B, C, H, W] and their neighbors', returns how alike each pair is, [B, H, W].
Compare = Callable[[Tensor, Tensor], Tensor]


def by_distance(features: Tensor, neighbors: Tensor) -> Tensor:
    """Return 1 for the same, falling with the distance (BoxInst, equation 5)."""
    return torch.exp(-(features - neighbors).square().sum(1).sqrt() / _THETA)


def by_direction(features: Tensor, neighbors: Tensor) -> Tensor:
    """Return the cosine of the angle between them."""
    ours, theirs = (
        vectors * vectors.square().sum(1, keepdim=True).clamp(min=1e-4).rsqrt() for vectors in (features, neighbors)
    )
    return (ours * theirs).sum(1)


@dataclass(frozen=True)
class FromFeatures:
    """Whether neighbors that look alike have the same label, within each box (BoxInst, equation 8).

    Attributes:
        threshold: What counts as alike.
        dilation: The distance of neighbors, in cells.
    """

    threshold: float = 0.4
    dilation: int = 2
    compare: Compare = by_distance
    warm_up: WarmUp = WarmUp()

    def __call__(self, logits: Tensor, given: MaskSupervision) -> Tensor:
        """Return float [B, G]; 0 for masks that span boxes, as in TF."""
        if given.features is None:
            return logits.sum((-2, -1)) * 0.0
        masks = logits.sigmoid()
        box = filled(given.boxes, (logits.shape[2], logits.shape[3])).to(logits.dtype)
        total = torch.zeros_like(masks)
        for step in _NEIGHBORS:
            alike = self.compare(given.features, _shifted(given.features, step, self.dilation)) > self.threshold
            neighbors = _shifted(masks, step, self.dilation)
            same = (masks * neighbors + (1 - masks) * (1 - neighbors)).clamp(_LEAST_ALIKE, 1.0)
            total = total - same.log() * alike[:, None]
        losses = (total * box).sum((-2, -1)) / box.sum((-2, -1)).clamp(min=1.0)
        return self.warm_up(losses, given.step)


# Given logits, those of another view, and whether each pixel counts, all float [N, n], returns the loss of each row.
CompareViews = Callable[[Tensor, Tensor, Tensor], Tensor]


def overlap_of_views(logits: Tensor, others: Tensor, counted: Tensor) -> Tensor:
    """Return one minus the Dice coefficient with the other view's foreground."""
    wanted = (others > 0).to(logits.dtype)
    return Dice()(logits[..., None], wanted[..., None], counted[..., None]).sum(1)


def square_error_of_views(logits: Tensor, others: Tensor, counted: Tensor) -> Tensor:
    """Return the mean square of the difference of probabilities."""
    squares = (logits.sigmoid() - others.sigmoid()).square() * counted
    return squares.sum(1) / counted.sum(1).clamp(min=1.0)


def divergence_of_views(logits: Tensor, others: Tensor, counted: Tensor) -> Tensor:
    """Return the mean Kullback-Leibler divergence from the other view's probabilities."""
    predicted, wanted = logits.sigmoid(), others.sigmoid()
    pairs = ((wanted, predicted), (1 - wanted, 1 - predicted))
    # Clipped as Keras clips.
    clipped = [(a.clamp(1e-7, 1.0), b.clamp(1e-7, 1.0)) for a, b in pairs]
    divergence = sum((a * (a / b).log() for a, b in clipped), torch.zeros_like(logits))
    return (divergence * counted).sum(1) / counted.sum(1).clamp(min=1.0)


@dataclass(frozen=True)
class FromViews:
    """Whether a mask is the same in another view of the image."""

    compare: CompareViews
    warm_up: WarmUp = WarmUp()

    def __call__(self, logits: Tensor, given: MaskSupervision) -> Tensor:
        """Return float [B, G]."""
        if given.view is None:
            raise ValueError("the network has not seen another view")
        box = filled(given.boxes, (logits.shape[2], logits.shape[3])).to(logits.dtype)
        rows = [masks.flatten(2).flatten(0, 1) for masks in (logits, given.view.to(logits.dtype), box)]
        return self.warm_up(self.compare(rows[0], rows[1], rows[2]).view(logits.shape[:2]), given.step)


@dataclass(frozen=True)
class FromPoints:
    """Whether a mask agrees with labeled points: keypoints, whose depth is above 0 where they lie on the object."""

    loss: ClassificationLoss

    def __call__(self, logits: Tensor, given: MaskSupervision) -> Tensor:
        """Return float [B, G], for masks that span the image.

        Raises:
            DataError: If there are objects, but no keypoints with depths.
        """
        points = known(given.targets.keypoints, given.targets, (1, 2), "points as keypoints")
        depths = known(given.targets.keypoint_depths, given.targets, (points.shape[2],), "points' labels as depths")
        weights = (~points.isnan().any(-1)).to(logits.dtype)
        cells = (points.nan_to_num(nan=0.0) / STRIDE).trunc().long().clamp(min=0)
        height, width = logits.shape[2:]
        places = cells[..., 1].clamp(max=height - 1) * width + cells[..., 0].clamp(max=width - 1)
        predicted = logits.flatten(2).gather(2, places).flatten(0, 1)[..., None]
        wanted = (depths > 0).to(logits.dtype).flatten(0, 1)[..., None]
        return self.loss(predicted, wanted, weights.flatten(0, 1)[..., None]).mean(1).view(logits.shape[:2])


@torch.no_grad()
def filled(boxes: Tensor, size: tuple[int, int]) -> Tensor:
    """Return which pixels of masks of a size lie in boxes [B, G, 4], xyxy in 0..1, ends included: bool [B, G, h, w]."""
    axes = []
    for side, count in zip((1, 0), size, strict=True):
        numbers = torch.arange(count, device=boxes.device)
        low, high = boxes[..., side, None] * count, boxes[..., side + 2, None] * count
        axes.append((numbers >= low) & (numbers <= high))
    return axes[0][..., :, None] & axes[1][..., None, :]


def _overlapping(boxes: Tensor, targets: Targets, size: tuple[int, int]) -> Tensor:
    """Return where more than one box of an object's class lies, its own included: bool [B, G, h, w]."""
    inside = filled(boxes, size).float() * targets.valid[..., None, None]
    same = (targets.labels[:, :, None] == targets.labels[:, None]).float()
    return (same @ inside.flatten(2)).view(inside.shape) > 1.5


def _columns(logits: Tensor, wanted: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Return logits and targets [B, G, …] as rows of pixels with one class, [B · G, n, 1], and weights of 1."""
    rows = logits.flatten(2).flatten(0, 1)[..., None]
    return rows, wanted.reshape(rows.shape).to(rows.dtype), torch.ones_like(rows)


def _cropped(masks: Tensor, boxes: Tensor, side: int) -> Tensor:
    """Return the crop of each mask [B, G, h, w] at its box, xyxy in 0..1: [B, G, side, side]."""
    levels = torch.zeros(masks.shape[0] * masks.shape[1], 1, dtype=torch.int64, device=masks.device)
    regions = boxes.flatten(0, 1)[:, None]
    crops = crop_and_resize([masks.flatten(0, 1)[:, None]], regions, levels, (side, side), fade=True)
    return crops.view(*masks.shape[:2], side, side)


def _shifted(maps: Tensor, step: tuple[int, int], dilation: int) -> Tensor:
    """Return the value of each cell's neighbor, one `step` of y and x away times the dilation; 0 beyond the border."""
    down, right = step[0] * dilation, step[1] * dilation
    height, width = maps.shape[-2:]
    padded = F.pad(maps, (dilation,) * 4)
    return padded[..., dilation + down : dilation + down + height, dilation + right : dilation + right + width]


# Given draws of 0..1 and the room around each box, both [B, N, 4] as y_min, x_min, y_max, x_max, and the ratio, returns
# how far each edge moves outward, in units of the box's own height and width.
Draw = Callable[[Tensor, Tensor, float], Tensor]


def _free(drawn: Tensor, room: Tensor, ratio: float) -> Tensor:
    del room
    return (2 * drawn - 1) * ratio / 2


def _grow(drawn: Tensor, room: Tensor, ratio: float) -> Tensor:
    del room
    return drawn * ratio / 2


def _shrink(drawn: Tensor, room: Tensor, ratio: float) -> Tensor:
    del room
    return -drawn * ratio / 2


def _grow_symmetric(drawn: Tensor, room: Tensor, ratio: float) -> Tensor:
    by_axis = torch.minimum(room[..., :2], room[..., 2:])
    return torch.minimum(drawn[..., :2] * ratio / 2, by_axis).repeat(1, 1, 2)


def _shrink_symmetric(drawn: Tensor, room: Tensor, ratio: float) -> Tensor:
    del room
    return (-drawn[..., :2] * ratio / 2).repeat(1, 1, 2)


def _grow_alike(drawn: Tensor, room: Tensor, ratio: float) -> Tensor:
    return torch.minimum(drawn[..., :1] * ratio / 2, room.amin(-1, keepdim=True)).expand_as(room)


def _shrink_alike(drawn: Tensor, room: Tensor, ratio: float) -> Tensor:
    return (-drawn[..., :1] * ratio / 2).expand_as(room)


JITTERS: dict[str, Draw] = {
    "DEFAULT": _free,
    "EXPAND": _grow,
    "SHRINK": _shrink,
    "EXPAND_SYMMETRIC": _grow_symmetric,
    "SHRINK_SYMMETRIC": _shrink_symmetric,
    "EXPAND_SYMMETRIC_XY": _grow_alike,
    "SHRINK_SYMMETRIC_XY": _shrink_alike,
}


@dataclass(frozen=True)
class RegionJitter:
    """Moves boxes at random.

    Attributes:
        ratio: The most that both edges of an axis move together, in units of the box.
    """

    draw: Draw
    ratio: float

    @torch.no_grad()
    def __call__(self, boxes: Tensor) -> Tensor:
        """Return boxes [B, N, 4], xyxy in 0..1 of the image, moved and clipped to it, by PyTorch's generator."""
        swapped = _swapped(boxes)
        sides = (swapped[..., 2:] - swapped[..., :2]).repeat(1, 1, 2)
        safe = sides.where(sides > 0, 1.0)
        room = torch.cat([swapped[..., :2], 1 - swapped[..., 2:]], dim=-1) / safe
        outward = self.draw(torch.rand_like(boxes), room, self.ratio) * sides
        moved = torch.cat([swapped[..., :2] - outward[..., :2], swapped[..., 2:] + outward[..., 2:]], dim=-1)
        return _swapped(moved.clamp(0, 1))


def _swapped(boxes: Tensor) -> Tensor:
    """Return boxes [..., 4] with x and y exchanged; an index of a list would be copied to the GPU."""
    return torch.cat([boxes[..., :2].flip(-1), boxes[..., 2:].flip(-1)], dim=-1)


# Given boxes [B, G, 4] in 0..1, returns them moved at random.
Jitter = Callable[[Tensor], Tensor]


@dataclass(frozen=True)
class DeepMaskTerm:
    """One of the losses.

    Attributes:
        name: In TF's `Loss/…`.
        labels: Of the classes whose objects it learns from; None for all.
    """

    name: str
    weight: float
    loss: DeepMaskLoss
    labels: tuple[int, ...] | None = None


@dataclass(frozen=True)
class DeepMaskTask:
    """The losses of masks, each divided by the weights of the objects that it learns from.

    Attributes:
        jitter: Moves boxes in training, before the groundtruth is cropped; None for not.
    """

    terms: tuple[DeepMaskTerm, ...]
    jitter: Jitter | None = None

    def __call__(self, masks: DeepMaskPredictions, targets: Targets, size: tuple[int, int]) -> dict[str, LossTerm]:
        """Return the terms, averaged over stages.

        Args:
            size: Of the grid, in pixels.
        """
        if not masks.of_objects:
            raise ValueError("the network has not been given the groundtruth, and so predicted no masks of it")
        boxes = normalized(targets.boxes, size)
        views = masks.of_views or (None,) * len(masks.of_objects)
        totals: dict[str, list[Tensor]] = {term.name: [] for term in self.terms}
        weights = {term.name: _weights(targets, term.labels) for term in self.terms}
        for logits, view in zip(masks.of_objects, views, strict=True):
            regions = boxes if self.jitter is None or masks.step is None else self.jitter(boxes)
            given = MaskSupervision(boxes, regions, targets, size, view, masks.features, masks.step)
            for term in self.terms:
                totals[term.name].append((term.loss(logits.float(), given) * weights[term.name]).sum())
        return {
            f"Loss/{term.name}": LossTerm(term.weight * torch.stack(totals[term.name]).mean(), weights[term.name].sum())
            for term in self.terms
        }


def _weights(targets: Targets, labels: tuple[int, ...] | None) -> Tensor:
    """Return the weights [B, G] of the objects of some classes; 0 for others."""
    if labels is None:
        return targets.weights
    allowed = constants(labels, targets.labels.device, torch.int64)
    return targets.weights * (targets.labels[..., None] == allowed).any(-1)
