"""From a region proposal network's predictions to proposals (Faster R-CNN, section 3.1; TF's first stage).

Sampling of proposals for training a second stage (Faster R-CNN, section 3.2; TF's FasterRCNNMetaArch).

Dimensions: B batch, A anchors, R proposals of an image, L levels, S sampled ones, G groundtruth boxes (padded).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor

from boxwright.nn.criteria.example_sampler import MinibatchSampler
from boxwright.nn.criteria.target_assigner import Assigner
from boxwright.nn.ops.box_coder import BoxCoder
from boxwright.nn.ops.boxes import clip_boxes
from boxwright.nn.postprocessing.nms import Nms, PerClass
from boxwright.types import AnchorPredictions, PaddedDetections, Proposals, Targets


@dataclass(frozen=True)
class RegionSampler:
    """Sample proposals with a maximum fraction of positives, keeping their order.

    Attributes:
        add_groundtruth: Whether groundtruth boxes are added to the proposals.
    """

    assigner: Assigner
    sampler: MinibatchSampler
    add_groundtruth: bool = False

    @torch.no_grad()
    def __call__(self, proposals: Proposals, targets: Targets) -> Proposals:
        """Return S proposals per image, and which of them are positive."""
        if self.add_groundtruth:
            proposals = with_groundtruth(proposals, targets)
        assigned = self.assigner(proposals.boxes, targets)
        # Padding is no candidate, nor is what matches a groundtruth box without weight.
        candidates = proposals.valid & (assigned.class_weights.mean(-1) > 0)
        positive = assigned.match >= 0
        chosen = self.sampler(positive, candidates)
        count = min(self.sampler.size, chosen.shape[1])
        # A stable sort instead of `nonzero`, whose shape depends on data.
        index = (~chosen).byte().argsort(dim=1, stable=True)[:, :count]
        taken = chosen.gather(1, index)

        def picked(values: Tensor) -> Tensor:
            return torch.where(taken, values.gather(1, index), 0)

        boxes = proposals.boxes.gather(1, index[..., None].expand(-1, -1, 4)) * taken[..., None]
        return Proposals(boxes, picked(proposals.scores), taken, taken & positive.gather(1, index))


def with_groundtruth(proposals: Proposals, targets: Targets) -> Proposals:
    """Return the proposals followed by the groundtruth boxes with weight, with score 1."""
    valid = targets.valid & (targets.weights > 0)
    return Proposals(
        torch.cat([proposals.boxes, targets.boxes * valid[..., None]], dim=1),
        torch.cat([proposals.scores, valid.to(proposals.scores)], dim=1),
        torch.cat([proposals.valid, valid], dim=1),
    )


@dataclass(frozen=True)
class RegionProposals:
    """Suppress among all anchors, then clip to the image; boxes left without area are not replaced (TF's rule)."""

    box_coder: BoxCoder
    nms: Nms
    nms_in_training: Nms

    @torch.no_grad()
    def __call__(self, predictions: AnchorPredictions, true_sizes: Tensor, *, training: bool) -> Proposals:
        """Return the proposals of a batch, clipped to the true sizes [B, 2]."""
        nms = self.nms_in_training if training else self.nms
        boxes = self.box_coder.decode(predictions.box_codes.float(), predictions.anchors)
        # TF proposes by probabilities, which tie at 1 where logits differ; the lower anchor then comes first.
        scores = predictions.class_logits.float().softmax(-1)[..., 1:]
        return _proposals(nms(boxes, scores, true_sizes.to(boxes)))


@dataclass(frozen=True)
class LevelProposals:
    """Select the best of each level, clip to the image, then suppress (as in Detectron, kerod and torchvision).

    Attributes:
        iou_threshold: Boxes that overlap a better one by more are dropped.
        per_level: The maximum per level; (in training, otherwise).
        most: The maximum of proposals per image, R; (in training, otherwise).
        across_levels: Whether boxes suppress boxes of all levels, or only of their own.
        score: "logit": the object's logit, with those below 0 never proposed; or "probability".
    """

    box_coder: BoxCoder
    iou_threshold: float = 0.7
    per_level: tuple[int, int] = (2000, 1000)
    most: tuple[int, int] = (2000, 1000)
    across_levels: bool = False
    score: Literal["logit", "probability"] = "probability"

    @torch.no_grad()
    def __call__(self, predictions: AnchorPredictions, true_sizes: Tensor, *, training: bool) -> Proposals:
        """Return the proposals of a batch, clipped to the true sizes [B, 2]."""
        per_level, most = (counts[0] if training else counts[1] for counts in (self.per_level, self.most))
        logits = predictions.class_logits.float()
        scores = logits[..., 1] if self.score == "logit" else logits.softmax(-1)[..., 1]
        # In the order of the probabilities, which in float32 are 1 for all large differences, and so tie.
        rank = scores if self.score == "logit" else logits[..., 1] - logits[..., 0]
        sizes_of_levels = predictions.level_sizes or (scores.shape[1],)
        chosen, levels = _best_of_levels(rank, sizes_of_levels, per_level)
        # Decoded after the choice: a few thousand boxes instead of hundreds of thousands.
        anchors = predictions.anchors[chosen]
        codes = predictions.box_codes.float().gather(1, chosen[..., None].expand(-1, -1, 4))
        sizes = true_sizes.to(codes)
        boxes = clip_boxes(self.box_coder.decode(codes, anchors), sizes[:, :1], sizes[:, 1:])
        scores = scores.gather(1, chosen)[..., None]
        if self.across_levels:
            # kerod keeps boxes that clipping left without area.
            return _proposals(Nms(PerClass(self.iou_threshold, most), 0.0, most, outside="keep")(boxes, scores, sizes))
        # With suppression in rounds this took a step of Faster R-CNN with eight images, on an H200, from 1.9 times
        # torchvision's time to 0.76.
        if boxes.is_cuda and not torch.compiler.is_compiling():
            counts = [min(per_level, size) for size in sizes_of_levels]
            return suppressed_by_level(boxes, scores[..., 0], sizes, counts, self.iou_threshold, most)
        of_level = levels[:, None] == torch.arange(len(sizes_of_levels), device=levels.device)
        columns = torch.where(of_level, scores, -torch.inf)
        # The threshold also accepts a probability of 0, and boxes without area take no place, as in torchvision.
        return _proposals(Nms(PerClass(self.iou_threshold, per_level), -1.0, most)(boxes, columns, sizes))


def _best_of_levels(scores: Tensor, level_sizes: Sequence[int], count: int) -> tuple[Tensor, Tensor]:
    """Return the indices int64 [B, n] of the best anchors of each level, level by level, and the levels [n]."""
    indices, levels, first = [], [], 0
    for number, size in enumerate(level_sizes):
        best = scores[:, first : first + size].topk(min(count, size), dim=1).indices
        indices.append(first + best)
        levels.append(torch.full((best.shape[1],), number, device=scores.device))
        first += size
    return torch.cat(indices, dim=1), torch.cat(levels)


def suppressed_by_level(
    boxes: Tensor, scores: Tensor, sizes: Tensor, counts: Sequence[int], iou_threshold: float, most: int
) -> Proposals:
    """Return the best boxes after suppression within each level, computed as if levels were images.

    A GPU compares all pairs of boxes that are suppressed together; five levels apart have a fifth of the pairs.

    Args:
        boxes: float32 [B, A, 4], clipped to the images, level by level.
        scores: float32 [B, A].
        sizes: float32 [B, 2]; the (height, width) of each image.
        counts: The number of boxes of each level.
        most: The maximum per image.
    """
    batch, levels, longest, pad = len(boxes), len(counts), max(counts), torch.nn.functional.pad
    of_levels = zip(boxes.split_with_sizes(counts, 1), scores.split_with_sizes(counts, 1), counts, strict=True)
    padded = [
        (pad(box, (0, 0, 0, longest - count)), pad(score, (0, longest - count), value=-torch.inf))
        for box, score, count in of_levels
    ]
    boxes, scores = (torch.stack(values, 1) for values in zip(*padded, strict=True))
    # As in the general way below: a probability of 0 passes, the padding's minus infinity does not.
    nms = Nms(PerClass(iou_threshold, longest), -1.0, longest)
    kept = nms(boxes.flatten(0, 1), scores.flatten(0, 1)[..., None], sizes.repeat_interleave(levels, 0))
    ranked = torch.where(kept.valid, kept.scores, -torch.inf).view(batch, -1)
    rows = ranked.topk(min(most, ranked.shape[1]), 1).indices
    # Later stages have one shape, whatever the number of anchors.
    missing = most - rows.shape[1]
    return Proposals(
        pad(kept.boxes.view(batch, -1, 4).gather(1, rows[..., None].expand(-1, -1, 4)), (0, 0, 0, missing)),
        pad(kept.scores.view(batch, -1).gather(1, rows), (0, missing)),
        pad(kept.valid.view(batch, -1).gather(1, rows), (0, missing)),
    )


def _proposals(detections: PaddedDetections) -> Proposals:
    return Proposals(detections.boxes, detections.scores, detections.valid, complete=detections.complete)
