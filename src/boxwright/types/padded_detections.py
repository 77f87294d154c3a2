"""Detections of a batch as padded tensors, and every decoded anchor or region before any filtering.

Dimensions: B batch, D detections with padding, P keypoints, C columns of the class head, A anchors or regions, K
foreground classes, h w mask.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
from numpy.typing import NDArray
from torch import Tensor

from boxwright.types.categories import Categories
from boxwright.types.detections import Detections
from boxwright.types.packing import fetched


@dataclass(frozen=True)
class RawDetections:
    """Every decoded anchor of a batch, before any filtering (TF's `raw_detection_…`); of one image without B.

    Attributes:
        boxes: float32 [B, A, 4], xyxy in pixels of the network's input, not clipped; for regions [B, A, K, 4], a box
            per class, or [B, A, 1, 4] for all classes.
        scores: float32 [B, A, C]; background first if there is one.
        input_size: (height, width) of the network's input.
        valid: bool [B, A]; False for padding; None without padding.
    """

    boxes: Tensor
    scores: Tensor
    input_size: tuple[int, int]
    valid: Tensor | None = None

    @property
    def of_regions(self) -> bool:
        """Whether these are regions of interest, each with a box per class, rather than anchors."""
        return self.boxes.ndim > self.scores.ndim

    def image(self, number: int) -> RawDetections:
        """Return views of the values of one image."""
        valid = None if self.valid is None else self.valid[number]
        return RawDetections(self.boxes[number], self.scores[number], self.input_size, valid)

    def to_tf(self, true_sizes: Tensor) -> dict[str, Tensor]:
        """Return TF's raw outputs by name.

        Args:
            true_sizes: int64 [B, 2]; the (height, width) of each input without its padding.

        Returns:
            `raw_detection_boxes` [B, A, 4] as ymin, xmin, ymax, xmax in 0..1, and `raw_detection_scores` [B, A, C].
            Boxes of anchors are in units of the whole input, not clipped. Those of regions are their likeliest class's,
            in units of the image and clipped to it; padding is 0, where TF's scores are those of an empty crop.
        """
        if not self.of_regions:
            sizes = torch.tensor(self.input_size, device=self.boxes.device)
            return {"raw_detection_boxes": normalized(self.boxes, sizes), "raw_detection_scores": self.scores}
        # The last K columns: a background column, if there is one, comes first.
        best = self.scores[..., -self.boxes.shape[-2] :].argmax(-1)[..., None, None]
        boxes = self.boxes.gather(-2, best.expand(*best.shape[:-1], 4)).squeeze(-2)
        boxes, scores = normalized(boxes, true_sizes).clamp(0, 1), self.scores
        if self.valid is not None:
            boxes, scores = boxes * self.valid[..., None], scores * self.valid[..., None]
        return {"raw_detection_boxes": boxes, "raw_detection_scores": scores}

    def to_tf_arrays(self, true_size: tuple[int, int]) -> dict[str, NDArray[Any]]:
        """Return `to_tf` of one image's values, whose input without padding has a (height, width), as arrays."""
        outputs = self.to_tf(torch.tensor(true_size, device=self.boxes.device))
        return {name: values.cpu().numpy() for name, values in outputs.items()}


def normalized(boxes: Tensor, sizes: Tensor) -> Tensor:
    """Return boxes xyxy in pixels [..., N, 4] as ymin, xmin, ymax, xmax in 0..1 of sizes [..., 2]."""
    return boxes[..., [1, 0, 3, 2]] / torch.cat([sizes, sizes], -1)[..., None, :].to(boxes)


@dataclass(frozen=True)
class PaddedDetections:
    """The detections in a batch, best first, padded with 0.

    Attributes:
        boxes: float32 [B, D, 4], xyxy in pixels of the network's input.
        scores: float32 [B, D].
        labels: int64 [B, D], 0-based.
        anchors: int64 [B, D]; the index of the anchor of each.
        valid: bool [B, D]; False for padding, which comes last.
        complete: bool [B]; False if detections may be missing, as a graph of fixed shapes only considers the best
            candidates. None if all are complete.
        multiclass_scores: float32 [B, D, C]; all scores of each one's anchor, background first if there is one. This
            and the following fields are None if unknown.
        keypoints: float32 [B, D, P, 2], x and y in pixels of the network's input.
        masks: float32 [B, D, h, w] in 0..1; as in `Detections`.
        mask_boxes: float32 [B, D, 4], xyxy in pixels of the network's input; as in `Detections`.
        features: float [B, D, C, H, W]; as in `Detections`.
        rpn_features: float [B, D, C, H, W]; as in `Detections`.
        keypoint_scores: float32 [B, D, P].
        keypoint_depths: float32 [B, D, P]; as in `Detections`.
        temporal_offsets: float32 [B, D, 2]; as in `Detections`.
        surface_parts: uint8 [B, D, h, w]; as in `Detections`.
        surface_coordinates: float32 [B, D, h, w, 2]; as in `Detections`.
        cell_boxes: float32 [B, D, 4]; as in `Detections`.
        embeddings: float32 [B, D, E]; as in `Detections`.
    """

    boxes: Tensor
    scores: Tensor
    labels: Tensor
    anchors: Tensor
    valid: Tensor
    complete: Tensor | None = None
    multiclass_scores: Tensor | None = None
    keypoints: Tensor | None = None
    masks: Tensor | None = None
    mask_boxes: Tensor | None = None
    features: Tensor | None = None
    rpn_features: Tensor | None = None
    keypoint_scores: Tensor | None = None
    keypoint_depths: Tensor | None = None
    temporal_offsets: Tensor | None = None
    surface_parts: Tensor | None = None
    surface_coordinates: Tensor | None = None
    cell_boxes: Tensor | None = None
    embeddings: Tensor | None = None

    def image(self, number: int) -> PaddedDetections:
        """Return the detections in one image, [D, …] without padding."""
        # Padding comes last, so that a count selects the rest.
        count = int(self.valid[number].sum())
        padded = replace(self, complete=None)
        known = {name: value[number, :count] for name, value in vars(padded).items() if value is not None}
        return PaddedDetections(**known)

    def with_images(self, indices: Sequence[int], others: PaddedDetections) -> PaddedDetections:
        """Return the same with the detections of other ones [B, D, …] in some images."""
        rows = torch.tensor(list(indices), device=self.boxes.device)
        known = {name: (value, getattr(others, name)) for name, value in vars(self).items() if value is not None}
        replaced = {name: own.index_copy(0, rows, other.index_select(0, rows)) for name, (own, other) in known.items()}
        return PaddedDetections(**replaced)

    def on_cpu(self, *others: Tensor) -> tuple[PaddedDetections, list[Tensor]]:
        """Return these and other tensors on the CPU, with one synchronized copy from a GPU."""
        known = {name: value for name, value in vars(self).items() if value is not None}
        values = fetched([*known.values(), *others])
        return PaddedDetections(**dict(zip(known, values, strict=False))), values[len(known) :]

    def to_list(self, image_sizes: Tensor, categories: Categories | None = None) -> list[Detections[Tensor]]:
        """Return the detections in each image, without padding; on a GPU this synchronizes once per image.

        Args:
            image_sizes: int64 [B, 2]; the (height, width) of each image, in the pixels that boxes are in.
            categories: The classes of the labels.

        Returns:
            B detections.
        """
        listed = []
        for number, (height, width) in enumerate(image_sizes.tolist()):
            known = dict(vars(self.image(number)))
            del known["valid"], known["complete"]
            anchors, size = known.pop("anchors"), (int(height), int(width))
            listed.append(Detections(**known, image_size=size, categories=categories, anchor_indices=anchors))
        return listed
