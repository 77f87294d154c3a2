"""Which anchors count in the losses: random samples of positives and negatives, or the costliest ones.

Dimensions: B batch, A anchors.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from boxwright.base.device import in_float64
from boxwright.nn.criteria.target_assigner import UNMATCHED
from boxwright.nn.suppression.image_by_image import suppress_images


@dataclass(frozen=True)
class BalancedSampler:
    """Keep all positives, and as many random negatives as give a wanted fraction of positives.

    An image without positives yields no examples. (TensorFlow's random_example_sampler; it draws from PyTorch's
    generator, which training seeds at each step.)

    Attributes:
        positive_fraction: The fraction of positives, above 0 and at most 1.
    """

    positive_fraction: float = 0.01

    def __call__(self, positive: Tensor, candidates: Tensor) -> Tensor:
        """Return bool [B, A]."""
        kept, negative = positive & candidates, ~positive & candidates
        ratio = (1 - self.positive_fraction) / self.positive_fraction
        wanted = (kept.sum(1).float() * ratio).to(torch.int64)
        # Lots lie in 0..1, so that 2 ranks after all negatives.
        lots = torch.rand(negative.shape, device=negative.device).masked_fill(~negative, 2.0)
        # By rank, not by index: how many indices there are depends on data, for which a GPU would be waited for.
        rank = lots.argsort(dim=1).argsort(dim=1)
        return kept | (negative & (rank < wanted[:, None]))


@dataclass(frozen=True)
class MinibatchSampler:
    """Sample a fixed number of examples per image, with a maximum fraction of positives.

    Negatives fill up missing positives. (Faster R-CNN, section 3.1.3; TensorFlow's BalancedPositiveNegativeSampler.)

    Attributes:
        size: Examples per image, at least 1.
        positive_fraction: The maximum fraction of positives, 0 to 1.
    """

    size: int
    positive_fraction: float = 0.5

    @property
    def most_positives(self) -> int:
        """The maximum number of positives per image."""
        return int(self.positive_fraction * self.size)

    def __call__(self, positive: Tensor, candidates: Tensor) -> Tensor:
        """Return which candidates are examples, bool [B, A]."""
        # TF's second, static form differs from this only where there are too few candidates, and is not reproduced.
        positives = _draw(positive & candidates, self.most_positives)
        room = self.size - positives.sum(1)
        return positives | _draw(~positive & candidates, self.size, room)


def _draw(among: Tensor, most: int, count: Tensor | None = None) -> Tensor:
    """Return random elements of each row [B, A], at most `most` or `count` [B]."""
    most = min(most, among.shape[1])
    # Lots are never below 0, so that -1 is never chosen.
    lots = torch.rand(among.shape, device=among.device).masked_fill(~among, -1.0)
    best = lots.topk(most, dim=1)
    chosen = best.values >= 0
    if count is not None:
        chosen &= torch.arange(most, device=among.device) < count[:, None]
    return torch.zeros_like(among).scatter(1, best.indices, chosen)


# From this threshold on, near duplicates are found first, and only they are compared by score.
_NEARLY = 0.98
# The search is abandoned if boxes have more neighbors than this on average.
_MOST_NEIGHBORS = 40
# Boxes are sorted by x + slant · y; with an irrational slant no two cells of a grid share a position.
_SLANT = 0.7548776662
_SPARE = 256  # candidates beyond twice the maximum per image


def suppress_batch(boxes: Tensor, scores: Tensor, iou_threshold: float, max_output: int) -> Tensor:
    """Return which boxes stay within each image of a batch.

    Args:
        boxes: float [B, A, 4], xyxy.
        scores: float [B, A].
        iou_threshold: Boxes that overlap a kept one by more are dropped.
        max_output: The maximum of boxes per image.

    Returns:
        bool [B, A]: the boxes that stay.
    """
    boxes, scores = boxes.float(), scores.float()
    if boxes.is_cuda:
        chosen, complete = suppress_best(boxes, scores, iou_threshold, max_output)
        if bool(complete.all()):
            return chosen
    from torchvision.ops import nms  # its import takes a second

    kept = torch.ones(scores.shape, dtype=torch.bool, device=scores.device)
    nearly = iou_threshold >= _NEARLY
    compared = _near_duplicates(in_float64(boxes), iou_threshold).to(kept) if nearly else kept.clone()
    for image_kept, image_compared, image_boxes, image_scores in zip(kept, compared, boxes, scores, strict=True):
        rows = image_compared.nonzero().squeeze(1)
        image_kept[rows] = False
        image_kept[rows[nms(image_boxes[rows], image_scores[rows], iou_threshold)]] = True
        if max_output < len(image_kept):
            best = image_scores.masked_fill(~image_kept, -torch.inf).argsort(descending=True, stable=True)
            image_kept[best[max_output:]] = False
    return kept


def suppress_best(boxes: Tensor, scores: Tensor, iou_threshold: float, max_output: int) -> tuple[Tensor, Tensor]:
    """Return which of the best boxes stay, for all images together.

    Only better boxes drop a box: if an image is full, or all its boxes took part, the result is exact.

    Args:
        boxes: As for `suppress_batch`, float32.
        scores: As for `suppress_batch`, float32.

    Returns:
        As `suppress_batch`; and bool [B]: whether the result is exact.
    """
    count = min(2 * max_output + _SPARE, scores.shape[1])
    best = scores.topk(count, dim=1)
    candidates = boxes.gather(1, best.indices[..., None].expand(-1, -1, 4))
    kept = suppress_images(candidates, best.values, torch.zeros_like(best.indices), 1, iou_threshold)
    full = kept.sum(1) >= max_output
    kept = kept & (kept.cumsum(1) <= max_output)
    chosen = torch.zeros_like(scores, dtype=torch.bool).scatter_(1, best.indices, kept)
    return chosen, full | (count == scores.shape[1])


def _near_duplicates(boxes: Tensor, iou_threshold: float) -> Tensor:
    """Return bool [B, A]: boxes float64 [B, A, 4] that may overlap another of their image by a threshold near 1.

    The intersection of two such boxes exceeds that fraction of each width and height, so their corners differ by less
    than (1 - t) / t of either's sides. Sorted along an oblique line, each box is compared with its successors within
    that range.
    """
    flat = boxes.flatten(0, 1)
    sides = flat[:, 2:] - flat[:, :2]
    image = torch.arange(len(flat), device=flat.device) // max(boxes.shape[1], 1)
    usable = flat.isfinite().all(1) & (sides > 0).all(1)
    position = flat[:, 0] + _SLANT * flat[:, 1]
    span = (position[usable].max() - position[usable].min() + 1) if bool(usable.any()) else 1.0
    numbers = usable.nonzero().squeeze(1)
    position = position[numbers] + image[numbers] * 2 * span  # separates images
    order = position.argsort()
    numbers, position = numbers[order], position[order]
    corners, areas, sides = flat[numbers], sides[numbers].prod(1), sides[numbers]
    least = iou_threshold - 1e-4  # allows for float32 rounding of overlaps
    reach = position + (1 - least) / least * (sides[:, 0] + _SLANT * sides[:, 1])
    duplicates = torch.zeros(len(flat), dtype=torch.bool, device=flat.device)
    first, shift, compared = torch.arange(len(numbers), device=flat.device), 0, 0
    while len(first):
        shift += 1
        compared += len(first)
        if compared > _MOST_NEIGHBORS * len(numbers):  # so crowded that suppression itself compares little
            return torch.ones_like(duplicates).view(boxes.shape[:2])
        first = first[first < len(numbers) - shift]
        first = first[position[first + shift] <= reach[first]]
        second = first + shift
        shared = torch.minimum(corners[first, 2:], corners[second, 2:]) - torch.maximum(
            corners[first, :2], corners[second, :2]
        )
        common = shared.clamp(min=0).prod(1)
        equal = common > least * (areas[first] + areas[second] - common)
        duplicates[numbers[first[equal]]] = True
        duplicates[numbers[second[equal]]] = True
    return duplicates.view(boxes.shape[:2])


@dataclass(frozen=True)
class HardExampleMiner:
    """Keep the anchors with the highest losses that do not overlap, then cap negatives relative to positives.

    In each image, non-maximum suppression over the decoded boxes, with the loss as the score, keeps at most
    `num_hard_examples`. Of these all positives stay and, by decreasing loss, negatives up to
    `max_negatives_per_positive` times the positives, or `min_negatives_per_image` if that is more. (TensorFlow's
    HardExampleMiner.)

    Attributes:
        num_hard_examples: The maximum of examples per image; None for no limit.
        iou_threshold: Anchors are dropped whose boxes overlap one of higher loss by more.
        classification_share: Weight of the classification loss in the score.
        localization_share: Weight of the localization loss in the score.
        max_negatives_per_positive: The cap; None for none.
    """

    num_hard_examples: int | None = 64
    iou_threshold: float = 0.7
    classification_share: float = 1.0
    localization_share: float = 0.0
    max_negatives_per_positive: float | None = None
    min_negatives_per_image: int = 0

    def __call__(self, class_losses: Tensor, box_losses: Tensor, boxes: Tensor, match: Tensor) -> Tensor:
        """Return which anchors to train on, bool [B, A], without gradient."""
        score = self.classification_share * class_losses.detach() + self.localization_share * box_losses.detach()
        count = boxes.shape[1] if self.num_hard_examples is None else min(self.num_hard_examples, boxes.shape[1])
        if count == boxes.shape[1] and self.iou_threshold >= 1:
            kept = torch.ones_like(match, dtype=torch.bool)  # no overlap exceeds 1
        else:
            kept = suppress_batch(boxes.detach(), score, self.iou_threshold, count)
        if self.max_negatives_per_positive is None:
            return kept
        return self._cap_negatives(kept, score, match, self.max_negatives_per_positive)

    def _cap_negatives(self, kept: Tensor, score: Tensor, match: Tensor, ratio: float) -> Tensor:
        positive, negative = kept & (match >= 0), kept & (match == UNMATCHED)
        # Rounded down, as in TF.
        allowed = (positive.sum(1) * ratio).to(torch.int64).clamp(min=self.min_negatives_per_image)
        order = score.argsort(dim=1, descending=True, stable=True)
        negatives_so_far = torch.empty_like(order).scatter_(1, order, negative.gather(1, order).cumsum(1))
        # Ignored anchors stay until the cap is reached, as in TensorFlow; their weight is 0.
        return positive | (kept & (negatives_so_far <= allowed[:, None]))
