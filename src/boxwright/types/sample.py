"""An image with annotations: one type from the reader through augmentation to the batch.

Per-object fields are declared once, in `Sample`. Selecting objects, moving them with the image and padding them in a
batch follow the declarations: a new field is one line here, and one in `Targets` if it is learned.

Dimensions: N objects, P keypoints, D surface points (padded), K classes, H W image.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import Field, dataclass, field, fields
from functools import partial
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from boxwright.types.dense_pose import PART, padded_points

Array = NDArray[Any]
# How a field moves with the image: boxes xyxy, points (x, y, visibility), masks [N, H, W], areas; point_values [N, P]
# only follow their points when those are exchanged; surface points start with a point; vectors (x, y); or not at all.
Geometry = Literal["none", "boxes", "points", "point_values", "surface_points", "vectors", "masks", "areas"]
_DERIVED: Any = None  # computed in __post_init__


@dataclass(frozen=True)
class ObjectField:
    """The declaration of a per-object field of `Sample`.

    Attributes:
        name: The field.
        dtype: Its type.
        geometry: How it moves with the image.
        missing: The default value of every object; if None, the whole field defaults to None.
        neutral: The value of the objects of an image without the field, where they meet those of images that have it;
            if None, the field is dropped there.
    """

    name: str
    dtype: Any
    geometry: Geometry
    missing: float | None
    neutral: float | None

    def rows(self, samples: Sequence[Sample]) -> list[Array] | None:
        """Return the field of each sample; None if all lack it, or one does and nothing is neutral in its place."""
        values = [getattr(sample, self.name) for sample in samples]
        known = [row for row in values if row is not None]
        if not known or (len(known) < len(values) and self.neutral is None):
            return None
        if self.geometry == "surface_points":
            known = padded_points(known)
        shape, given = known[0].shape[1:], iter(known)
        return [
            np.full((len(sample.boxes), *shape), self.neutral, self.dtype) if row is None else next(given)
            for sample, row in zip(samples, values, strict=True)
        ]


def _row(
    dtype: Any, *, geometry: Geometry = "none", missing: float | None = None, neutral: float | None = None
) -> dict[str, Any]:
    """Return the metadata of a per-object field; without `missing` it defaults to None."""
    return {"dtype": dtype, "geometry": geometry, "missing": missing, "neutral": neutral}


@dataclass
class Sample:
    """One image with annotations.

    Attributes:
        image: [H, W, C], RGB (or one channel), upright; uint8, or float32 once an augmentation gives fractional levels.
        boxes: float32 [N, 4], xyxy in pixels of `image`, as annotated (they may cross the border).
        labels: int64 [N], 0-based.
        weights: float32 [N]; the weight of each object in the loss.
        difficult: bool [N]; ignored in VOC evaluation.
        is_crowd: bool [N]; the box stands for many objects: ignored in training and evaluation.
        group_of: bool [N]; Open Images' flag for groups.
        areas: float32 [N] in pixels; of the mask if the source knows it, else of the box.
        masks: uint8 [N, H, W] of 0 and 1, or None.
        mask_weights: float32 [N]; the weight of each mask in the loss; or None for 1.
        keypoints: float32 [N, P, 3] as x, y in pixels and visibility (0 or 1), or None.
        keypoint_depths: float32 [N, P], in the data's unit, or None.
        keypoint_depth_weights: float32 [N, P]; the weight of each depth in the loss, or None.
        dense_pose: float32 [N, D, 6]; points and their places on the body's surface: `dense_pose.py` names the columns;
            or None.
        class_scores: float32 [N, K]; targets of each object's class logits, if not just its label; or None.
        confidences: float32 [N, K]; the confidence that an object is (above 0) or is not (below 0) of a class; or None.
        track_ids: int64 [N]; identifies the same object in several images; or None.
        temporal_offsets: float32 [N, 2]; x and y in pixels from the object's center in the previous frame; or None.
        track_match_flags: float32 [N]; 1 if the object was in the previous frame, else 0; or None.
        attributes: int64 [N, T]; further attributes of each object, such as its degree of blur; or None.
        attribute_names: The names of the T columns.
        verified_labels: int64 [V]; classes whose presence or absence in the image was verified (Open Images).
        context: float32 [M, F]; features of other images (Context R-CNN); or None.
        context_image_ids: The M ids of the images that they are of, where known.
        negative_labels: int64 [V]; classes that were verified to be absent.
        not_exhaustive_labels: int64 [V]; classes of which not all objects are annotated (LVIS).
        left_out: The number of objects that were dropped because their classes are not in the label map.
        is_mosaic: Whether a mosaic made it of several images.
        annotated: Whether the image was annotated at all; unannotated images do not count in losses.
        id: The image's id in its source.
        filename: The image's file name in its source; may be empty.
        true_size: (height, width) of the part that is not padding; None for the whole image.
        key: The epoch, and the sample's index in the data.
        draw_key: From seed, epoch and index: what a network draws in training follows from it; or None.
        problems: Errors of the samples that this one replaces.
    """

    image: NDArray[Any]
    boxes: NDArray[np.float32] = field(metadata=_row(np.float32, geometry="boxes"))
    labels: NDArray[np.int64] = field(metadata=_row(np.int64))
    weights: NDArray[np.float32] = field(default=_DERIVED, metadata=_row(np.float32, missing=1))
    difficult: NDArray[np.bool_] = field(default=_DERIVED, metadata=_row(np.bool_, missing=0))
    is_crowd: NDArray[np.bool_] = field(default=_DERIVED, metadata=_row(np.bool_, missing=0))
    group_of: NDArray[np.bool_] = field(default=_DERIVED, metadata=_row(np.bool_, missing=0))
    areas: NDArray[np.float32] = field(default=_DERIVED, metadata=_row(np.float32, geometry="areas"))
    masks: NDArray[np.uint8] | None = field(default=None, metadata=_row(np.uint8, geometry="masks"))
    mask_weights: NDArray[np.float32] | None = field(default=None, metadata=_row(np.float32, neutral=1))
    keypoints: NDArray[np.float32] | None = field(default=None, metadata=_row(np.float32, geometry="points"))
    keypoint_depths: NDArray[np.float32] | None = field(
        default=None, metadata=_row(np.float32, geometry="point_values")
    )
    keypoint_depth_weights: NDArray[np.float32] | None = field(
        default=None, metadata=_row(np.float32, geometry="point_values")
    )
    dense_pose: NDArray[np.float32] | None = field(default=None, metadata=_row(np.float32, geometry="surface_points"))
    class_scores: NDArray[np.float32] | None = field(default=None, metadata=_row(np.float32))
    confidences: NDArray[np.float32] | None = field(default=None, metadata=_row(np.float32))
    track_ids: NDArray[np.int64] | None = field(default=None, metadata=_row(np.int64))
    temporal_offsets: NDArray[np.float32] | None = field(
        default=None, metadata=_row(np.float32, geometry="vectors", neutral=0)
    )
    track_match_flags: NDArray[np.float32] | None = field(default=None, metadata=_row(np.float32, neutral=0))
    attributes: NDArray[np.int64] | None = field(default=None, metadata=_row(np.int64))
    attribute_names: tuple[str, ...] = ()
    verified_labels: NDArray[np.int64] = field(default_factory=lambda: np.zeros(0, np.int64))
    context: NDArray[np.float32] | None = None
    context_image_ids: tuple[str, ...] = ()
    negative_labels: NDArray[np.int64] = field(default_factory=lambda: np.zeros(0, np.int64))
    not_exhaustive_labels: NDArray[np.int64] = field(default_factory=lambda: np.zeros(0, np.int64))
    left_out: int = 0
    is_mosaic: bool = False
    annotated: bool = True
    id: str = ""
    filename: str = ""
    true_size: tuple[int, int] | None = None
    key: tuple[int, int] = (0, 0)
    problems: tuple[str, ...] = ()
    draw_key: int | None = None

    def __post_init__(self) -> None:
        count = len(self.boxes)
        self.boxes = np.asarray(self.boxes, np.float32).reshape(count, 4)
        self.labels = np.asarray(self.labels, np.int64).reshape(count)
        if self.areas is None or len(self.areas) != count:
            sides = np.maximum(self.boxes[:, 2:] - self.boxes[:, :2], 0)
            with np.errstate(over="ignore"):  # overflow gives infinity
                self.areas = sides[:, 0] * sides[:, 1]
        for declared in _COMPLETED:
            value = getattr(self, declared.name)
            if value is None or len(value) != count:
                setattr(self, declared.name, np.full(count, declared.missing, declared.dtype))

    def keep(self, index: Array) -> Sample:
        """Return the sample with the objects that a mask [N] or integer indices select; it shares the image."""
        # Every field of objects by its declaration, so that none is forgotten when one is added.
        return self.with_fields({name: value[index] for name, value in self.of_objects().items()})

    def with_fields(self, values: dict[str, Any]) -> Sample:
        """Return a copy with other values of some fields, in half the time that `dataclasses.replace` takes."""
        other = object.__new__(Sample)
        vars(other).update(vars(self))
        vars(other).update(values)
        other.__post_init__()
        return other

    def of_objects(self) -> dict[str, Array]:
        """Return the per-object fields that are not None."""
        known = vars(self)
        return {name: known[name] for name in _OBJECT_NAMES if known[name] is not None}

    def moved(self, image: NDArray[Any], **change: Callable[[Array], Array]) -> Sample:
        """Return the sample with another image, and its fields changed by the function of their geometry, if any.

        Without a function of their own, surface points are moved by that of points.
        """
        if "points" in change:
            change = {"surface_points": partial(_move_surface_points, change["points"])} | change
        known = vars(self)
        changed: dict[str, Any] = {
            declared.name: np.asarray(change[declared.geometry](known[declared.name]))
            for declared in _MOVING
            if declared.geometry in change and known[declared.name] is not None
        }
        return self.with_fields({"image": image, **changed})


def _move_surface_points(move: Callable[[Array], Array], points: Array) -> Array:
    """Change the x, y and visibility of points [N, D, 6]."""
    return np.concatenate([move(points[..., :PART]), points[..., PART:]], -1)


def _declared(spec: Field[Any]) -> ObjectField:
    return ObjectField(spec.name, **spec.metadata)


OBJECT_FIELDS = tuple(_declared(spec) for spec in fields(Sample) if "geometry" in spec.metadata)
_OBJECT_NAMES = tuple(declared.name for declared in OBJECT_FIELDS)
_MOVING = tuple(declared for declared in OBJECT_FIELDS if declared.geometry != "none")
# Those that every sample has.
_COMPLETED = tuple(declared for declared in OBJECT_FIELDS if declared.missing is not None)
