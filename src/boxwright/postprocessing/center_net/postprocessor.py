"""CenterNet's postprocessor (Objects as Points, section 4.1; TF's CenterNetMetaArch.postprocess).

Dimensions: B batch, K classes, D detections, P keypoints of the label map, H W grid of cells.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Protocol

import torch
from torch import Tensor

from boxwright.ops.boxes import clip_boxes
from boxwright.ops.cells import CellBoxes, grid_of, read
from boxwright.ops.constants import constants
from boxwright.postprocessing.anchor import of_anchors
from boxwright.postprocessing.center_net.keypoints import Keypoints
from boxwright.postprocessing.center_net.masks import MaskDecoder
from boxwright.postprocessing.center_net.peaks import Peaks, best_peaks
from boxwright.postprocessing.nms import Nms
from boxwright.types import PaddedDetections, RawDetections
from boxwright.types.center_net import STRIDE, CenterPredictions, KeypointMaps, StageMaps


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
        """Return the scores of detections, float [B, D]; `keypoint_scores` [B, P', D] are the task's own."""
        if self.rescores_above is None:
            return scores
        visible = keypoint_scores > self.rescores_above
        mean = (keypoint_scores * visible).sum(1) / visible.sum(1).clamp(min=1)
        return torch.where(labels == self.label, scores * mean, scores)


@dataclass(frozen=True)
class CenterNetPostprocessor:
    """Turn the last stage's maps into detections.

    Attributes:
        max_detections: D.
        window: The side of the window in which the center of an object is the maximum, in cells.
        keypoints: The decoding of each keypoint task.
        clip_keypoints: Whether keypoints beyond the image are moved to its border, with a score of 0.
        nms: Suppression afterwards; None for none.
    """

    max_detections: int = 100
    window: int = 3
    keypoints: tuple[KeypointTaskDecoder, ...] = ()
    clip_keypoints: bool = False
    masks: MaskDecoder | None = None
    nms: Nms | None = None

    @torch.no_grad()
    def decode(self, predictions: CenterPredictions) -> RawDetections:
        """Return the box and the scores of every cell, row by row; without boxes, the cells themselves."""
        maps = predictions.stages[-1]
        height, width = grid_of(maps.centers)
        rows, columns = (torch.arange(count, device=maps.centers.device) for count in (height, width))
        cells = torch.stack(torch.meshgrid(rows, columns, indexing="ij"), dim=-1).flatten(0, 1)
        if maps.sizes is None or maps.offsets is None:
            middle, half = cells + 0.5, 0.5 * torch.ones_like(cells)
            middle, half = (one.expand(len(maps.centers), -1, -1) for one in (middle, half))
        else:
            middle = cells + maps.offsets.float().flatten(2).transpose(1, 2)
            half = maps.sizes.float().flatten(2).transpose(1, 2).clamp(min=0) / 2
        boxes = torch.cat([(middle - half).flip(-1), (middle + half).flip(-1)], dim=-1) * STRIDE
        return RawDetections(boxes, maps.centers.float().sigmoid().flatten(2).transpose(1, 2))

    @torch.no_grad()
    def select(self, predictions: CenterPredictions, raw: RawDetections, true_sizes: Tensor) -> PaddedDetections:
        """Return the peaks of the class heatmaps, with what the other maps hold there; boxes are clipped."""
        maps = predictions.stages[-1]
        grid, sizes = grid_of(maps.centers), true_sizes.to(raw.boxes)
        heatmap = raw.scores.transpose(1, 2).unflatten(2, grid)
        # TF compares cells with pixels, so most of the padding takes part.
        axes = [torch.arange(count, device=heatmap.device) < sizes[:, i, None] for i, count in enumerate(grid)]
        peaks = best_peaks(
            heatmap * (axes[0][:, None, :, None] & axes[1][:, None, None]), self.max_detections, self.window
        )
        places = peaks.cells[..., 0] * grid[1] + peaks.cells[..., 1]
        on_grid = clip_boxes(of_anchors(raw.boxes, places), float(grid[0] * STRIDE), float(grid[1] * STRIDE))
        found = PaddedDetections(
            clip_boxes(on_grid, sizes[:, :1], sizes[:, 1:]),
            peaks.scores,
            peaks.channels,
            places,
            peaks.scores > 0,
            multiclass_scores=of_anchors(raw.scores, places),
        )
        if self.keypoints:
            found = self._with_keypoints(found, maps, peaks, CellBoxes.of_pixels(on_grid), sizes)
            if any(task.rescores_above is not None for task in self.keypoints):
                order = found.scores.masked_fill(~found.valid, -1.0).argsort(dim=1, descending=True, stable=True)
                peaks = replace(peaks, cells=of_anchors(peaks.cells, order))
                found = _rows(found, order)
        if self.masks is not None and maps.masks is not None:
            found = replace(found, masks=self.masks(maps.masks.float().sigmoid(), found.boxes, found.labels))
        if maps.temporal_offsets is not None:
            found = replace(found, temporal_offsets=read(maps.temporal_offsets.float(), peaks.cells))
        return found if self.nms is None else _suppressed(found, self.nms, sizes)

    def _with_keypoints(
        self, found: PaddedDetections, maps: StageMaps, peaks: Peaks, boxes: CellBoxes, sizes: Tensor
    ) -> PaddedDetections:
        bounded, scores = maps.sizes is not None, found.scores
        batch, detections = found.labels.shape
        count = 1 + max(max(task.indices) for task in self.keypoints)
        points = boxes.centers.new_zeros(batch, count, detections, 2)
        marks, depths, own = points[..., 0].clone(), None, torch.zeros_like(points[..., 0], dtype=torch.bool)
        for task, part in zip(self.keypoints, maps.keypoints, strict=True):
            decoded = task.decode(part, peaks.cells, boxes, bounded=bounded)
            places = constants(task.indices, points.device, torch.int64)
            of_class = (found.labels == task.label)[:, None]
            own = own.index_copy(1, places, of_class.expand_as(decoded.scores))
            points = points.index_copy(1, places, decoded.points.where(of_class[..., None], 0.0))
            marks = marks.index_copy(1, places, decoded.scores.where(of_class, 0.0))
            depths = decoded.depths
        in_pixels = points.flip(-1) * STRIDE
        if self.clip_keypoints:
            in_pixels, marks = in_frame(in_pixels, marks, sizes)
        for task in self.keypoints:
            places = constants(task.indices, points.device, torch.int64)
            scores = task.rescored(scores, found.labels, marks.index_select(1, places))
        return replace(
            found,
            scores=scores,
            boxes=found.boxes if bounded else _around(in_pixels, own),
            keypoints=in_pixels.transpose(1, 2),
            keypoint_scores=marks.transpose(1, 2),
            keypoint_depths=None if depths is None else depths.transpose(1, 2),
        )


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


def _around(points: Tensor, own: Tensor) -> Tensor:
    """Return the boxes [B, D, 4] around each detection's own points; 0 without any.

    Args:
        points: float [B, P, D, 2]; x, y.
        own: bool [B, P, D].
    """
    low = points.masked_fill(~own[..., None], torch.inf).amin(1)
    high = points.masked_fill(~own[..., None], -torch.inf).amax(1)
    return torch.cat([low, high], dim=-1).where(own.any(1)[..., None], 0.0)


def _suppressed(found: PaddedDetections, nms: Nms, sizes: Tensor) -> PaddedDetections:
    """Return the detections that survive; each peak takes part with the scores of all classes in its cell."""
    if found.multiclass_scores is None:
        raise ValueError("expected the scores of all classes")
    scores = found.multiclass_scores.masked_fill(~found.valid[..., None], -torch.inf)
    kept = nms.without_wait(found.boxes, scores, sizes)
    rest = vars(_rows(found, kept.anchors))
    own = ("boxes", "scores", "labels", "valid", "complete")
    return replace(kept, **{name: value for name, value in rest.items() if name not in own})


def _rows(found: PaddedDetections, places: Tensor) -> PaddedDetections:
    """Return the detections at places int64 [B, D]."""
    known = {name: value for name, value in vars(found).items() if value is not None}
    return replace(found, **{name: of_anchors(value, places) for name, value in known.items()})
