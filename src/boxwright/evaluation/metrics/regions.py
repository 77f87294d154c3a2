"""The regions that metrics compare: boxes, or masks.

Dimensions: D detections, G objects, N of either.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol, Self

import numpy as np
from numpy.typing import NDArray
from pycocotools import mask as coco_mask

from boxwright.base.errors import DataError
from boxwright.evaluation.metrics.matching import overlaps, overlaps_of_crowds
from boxwright.nn.ops.pasted_masks import RunLengths
from boxwright.types import Array, Detections, Sample

Floats = NDArray[np.float64]
Indices = NDArray[np.int64]


@dataclass(frozen=True)
class ImageMasks:
    """The masks of an image's objects and detections, as run lengths to save memory."""

    truth: Sequence[RunLengths]
    detections: Sequence[RunLengths]


class Regions(Protocol):
    """Parts of an image."""

    @property
    def areas(self) -> Floats:
        """Return float64 [N], in pixels."""
        ...

    def __getitem__(self, chosen: Indices) -> Self: ...

    def overlaps(self, objects: Self) -> Floats:
        """Return intersection over union of all pairs, float64 [D, G]."""
        ...

    def overlaps_of_crowds(self, objects: Self) -> Floats:
        """Return intersection over a detection's own area, for objects that stand for many, float64 [D, G]."""
        ...


@dataclass(frozen=True)
class Boxes:
    """Boxes float64 [N, 4], xyxy in pixels."""

    boxes: Floats

    @property
    def areas(self) -> Floats:
        """Return float64 [N], in pixels."""
        return np.asarray((self.boxes[:, 2] - self.boxes[:, 0]) * (self.boxes[:, 3] - self.boxes[:, 1]))

    def __getitem__(self, chosen: Indices) -> Boxes:
        return Boxes(self.boxes[chosen])

    def overlaps(self, objects: Boxes) -> Floats:
        """Return intersection over union of all pairs, float64 [D, G]."""
        return overlaps(self.boxes, objects.boxes)

    def overlaps_of_crowds(self, objects: Boxes) -> Floats:
        """Return intersection over a detection's own area, float64 [D, G]."""
        return overlaps_of_crowds(self.boxes, objects.boxes)


@dataclass(frozen=True)
class Masks:
    """N masks of one image, as run lengths."""

    codes: Sequence[RunLengths]

    @property
    def areas(self) -> Floats:
        """Return float64 [N], in pixels."""
        return np.asarray(coco_mask.area(_packed(self.codes)), np.float64).reshape(len(self.codes))

    def __getitem__(self, chosen: Indices) -> Masks:
        return Masks([self.codes[number] for number in np.arange(len(self.codes))[chosen]])

    def overlaps(self, objects: Masks) -> Floats:
        """Return intersection over union of all pairs, float64 [D, G]."""
        return self._overlaps(objects, crowds=False)

    def overlaps_of_crowds(self, objects: Masks) -> Floats:
        """Return intersection over a detection's own area, float64 [D, G]."""
        return self._overlaps(objects, crowds=True)

    def _overlaps(self, objects: Masks, *, crowds: bool) -> Floats:
        shape = (len(self.codes), len(objects.codes))
        if 0 in shape:
            return np.zeros(shape)
        # pycocotools takes a flag for each object, by which it divides by the detection's area.
        overlaps = coco_mask.iou(_packed(self.codes), _packed(objects.codes), [crowds] * shape[1])
        # Two empty masks give 0 over 0.
        return np.nan_to_num(np.asarray(overlaps, np.float64).reshape(shape))


def _packed(codes: Sequence[RunLengths]) -> list[RunLengths]:
    return [{"size": code["size"], "counts": code["counts"].encode()} for code in codes]


class RegionKind(Protocol):
    """The kind of regions that are compared, and its name."""

    @property
    def name(self) -> str:
        """Boxes or Masks, as in TF's metrics."""
        ...

    def of(self, sample: Sample, detections: Detections[Array], masks: ImageMasks | None) -> tuple[Regions, Regions]:
        """Return the regions of an image's objects, and of its detections."""
        ...


@dataclass(frozen=True)
class _BoxRegions:
    name = "Boxes"

    def of(self, sample: Sample, detections: Detections[Array], masks: ImageMasks | None) -> tuple[Regions, Regions]:
        del masks
        return Boxes(sample.boxes.astype(np.float64)), Boxes(detections.boxes.astype(np.float64))


@dataclass(frozen=True)
class _MaskRegions:
    name = "Masks"

    def of(self, sample: Sample, detections: Detections[Array], masks: ImageMasks | None) -> tuple[Regions, Regions]:
        if masks is None or len(masks.truth) != len(sample.boxes):
            raise DataError(
                f"{sample.id or 'an image'}: mask metrics were requested, but its objects have no masks; set "
                "load_instance_masks and mask_type in the reader, or another metrics_set"
            )
        if len(masks.detections) != len(detections):
            raise DataError("mask metrics were requested, but the detector predicts no masks; set number_of_stages: 3")
        return Masks(masks.truth), Masks(masks.detections)


BOXES: RegionKind = _BoxRegions()
MASKS: RegionKind = _MaskRegions()
