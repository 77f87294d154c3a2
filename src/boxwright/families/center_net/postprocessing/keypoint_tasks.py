"""The keypoints of several tasks, each of a class, as those of one label map.

Dimensions: B batch, D detections, P keypoints of the label map, P' keypoints of a task.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

import torch
from torch import Tensor

from boxwright.families.center_net.cells import CellBoxes
from boxwright.families.center_net.postprocessing.keypoints import Keypoints
from boxwright.families.center_net.predictions import KeypointMaps
from boxwright.nn.ops.constants import constants


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
    found = [task.decode(part, cells, boxes, bounded=bounded) for task, part in zip(tasks, maps, strict=True)]
    of_class = [(labels == task.label)[:, None].expand_as(one.scores) for task, one in zip(tasks, found, strict=True)]
    # What the label map has, but no task, is taken from a last row of zeros.
    rows = [index for task in tasks for index in task.indices]
    count = max(rows) + 1
    order = constants([rows.index(n) if n in rows else len(rows) for n in range(count)], labels.device, torch.int64)
    nothing = torch.zeros_like(of_class[0][:, :1])
    own = torch.cat([*of_class, nothing], 1).index_select(1, order)
    scores = torch.cat([*(one.scores for one in found), nothing.to(found[0].scores)], 1).index_select(1, order)
    spaces = nothing[..., None].expand(-1, -1, -1, 2).to(found[0].points)
    points = torch.cat([*(one.points for one in found), spaces], 1).index_select(1, order)
    return KeypointsOfTasks(points.where(own[..., None], 0.0), scores.where(own, 0.0), own, found[0].depths)


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
