"""CenterNet's postprocessor (Objects as Points, section 4.1; TF's CenterNetMetaArch.postprocess).

Dimensions: B batch, K classes, D detections, P keypoints of the label map, H W grid of cells.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Self

import torch
from torch import Tensor

from boxwright.base.errors import ExportError
from boxwright.families.center_net.cells import CellBoxes, grid_shape, read
from boxwright.families.center_net.postprocessing.keypoints import (
    KeypointTaskDecoder,
    boxes_around,
    in_frame,
    keypoints_of_tasks,
)
from boxwright.families.center_net.postprocessing.masks import MaskDecoder, SurfaceDecoder, own_maps
from boxwright.families.center_net.postprocessing.peaks import Peaks, best_peaks, largest
from boxwright.families.center_net.predictions import STRIDE, CenterPredictions, StageMaps
from boxwright.nn.ops.boxes import clip_boxes
from boxwright.nn.postprocessing.anchor import of_anchors
from boxwright.nn.postprocessing.nms import Nms, Suppress
from boxwright.types import PaddedDetections, RawDetections
from boxwright.types.detection_outputs import (
    LITERT_KEPT,
    LITERT_KEPT_WITHOUT_STRIDED,
    LITERT_KEYPOINT_OUTPUTS,
    LITERT_OUTPUTS,
)


@dataclass(frozen=True)
class CenterNetPostprocessor:
    """Turn the last stage's maps into detections.

    Attributes:
        max_detections: D.
        window: The side of the window in which the center of an object is the maximum, in cells.
        keypoints: The decoding of each keypoint task.
        clip_keypoints: Whether keypoints beyond the image are moved to its border, with a score of 0.
        surface: The decoding of DensePose; None without.
        nms: Suppression afterwards; None for none.
    """

    max_detections: int = 100
    window: int = 3
    keypoints: tuple[KeypointTaskDecoder, ...] = ()
    clip_keypoints: bool = False
    masks: MaskDecoder | None = None
    surface: SurfaceDecoder | None = None
    nms: Nms | None = None

    def lite_outputs(self, predictions: CenterPredictions) -> tuple[tuple[str, ...], tuple[str, ...]]:
        """Return the outputs of a graph for LiteRT, and those after them that only its comparison with ours reads.

        Raises:
            ExportError: If more than boxes and keypoints is learned.
        """
        stage = predictions.stages[-1]
        further = ("masks", "embeddings", "surface", "temporal_offsets", "identities")
        if others := [name for name in further if getattr(stage, name) is not None]:
            raise ExportError(
                f"litert: of a CenterNet boxes and keypoints, as in TensorFlow, not {others[0].replace('_', ' ')}; "
                "use --format onnx"
            )
        named = (*LITERT_OUTPUTS, *(LITERT_KEYPOINT_OUTPUTS if self.keypoints else ()))
        return named, LITERT_KEPT_WITHOUT_STRIDED if stage.sizes is None else LITERT_KEPT

    def above(self, score: float) -> Self:
        """Return itself: peaks are no candidates of suppression, and their number is small."""
        del score
        return self

    @torch.no_grad()
    def decode(self, predictions: CenterPredictions) -> RawDetections:
        """Return the box and the scores of every cell, row by row; without boxes, the cells themselves."""
        maps = predictions.stages[-1]
        height, width = grid_shape(maps.centers)
        places = torch.arange(height * width, device=maps.centers.device)
        cells = torch.stack([places // width, places % width], dim=-1)
        if maps.sizes is None or maps.offsets is None:
            middle, half = cells + 0.5, 0.5 * torch.ones_like(cells)
            middle, half = (points.expand(len(maps.centers), -1, -1) for points in (middle, half))
        else:
            middle = cells + maps.offsets.float().flatten(2).transpose(1, 2)
            half = maps.sizes.float().flatten(2).transpose(1, 2).clamp(min=0) / 2
        boxes = torch.cat([(middle - half).flip(-1), (middle + half).flip(-1)], dim=-1) * STRIDE
        scores = maps.centers.float().sigmoid().flatten(2).transpose(1, 2)
        return RawDetections(boxes, scores, predictions.input_size)

    @torch.no_grad()
    def select(
        self,
        predictions: CenterPredictions,
        raw: RawDetections,
        true_sizes: Tensor,
        suppress: Suppress = Nms.without_wait,
    ) -> PaddedDetections:
        """Return the peaks of the class heatmaps, with what the other maps hold there; boxes are clipped."""
        deep = predictions.deep_masks
        if deep is not None and deep.detections is not None and deep.of_detections is not None:
            # The network has detected already, as it predicts masks for detections only.
            return replace(deep.detections, masks=deep.of_detections.float().sigmoid())
        maps, sizes = predictions.stages[-1], true_sizes.to(raw.boxes)
        detections, peaks, on_grid = self._located(maps, raw, sizes)
        if self.keypoints:
            detections = self._with_keypoints(detections, maps, peaks.cells, CellBoxes.of_pixels(on_grid), sizes)
            if any(task.rescores_above is not None for task in self.keypoints):
                _, order = largest(detections.scores.masked_fill(~detections.valid, -1.0), self.max_detections)
                peaks = replace(peaks, cells=of_anchors(peaks.cells, order))
                detections = _rows(detections, order)
        if self.masks is not None and maps.masks is not None:
            # Few of the classes are detected, so only their maps become probabilities.
            own, owners = own_maps(maps.masks.float(), detections.labels)
            detections = replace(detections, masks=self.masks(own.sigmoid_(), owners, detections.boxes))
        if self.surface is not None and maps.surface is not None:
            detections = self.surface(maps.surface, detections)
        if maps.temporal_offsets is not None:
            detections = replace(detections, temporal_offsets=read(maps.temporal_offsets.float(), peaks.cells))
        if maps.identities is not None:
            rows = read(maps.identities.float(), peaks.cells)
            # In operators that every format has.
            detections = replace(
                detections, embeddings=rows / (rows * rows).sum(-1, keepdim=True).sqrt().clamp(min=1e-12)
            )
        return detections if self.nms is None else _suppressed(detections, self.nms, sizes, suppress)

    @torch.no_grad()
    def detect(self, predictions: CenterPredictions) -> tuple[PaddedDetections, Tensor]:
        """Return the peaks with boxes alone, and their boxes clipped to the grid, which reach into padding."""
        return self.detect_in(predictions, self.decode(predictions))

    @torch.no_grad()
    def detect_in(self, predictions: CenterPredictions, raw: RawDetections) -> tuple[PaddedDetections, Tensor]:
        """Return the same as `detect`, for decoded predictions."""
        detections, _, on_grid = self._located(predictions.stages[-1], raw, predictions.true_sizes.to(raw.boxes))
        return detections, on_grid

    def _located(self, maps: StageMaps, raw: RawDetections, sizes: Tensor) -> tuple[PaddedDetections, Peaks, Tensor]:
        """Return the peaks' detections, their places, and their boxes clipped to the grid."""
        grid = grid_shape(maps.centers)
        heatmap = raw.scores.transpose(1, 2).unflatten(2, grid)
        # TF compares cells with pixels, so most of the padding takes part.
        axes = [torch.arange(count, device=heatmap.device) < sizes[:, i, None] for i, count in enumerate(grid)]
        inside = axes[0][:, None, :, None] & axes[1][:, None, None]
        peaks = best_peaks(heatmap, self.max_detections, self.window, inside)
        places = peaks.cells[..., 0] * grid[1] + peaks.cells[..., 1]
        on_grid = clip_boxes(of_anchors(raw.boxes, places), float(grid[0] * STRIDE), float(grid[1] * STRIDE))
        detections = PaddedDetections(
            clip_boxes(on_grid, sizes[:, :1], sizes[:, 1:]),
            peaks.scores,
            peaks.channels,
            places,
            peaks.scores > 0,
            multiclass_scores=of_anchors(raw.scores, places),
            cell_boxes=None if maps.sizes is None else on_grid / STRIDE,
        )
        return detections, peaks, on_grid

    def _with_keypoints(
        self, detections: PaddedDetections, maps: StageMaps, cells: Tensor, boxes: CellBoxes, sizes: Tensor
    ) -> PaddedDetections:
        bounded, scores = maps.sizes is not None, detections.scores
        keypoints = keypoints_of_tasks(self.keypoints, maps.keypoints, cells, boxes, detections.labels, bounded=bounded)
        points, marks = keypoints.points.flip(-1) * STRIDE, keypoints.scores
        if self.clip_keypoints:
            points, marks = in_frame(points, marks, sizes)
        for task in self.keypoints:
            scores = task.rescored(scores, detections.labels, marks)
        return replace(
            detections,
            scores=scores,
            boxes=detections.boxes if bounded else boxes_around(points, keypoints.own),
            keypoints=points.transpose(1, 2),
            keypoint_scores=marks.transpose(1, 2),
            keypoint_depths=None if keypoints.depths is None else keypoints.depths.transpose(1, 2),
        )


def _suppressed(detections: PaddedDetections, nms: Nms, sizes: Tensor, suppress: Suppress) -> PaddedDetections:
    """Return the detections that survive; each peak takes part with the scores of all classes in its cell."""
    if detections.multiclass_scores is None:
        raise ValueError("expected the scores of all classes")
    scores = detections.multiclass_scores.masked_fill(~detections.valid[..., None], -torch.inf)
    kept = suppress(nms, detections.boxes, scores, sizes)
    rest = vars(_rows(detections, kept.anchors))
    own = ("boxes", "scores", "labels", "valid", "complete")
    return replace(kept, **{name: value for name, value in rest.items() if name not in own})


def _rows(detections: PaddedDetections, places: Tensor) -> PaddedDetections:
    """Return the detections at places int64 [B, D]."""
    known = {name: value for name, value in vars(detections).items() if value is not None}
    return replace(detections, **{name: of_anchors(value, places) for name, value in known.items()})
