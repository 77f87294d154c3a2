"""What was found in images.

Dimensions: B batch, D detections (padded in a batch), P keypoints, C columns of the class head.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray
from torch import Tensor

from boxwright.types.categories import Categories, titles
from boxwright.types.found import FoundObjects, chosen
from boxwright.types.packing import fetched


@dataclass(frozen=True)
class PaddedDetections:
    """What was found in a batch, best first; 0 where padded.

    Attributes:
        boxes: float32 [B, D, 4], xyxy in pixels of the network's input.
        scores: float32 [B, D].
        labels: int64 [B, D], 0-based.
        anchors: int64 [B, D]; which anchor each came from.
        valid: bool [B, D]; False where padded. What is valid comes first.
        complete: bool [B]; False where more could have been found: a graph of fixed shapes looks at the best
            candidates alone. None where nothing was left out.
        multiclass_scores: float32 [B, D, C]; all scores of each one's anchor, background first where there is one; or
            None where not known, as what follows.
        keypoints: float32 [B, D, P, 2], x and y in pixels of the network's input.
        masks: float32 [B, D, h, w] in 0..1; as in `Detections`.
        features: float [B, D, C, H, W]; as there.
        rpn_features: float [B, D, C, H, W]; as there.
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
    features: Tensor | None = None
    rpn_features: Tensor | None = None

    def image(self, number: int) -> PaddedDetections:
        """Return what was found in one image, [D, …] without padding."""
        count = int(self.valid[number].sum())
        found = replace(self, complete=None)
        known = {name: value[number, :count] for name, value in vars(found).items() if value is not None}
        return PaddedDetections(**known)

    def on_cpu(self, *others: Tensor) -> tuple[PaddedDetections, list[Tensor]]:
        """Return the same on the CPU, and other tensors; from a GPU in one copy, for which the program waits once."""
        known = {name: value for name, value in vars(self).items() if value is not None}
        values = fetched([*known.values(), *others])
        return PaddedDetections(**dict(zip(known, values, strict=False))), values[len(known) :]

    def to_list(self, image_sizes: Tensor, categories: Categories | None = None) -> list[Detections]:
        """Return what was found in each image, without padding; on a GPU each image is waited for.

        Args:
            image_sizes: int64 [B, 2]; the (height, width) of each image, in the pixels that boxes are in.
            categories: The classes that the labels name.

        Returns:
            B detections.
        """
        listed = []
        for number, (height, width) in enumerate(image_sizes.tolist()):
            one = self.image(number)
            listed.append(
                Detections(
                    one.boxes,
                    one.scores,
                    one.labels,
                    (int(height), int(width)),
                    categories,
                    anchor_indices=one.anchors,
                    multiclass_scores=one.multiclass_scores,
                    keypoints=one.keypoints,
                    masks=one.masks,
                    features=one.features,
                    rpn_features=one.rpn_features,
                )
            )
        return listed


@dataclass(frozen=True)
class Detections:
    """What was found in one image, best first.

    Attributes:
        boxes: float32 [D, 4], xyxy in pixels of the image as it was given.
        scores: float32 [D].
        labels: int64 [D], 0-based.
        image_size: (height, width) of that image.
        categories: The classes that the labels name.
        anchor_indices: int64 [D]; the anchor that each detection came from.
        multiclass_scores: float32 [D, C]; all scores of that anchor, background first where there is one.
        keypoints: float32 [D, P, 2], x and y in pixels of the image as it was given.
        masks: float32 [D, h, w] in 0..1; how likely each part of a detection's box belongs to the object, from corner
            to corner. `boxwright.instance_masks` brings them to the image.
        features: float [D, C, H, W]; what the second stage sees at the box (TF's `detection_features`).
        rpn_features: float [D, C, H, W]; the crops of the first stage's map there (TF's `cropped_rpn_box_features`).
    """

    boxes: Tensor
    scores: Tensor
    labels: Tensor
    image_size: tuple[int, int]
    categories: Categories | None = None
    anchor_indices: Tensor | None = None
    multiclass_scores: Tensor | None = None
    keypoints: Tensor | None = None
    masks: Tensor | None = None
    features: Tensor | None = None
    rpn_features: Tensor | None = None

    def __len__(self) -> int:
        return len(self.boxes)

    def above(self, score: float) -> Detections:
        """Keep the detections of at least a score."""
        return chosen(self, self.scores >= score)

    def first(self, count: int) -> Detections:
        """Keep the best detections."""
        return chosen(self, slice(count))

    def arrays(self) -> FoundObjects:
        """Return the same as arrays, which metrics, pictures and files read."""

        def array(value: Tensor | None) -> Any:
            return None if value is None else value.detach().cpu().numpy()

        return FoundObjects(
            boxes=array(self.boxes),
            scores=array(self.scores),
            labels=array(self.labels),
            image_size=self.image_size,
            categories=self.categories,
            anchor_indices=array(self.anchor_indices),
            multiclass_scores=array(self.multiclass_scores),
            keypoints=array(self.keypoints),
            masks=array(self.masks),
        )

    def names(self) -> list[str]:
        """Return D names; "class 3" for a label without a category."""
        return titles(self.categories, self.labels.tolist())

    def to_tf(self) -> dict[str, NDArray[Any]]:
        """Return what TensorFlow's exported detectors return for one image, without the batch.

        Returns:
            `detection_boxes` float32 [D, 4] as ymin, xmin, ymax, xmax in 0..1 of the image,
            `detection_scores` float32 [D], `detection_classes` float32 [D] (1-based), and
            `num_detections` float32 []; with `detection_multiclass_scores`, `detection_keypoints` (y, x
            in 0..1), `detection_masks` and `detection_anchor_indices` where they are known.
        """
        height, width = self.image_size
        boxes = self.boxes.cpu().numpy()[:, [1, 0, 3, 2]] / np.array([height, width, height, width], np.float32)
        result: dict[str, NDArray[Any]] = {
            "detection_boxes": boxes.astype(np.float32),
            "detection_scores": self.scores.cpu().numpy().astype(np.float32),
            "detection_classes": self.labels.cpu().numpy().astype(np.float32) + 1,
            "num_detections": np.array(len(self), np.float32),
        }
        if self.multiclass_scores is not None:
            result["detection_multiclass_scores"] = self.multiclass_scores.cpu().numpy()
        if self.keypoints is not None:
            keypoints = self.keypoints.cpu().numpy()[..., [1, 0]] / np.array([height, width], np.float32)
            result["detection_keypoints"] = keypoints.astype(np.float32)
        if self.masks is not None:
            result["detection_masks"] = self.masks.cpu().numpy().astype(np.float32)
        for name, features in (("features", self.features), ("rpn_features", self.rpn_features)):
            if features is not None:
                tag = "detection_features" if name == "features" else "cropped_rpn_box_features"
                result[tag] = features.permute(0, 2, 3, 1).cpu().numpy()
        if self.anchor_indices is not None:
            result["detection_anchor_indices"] = self.anchor_indices.cpu().numpy().astype(np.float32)
        return result
