"""Keypoints of detected objects (Objects as Points, section 4.2): regressed from the center, then snapped to peaks.

Several tasks may each predict the keypoints of a class; together they become those of one label map.

Dimensions: B batch, D detections, P keypoints of a task or of the label map, n candidates of a keypoint, H W grid of
cells, P' keypoints of a task.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

import torch
from torch import Tensor

from boxwright.base.device import constants
from boxwright.families.center_net.cells import CellBoxes, gaussian_deviations, grid_shape, read, read_each
from boxwright.families.center_net.postprocessing.peaks import best_of_each_channel
from boxwright.families.center_net.predictions import KeypointMaps

# The distance of what is no candidate, in cells; and the overlap that sets a Gaussian's radius.
_FAR = 1e5
_MIN_IOU = 0.7


@dataclass(frozen=True)
class Keypoints:
    """The keypoints of detections.

    Attributes:
        points: float [B, P, D, 2]; y, x in cells.
        scores: float [B, P, D].
        depths: float [B, P, D]; or None.
    """

    points: Tensor
    scores: Tensor
    depths: Tensor | None = None


@dataclass(frozen=True)
class Candidates:
    """The peaks of each keypoint's heatmap, best first.

    Attributes:
        points: float [B, P, n, 2]; y, x in cells.
        scores: float [B, P, n].
        valid: bool [B, P, n]; False for those that score too low.
        depths: float [B, P, n]; or None.
    """

    points: Tensor
    scores: Tensor
    valid: Tensor
    depths: Tensor | None = None

    @classmethod
    def find(cls, maps: KeypointMaps, count: int, window: int, threshold: float) -> Candidates:
        """Return the best peaks of a task's maps; those are valid that score at least the threshold."""
        peaks = best_of_each_channel(maps.heatmap.float().sigmoid(), count, window)
        points = peaks.cells + read_each(maps.offsets.float(), peaks.cells, 2)
        depths = None
        if maps.depths is not None:
            depths = read_each(maps.depths.float(), peaks.cells, 1).squeeze(-1)
        return cls(points, peaks.scores, peaks.scores >= threshold, depths)


class Ranking(Protocol):
    """Decides which candidate a regressed keypoint is snapped to."""

    def __call__(self, distances: Tensor, scores: Tensor, boxes: CellBoxes) -> tuple[Tensor, Tensor]:
        """Return the rank of each candidate, of which the highest is taken, and the scores that it brings.

        Args:
            distances: float [B, P, D, n]; in cells.
            scores: float [B, P, n].
            boxes: [B, D]; the objects'.

        Returns:
            Both float [B, P, D, n], or the scores as they came, [B, P, 1, n].
        """
        ...


@dataclass(frozen=True)
class Nearest:
    """The nearest candidate."""

    def __call__(self, distances: Tensor, scores: Tensor, boxes: CellBoxes) -> tuple[Tensor, Tensor]:
        """Return ranks and scores."""
        del boxes
        return -distances, scores[:, :, None]


@dataclass(frozen=True)
class ScoreByDistance:
    """The highest score divided by distance.

    Attributes:
        offset: Added to distances, in cells.
    """

    offset: float = 1.0

    def __call__(self, distances: Tensor, scores: Tensor, boxes: CellBoxes) -> tuple[Tensor, Tensor]:
        """Return ranks and scores."""
        del boxes
        return scores[:, :, None] / (distances + self.offset), scores[:, :, None]


@dataclass(frozen=True)
class ScoreByScaledDistance:
    """The highest score divided by distance, in relation to the object's size.

    Attributes:
        multiplier: The share of the box's longer side that is added to distances.
    """

    multiplier: float = 0.1

    def __call__(self, distances: Tensor, scores: Tensor, boxes: CellBoxes) -> tuple[Tensor, Tensor]:
        """Return ranks and scores."""
        offsets = boxes.sizes.amax(-1) * self.multiplier
        return scores[:, :, None] / (distances + offsets[:, None, :, None]), scores[:, :, None]


@dataclass(frozen=True)
class GaussianWeighted:
    """The highest score weighted by a Gaussian of distance, as wide as the keypoint's target; it is the new score.

    Attributes:
        deviations: Of each keypoint, relative to that of an object's center.
    """

    deviations: tuple[float, ...]

    def __call__(self, distances: Tensor, scores: Tensor, boxes: CellBoxes) -> tuple[Tensor, Tensor]:
        """Return ranks and scores."""
        own = constants(self.deviations, distances.device)
        spread = own[:, None] * gaussian_deviations(boxes.sizes, _MIN_IOU)[:, None]
        weighted = scores[:, :, None] * torch.exp(-distances.square() / (2 * spread.square()[..., None]))
        return weighted, weighted


@dataclass(frozen=True)
class Snapping:
    """Moves regressed keypoints to candidates in their neighborhood (TF's `refine_keypoints`).

    Attributes:
        score_threshold: The least score of a candidate.
        unmatched_score: The score of keypoints that stay where they were regressed.
        box_scale: The factor on the object's box, outside of which no candidate is taken.
        search_scale: The longest way to a candidate, as a share of the scaled box's longer side.
    """

    ranking: Ranking = Nearest()
    score_threshold: float = 0.1
    unmatched_score: float = 0.1
    box_scale: float = 1.2
    search_scale: float = 0.3

    def __call__(self, regressed: Tensor, candidates: Candidates, boxes: CellBoxes, *, bounded: bool) -> Keypoints:
        """Return the keypoints of objects.

        Args:
            regressed: float [B, P, D, 2]; y, x in cells.
            boxes: [B, D]; the objects'.
            bounded: Whether candidates have to lie within the box and the longest way.
        """
        # Axis by axis: a sum over pairs of numbers takes longer than all the rest.
        y, x = (
            (regressed_axis[:, :, :, None] - candidate_axis[:, :, None]).square()
            for regressed_axis, candidate_axis in zip(regressed.unbind(-1), candidates.points.unbind(-1), strict=True)
        )
        distances = (y + x).sqrt()
        distances = distances.where(candidates.valid[:, :, None], _FAR)
        ranks, scores = self.ranking(distances, candidates.scores, boxes)
        best = ranks.argmax(-1, keepdim=True)
        score = scores.expand_as(ranks).gather(-1, best).squeeze(-1)
        point = candidates.points.gather(2, best.expand(-1, -1, -1, 2))
        stays = score < self.score_threshold
        if bounded:
            scaled = boxes.scaled(self.box_scale)
            away = (point < scaled.low[:, None]) | (point > scaled.high[:, None])
            farthest = scaled.sizes.amax(-1)[:, None] * self.search_scale
            stays = stays | away.any(-1) | (distances.amin(-1) > farthest)
        depths = None
        if candidates.depths is not None:
            depths = candidates.depths.gather(2, best.squeeze(-1)).masked_fill(stays, 0.0)
        return Keypoints(
            regressed.where(stays[..., None], point), score.masked_fill(stays, self.unmatched_score), depths
        )


def regressed_at(maps: KeypointMaps, cells: Tensor) -> Tensor:
    """Return the keypoints that the cells of objects' centers [B, D, 2] point to: float [B, P, D, 2], y, x in cells."""
    points = maps.heatmap.shape[1]
    vectors = read(maps.regression.float(), cells).view(*cells.shape[:2], points, 2)
    return cells[:, None] + vectors.transpose(1, 2)


@dataclass(frozen=True)
class SnappedKeypoints:
    """Keypoints regressed from the center, and snapped to the peaks of their heatmaps.

    Attributes:
        num_candidates: Peaks of each heatmap that are considered.
        window: The side of the window in which a peak is the maximum, in cells.
    """

    snapping: Snapping
    num_candidates: int = 100
    window: int = 3

    def __call__(self, maps: KeypointMaps, cells: Tensor, boxes: CellBoxes, *, bounded: bool) -> Keypoints:
        """Return the keypoints of the objects whose centers lie in cells [B, D, 2]."""
        candidates = Candidates.find(maps, self.num_candidates, self.window, self.snapping.score_threshold)
        return self.snapping(regressed_at(maps, cells), candidates, boxes, bounded=bounded)


@dataclass(frozen=True)
class BrightestKeypoints:
    """The cell of each heatmap that is brightest under a Gaussian at the regressed keypoint (TF's `argmax`).

    Attributes:
        denominator: Of the Gaussian's exponent, as a share of the grid's shorter side.
    """

    denominator: float = 0.1

    def __call__(self, maps: KeypointMaps, cells: Tensor, boxes: CellBoxes, *, bounded: bool) -> Keypoints:
        """Return the keypoints of the objects whose centers lie in cells [B, D, 2]; only within their boxes."""
        del bounded
        grid, regressed = grid_shape(maps.heatmap), regressed_at(maps, cells)
        denominator = min(grid) * self.denominator
        axes = [torch.arange(count, device=cells.device) for count in grid]
        near = []
        for number, axis in enumerate(axes):
            weight = torch.exp(-(axis - regressed[..., number, None]).square() / denominator)
            inside = (axis >= boxes.low[..., number, None]) & (axis < boxes.high[..., number, None])
            near.append(weight * inside[:, None])
        weighted = maps.heatmap.float().sigmoid()[:, :, None] * (near[0][..., :, None] * near[1][..., None, :])
        places = weighted.flatten(3).argmax(-1)
        # The score of a cell is the best that any object gives it.
        scores = weighted.amax(2).flatten(2).gather(2, places)
        peaks = torch.stack([places // grid[1], places % grid[1]], dim=-1)
        return Keypoints(peaks + read_each(maps.offsets.float(), peaks, 2), scores)


class KeypointDecoder(Protocol):
    """Finds the keypoints of objects."""

    def __call__(self, maps: KeypointMaps, cells: Tensor, boxes: CellBoxes, *, bounded: bool) -> Keypoints:
        """Return the keypoints of the objects whose centers lie in cells [B, D, 2]."""
        ...


@dataclass(frozen=True)
class KeypointTaskDecoder:
    """The decoding of a keypoint task.

    Attributes:
        label: The class that has the keypoints.
        indices: Their places among the keypoints of a detection.
        rescores_above: Detections score as the mean of their keypoints that score above, multiplied by their own; None
            where their scores stay.
    """

    label: int
    indices: tuple[int, ...]
    decode: KeypointDecoder
    rescores_above: float | None = None

    def rescored(self, scores: Tensor, labels: Tensor, keypoint_scores: Tensor) -> Tensor:
        """Return the scores of detections, float [B, D], given those of all keypoints, float [B, P, D]."""
        if self.rescores_above is None:
            return scores
        own = keypoint_scores.index_select(1, constants(self.indices, scores.device, torch.int64))
        visible = own > self.rescores_above
        mean = (own * visible).sum(1) / visible.sum(1).clamp(min=1)
        return torch.where(labels == self.label, scores * mean, scores)


@dataclass(frozen=True)
class KeypointsOfTasks:
    """The keypoints of detections; 0 for those that the class of a detection lacks.

    Attributes:
        points: float [B, P, D, 2]; y, x in cells.
        scores: float [B, P, D].
        own: bool [B, P, D]; whether the class of a detection has the keypoint.
        depths: float [B, P, D]; of the only task, or None.
    """

    points: Tensor
    scores: Tensor
    own: Tensor
    depths: Tensor | None


def keypoints_of_tasks(
    tasks: Sequence[KeypointTaskDecoder],
    maps: Sequence[KeypointMaps],
    cells: Tensor,
    boxes: CellBoxes,
    labels: Tensor,
    *,
    bounded: bool,
) -> KeypointsOfTasks:
    """Return what each task finds for the detections of its class, in the places of the label map.

    Args:
        cells: int64 [B, D, 2]; the cells of objects' centers.
        boxes: [B, D]; the objects'.
        labels: int64 [B, D].
        bounded: Whether boxes are predicted, and bound the keypoints.
    """
    decoded = [task.decode(part, cells, boxes, bounded=bounded) for task, part in zip(tasks, maps, strict=True)]
    of_class = [
        (labels == task.label)[:, None].expand_as(keypoints.scores)
        for task, keypoints in zip(tasks, decoded, strict=True)
    ]
    # What the label map has, but no task, is taken from a last row of zeros.
    rows = [index for task in tasks for index in task.indices]
    count = max(rows) + 1
    order = constants([rows.index(n) if n in rows else len(rows) for n in range(count)], labels.device, torch.int64)
    nothing = torch.zeros_like(of_class[0][:, :1])
    own = torch.cat([*of_class, nothing], 1).index_select(1, order)
    scores = torch.cat([*(keypoints.scores for keypoints in decoded), nothing.to(decoded[0].scores)], 1)
    scores = scores.index_select(1, order)
    spaces = nothing[..., None].expand(-1, -1, -1, 2).to(decoded[0].points)
    points = torch.cat([*(keypoints.points for keypoints in decoded), spaces], 1).index_select(1, order)
    return KeypointsOfTasks(points.where(own[..., None], 0.0), scores.where(own, 0.0), own, decoded[0].depths)


def in_frame(points: Tensor, scores: Tensor, sizes: Tensor) -> tuple[Tensor, Tensor]:
    """Return points moved to the border of the image, with scores of 0, if they lie beyond.

    Args:
        points: float [B, P, D, 2]; x, y in pixels.
        scores: float [B, P, D].
        sizes: float [B, 2]; (height, width) of the images.
    """
    limits = sizes.flip(-1)[:, None, None]
    outside = ((points < 0) | (points > limits)).any(-1)
    return points.clamp(min=0).minimum(limits), scores.masked_fill(outside, 0.0)


def boxes_around(points: Tensor, own: Tensor) -> Tensor:
    """Return the boxes [B, D, 4] around each detection's own points; 0 without any.

    Args:
        points: float [B, P, D, 2]; x, y.
        own: bool [B, P, D].
    """
    low = points.masked_fill(~own[..., None], torch.inf).amin(1)
    high = points.masked_fill(~own[..., None], -torch.inf).amax(1)
    return torch.cat([low, high], dim=-1).where(own.any(1)[..., None], 0.0)
