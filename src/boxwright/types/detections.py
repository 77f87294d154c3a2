"""Detections in one image, as arrays or as tensors.

Detectors return tensors; exported detectors, metrics, drawings and files have arrays. Nothing here imports PyTorch, so
exported detectors run without it.

Dimensions: D detections, P keypoints, C columns of the class head or channels, H W features, h w mask, E embedding.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, Generic, TypeVar

import numpy as np
from numpy.typing import NDArray

from boxwright.types.categories import Categories, titles
from boxwright.types.detection_outputs import to_tf_outputs

if TYPE_CHECKING:
    from torch import Tensor

    from boxwright.types.padded_detections import RawDetections

Array = NDArray[Any]
V = TypeVar("V", NDArray[Any], "Tensor")

# Features of the second stage are large, and nothing that reads arrays uses them.
SECOND_STAGE = ("features", "rpn_features")
# Fields of the whole image rather than of each detection.
_OF_IMAGE = ("image_size", "categories", "raw")


# Comparing arrays gives arrays, which have no truth value; a generated `__eq__` would raise.
@dataclass(frozen=True, eq=False)
class Detections(Generic[V]):
    """The detections in one image, best first; all values are arrays, or all are tensors.

    Attributes:
        boxes: float32 [D, 4], xyxy in pixels of the original image.
        scores: float32 [D].
        labels: int64 [D], 0-based.
        image_size: (height, width) of that image.
        categories: The classes of the labels.
        anchor_indices: int64 [D]; the index of the anchor of each. This and the following fields are None if unknown.
        multiclass_scores: float32 [D, C]; all scores of that anchor, background first if there is one.
        keypoints: float32 [D, P, 2], x and y in pixels of the original image.
        masks: float32 [D, h, w] in 0..1; the probability that each part of the box, from corner to corner, belongs to
            the object. `boxwright.instance_masks` resizes them to the image.
        mask_boxes: float32 [D, 4], xyxy in pixels of the original image, beyond which they may reach; what each mask
            covers, from edge to edge, if that is not its box.
        features: float [D, C, H, W]; the second stage's features of the box (TF's `detection_features`).
        rpn_features: float [D, C, H, W]; crops of the first stage's feature map (TF's `cropped_rpn_box_features`).
        keypoint_scores: float32 [D, P] in 0..1; 0 where an object's class has no such keypoint.
        keypoint_depths: float32 [D, P], in the unit of the groundtruth's.
        temporal_offsets: float32 [D, 2]; y and x from the center in the previous frame, in the groundtruth's unit.
        surface_parts: uint8 [D, h, w]; within each mask the part of the body's surface, as `dense_pose.py` counts them
            plus 1; 0 beside it, and for classes without parts.
        surface_coordinates: float32 [D, h, w, 2]; v and u on that part; 0 without one.
        cell_boxes: float32 [D, 4]; CenterNet's boxes, xyxy in cells of its maps and clipped to these.
        embeddings: float32 [D, E] of length 1; nearer for the same individual in other images than for others.
        tracks: int64 [D]; the id that an object keeps from frame to frame of a video.
        raw: Boxes and scores of all anchors or regions: views of the batch's, on its device. Only
            `Detector.postprocess` returns them, not `Detector.detect`.
    """

    boxes: V
    scores: V
    labels: V
    image_size: tuple[int, int]
    categories: Categories | None = None
    anchor_indices: V | None = None
    multiclass_scores: V | None = None
    keypoints: V | None = None
    masks: V | None = None
    mask_boxes: V | None = None
    features: V | None = None
    rpn_features: V | None = None
    keypoint_scores: V | None = None
    keypoint_depths: V | None = None
    temporal_offsets: V | None = None
    surface_parts: V | None = None
    surface_coordinates: V | None = None
    cell_boxes: V | None = None
    embeddings: V | None = None
    tracks: V | None = None
    raw: RawDetections | None = None

    def __len__(self) -> int:
        return len(self.boxes)

    def select(self, rows: Any) -> Detections[V]:
        """Return the detections of some rows: a slice, a mask or indices, as an array or tensor takes them."""
        known = {name: value[rows] for name, value in vars(self).items() if name not in _OF_IMAGE and value is not None}
        return replace(self, **known)

    def above(self, score: float) -> Detections[V]:
        """Return the detections of at least a score."""
        return self.select(self.scores >= score)

    def with_points(self, change: Callable[[V], V], image_size: tuple[int, int]) -> Detections[V]:
        """Return them in another frame.

        Args:
            change: Takes points [..., 2], x and y, to that frame.
            image_size: (height, width) there.

        Returns:
            The same detections with points, boxes and masks' boxes there.
        """

        def corners(boxes: V) -> V:
            return change(boxes.reshape(-1, 2, 2)).reshape(-1, 4)

        return replace(
            self,
            boxes=corners(self.boxes),
            keypoints=None if self.keypoints is None else change(self.keypoints),
            mask_boxes=None if self.mask_boxes is None else corners(self.mask_boxes),
            image_size=image_size,
        )

    def first(self, count: int) -> Detections[V]:
        """Return the best `count` detections."""
        return self.select(slice(count))

    def arrays(self) -> Detections[Array]:
        """Return the same as arrays, for metrics, drawings and files, without `raw` and the second stage's features."""
        return Detections(**{name: value for name, value in self._to_arrays().items() if name not in SECOND_STAGE})

    def scored_keypoints(self) -> NDArray[np.float32] | None:
        """Return the keypoints with their scores, 1 where those are unknown, float32 [D, P, 3]; None without."""
        if self.keypoints is None:
            return None
        keypoints = _to_array(self.keypoints)
        scores = np.ones(keypoints.shape[:2]) if self.keypoint_scores is None else _to_array(self.keypoint_scores)
        return np.concatenate([keypoints, scores[..., None]], -1).astype(np.float32)

    def names(self) -> list[str]:
        """Return D names; "class 3" for a label without a category."""
        return titles(self.categories, self.labels.tolist())

    def to_tf(self) -> dict[str, Array]:
        """Return the outputs of TensorFlow's exported detectors for one image, without batch dimension and padding.

        Returns:
            `detection_boxes` float32 [D, 4] as ymin, xmin, ymax, xmax in 0..1 of the image, `detection_scores` float32
            [D], `detection_classes` float32 [D] (1-based), and `num_detections` float32 []; if known, the outputs of
            `DETECTION_OUTPUTS`, float32, and `raw_detection_boxes` [A, 4] and `raw_detection_scores` [A, C] as
            `RawDetections.to_tf` describes them.
        """
        arrays: Detections[Array] = Detections(**self._to_arrays())
        height, width = self.image_size
        outputs = {
            "detection_boxes": arrays.boxes[:, [1, 0, 3, 2]] / np.array([height, width, height, width], np.float32),
            "detection_scores": arrays.scores,
            "detection_classes": arrays.labels + 1,
            "num_detections": np.array(len(self)),
        }
        outputs |= to_tf_outputs(arrays, np.array(self.image_size, np.float32))
        # All float32, classes and counts too, as in TF's exported signature.
        result = {name: values.astype(np.float32) for name, values in outputs.items()}
        return result if self.raw is None else result | self.raw.to_tf_arrays(self.image_size)

    def _to_arrays(self) -> dict[str, Any]:
        """Return the fields, except `raw`, with arrays in place of tensors."""
        return {
            name: value if name in _OF_IMAGE or value is None else _to_array(value)
            for name, value in vars(self).items()
            if name != "raw"
        }


# Detects objects in images, each uint8 [H, W, 3].
DetectFunction = Callable[[Sequence[NDArray[np.uint8]]], list[Detections[Array]]]


def _to_array(values: Array | Tensor) -> Array:
    """Return an array, or a tensor of any device as an array."""
    if isinstance(values, np.ndarray):
        return values
    return values.detach().cpu().numpy()
