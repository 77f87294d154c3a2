"""The ground truth of a batch.

Dimensions: B batch, G ground-truth boxes (padded), P keypoints, D surface points (padded), K classes, H W network's
input.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, fields
from typing import Any

import torch
from torch import Tensor

from boxwright.base.errors import DataError
from boxwright.types.context_features import ContextFeatures
from boxwright.types.masks import InstanceMasks
from boxwright.types.packing import collect_tensors, each_tensor

# Fields without a row for each object.
_OF_IMAGES = frozenset({"annotated", "keys", "verified_labels"})


@dataclass(frozen=True)
class Targets:
    """The ground truth of a batch, padded to G boxes per image.

    Per-object fields have the same names as in `Sample`, and are padded with 0.

    Attributes:
        boxes: float32 [B, G, 4], xyxy in pixels of the network's input; 0 for padding.
        labels: int64 [B, G], 0-based; 0 for padding.
        weights: float32 [B, G]; 0 for padding.
        valid: bool [B, G]; False for padding.
        keypoints: float32 [B, G, P, 2], x and y in pixels of the network's input, NaN if unknown; or None.
        confidences: float32 [B, G, K]; the confidence that an object is (above 0) or is not (below 0) of a class, 0 if
            unknown; or None.
        class_scores: float32 [B, G, K]; targets of each object's class logits, if not just its label; or None.
        annotated: bool [B]; False for unannotated images, which do not count in losses; or None for all.
        masks: In the frame of the network's input; or None.
        mask_weights: float32 [B, G]; the weight of each mask in the loss; or None for 1.
        areas: float32 [B, G] in pixels of the network's input; or None.
        group_of: bool [B, G]; or None.
        track_ids: int64 [B, G]; or None.
        keypoint_depths: float32 [B, G, P], NaN if unknown; or None.
        keypoint_depth_weights: float32 [B, G, P]; the weight of each depth in the loss; or None for 1.
        dense_pose: float32 [B, G, D, 6]; points in pixels of the network's input, and their places on the body's
            surface: `dense_pose.py` names the columns; or None.
        temporal_offsets: float32 [B, G, 2]; y and x from the object's center in the previous frame, in shares of the
            image's height and width (or in any other unit, which detections then have too); or None.
        track_match_flags: float32 [B, G]; 1 if the object was in the previous frame, else 0; or None.
        context: Features of other images (Context R-CNN); or None.
        verified_labels: int64 [B, V]; classes whose presence or absence in an image was verified, -1 for padding; or
            None if none was in any image.
        keys: int64 [B]; what a network draws for an image in training follows from its key; or None, as outside of
            training.
    """

    boxes: Tensor
    labels: Tensor
    weights: Tensor
    valid: Tensor
    keypoints: Tensor | None = None
    confidences: Tensor | None = None
    class_scores: Tensor | None = None
    annotated: Tensor | None = None
    masks: InstanceMasks | None = None
    mask_weights: Tensor | None = None
    areas: Tensor | None = None
    group_of: Tensor | None = None
    track_ids: Tensor | None = None
    keypoint_depths: Tensor | None = None
    keypoint_depth_weights: Tensor | None = None
    dense_pose: Tensor | None = None
    temporal_offsets: Tensor | None = None
    track_match_flags: Tensor | None = None
    context: ContextFeatures | None = None
    verified_labels: Tensor | None = None
    keys: Tensor | None = None

    def to(self, device: torch.device | str) -> Targets:
        """Return the targets on a device."""
        is_cuda = torch.device(device).type == "cuda"
        # Without waiting, which is right from pinned memory only; loaders pin it for GPUs.
        return self._each(lambda value: value.to(device, non_blocking=is_cuda))

    def rows(self, start: int, stop: int) -> Targets:
        """Return the targets of images `start` to `stop`, excluded."""
        part: dict[str, Any] = {f.name: getattr(self, f.name) for f in fields(self)}
        for name, value in part.items():
            if isinstance(value, Tensor):
                part[name] = value[start:stop]
            elif value is not None:
                part[name] = value.rows(start, stop)
        return Targets(**part)

    def padded_to(self, count: int) -> Targets:
        """Return the targets padded to `count` objects per image; masks are dropped."""
        more = count - self.boxes.shape[1]
        if more == 0 and self.masks is None:
            return self
        padded: dict[str, Any] = {f.name: getattr(self, f.name) for f in fields(self)} | {"masks": None}
        for name, value in padded.items():
            if isinstance(value, Tensor) and name not in _OF_IMAGES:
                # Unknown keypoints have no loss; everything else of padding has a weight of 0.
                rows = value.new_full((len(value), more, *value.shape[2:]), torch.nan if name == "keypoints" else 0)
                padded[name] = torch.cat([value, rows], dim=1)
        return Targets(**padded)

    def require_masks(self, remedy: str) -> None:
        """Raise if there are objects without masks.

        Args:
            remedy: What to change, for the message.

        Raises:
            DataError: Of a detector that learns masks.
        """
        if self.masks is None and bool(self.valid.any()):
            raise DataError(f"the detector learns masks, but the records have none; {remedy}")

    def drawing_keys(self) -> Tensor:
        """Return int64 [B] from which follows what is drawn for each image: its key, or its place without keys."""
        return torch.arange(len(self.labels), device=self.labels.device) if self.keys is None else self.keys

    def pin_memory(self) -> Targets:
        """Return a copy in pinned memory."""
        return self._each(Tensor.pin_memory)

    def tensors(self) -> list[Tensor]:
        """Return the tensors that are not None."""
        return collect_tensors(self)

    def _each(self, change: Callable[[Tensor], Tensor]) -> Targets:
        return each_tensor(self, change)
