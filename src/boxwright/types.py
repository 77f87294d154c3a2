"""The values that pass between the rooms.

Conventions, everywhere inside Boxwright: boxes are `x_min, y_min, x_max, y_max` in pixels, float32,
with continuous coordinates (a box that covers a whole 4×3 image is `0, 0, 4, 3`); labels are
0-based indices of foreground classes; a class's id, as its label map or COCO file has it, lives in
`Categories` alone.

Dimensions: B batch, G groundtruth boxes (padded), A anchors, K foreground classes, N boxes of one
image, D detections of one image, H W image.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, fields, replace
from functools import cached_property
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from boxwright.errors import DataError

__all__ = ["Categories", "Category", "Detections", "Predictions", "RawDetections", "Refinement", "Sample", "Targets"]


@dataclass(frozen=True)
class Category:
    """One class of objects.

    Attributes:
        label: The 0-based index inside Boxwright.
        id: The id in the source (1-based in label maps, sparse in COCO).
        name: The name that annotations use.
        display_name: The name that pictures show.
        keypoints: Names of the keypoints, in order; may be empty.
    """

    label: int
    id: int
    name: str
    display_name: str = ""
    keypoints: tuple[str, ...] = ()

    @property
    def title(self) -> str:
        """The name to show: the display name, or the name where there is none."""
        return self.display_name or self.name


@dataclass(frozen=True)
class Categories:
    """The classes of a data set, in the order of their labels.

    Labels may have gaps (a label map with ids 1, 2, 5 has labels 0, 1, 4), as TensorFlow's heads
    have a slot for every id up to the largest.

    Attributes:
        items: The classes, ordered by label.

    Raises:
        DataError: For two classes of the same label, id or name, or none at all.
    """

    items: tuple[Category, ...]

    def __post_init__(self) -> None:
        if not self.items:
            raise DataError("no classes: at least one category is expected")
        for attribute in ("label", "id", "name"):
            counts = Counter(getattr(item, attribute) for item in self.items)
            twice, count = counts.most_common(1)[0]
            if count > 1:
                raise DataError(f"two categories have the {attribute} {twice!r}")
        object.__setattr__(self, "items", tuple(sorted(self.items, key=lambda item: item.label)))

    @cached_property
    def _by_label(self) -> dict[int, Category]:
        return {item.label: item for item in self.items}

    @cached_property
    def _by_name(self) -> dict[str, Category]:
        return {item.name: item for item in self.items}

    @cached_property
    def _by_id(self) -> dict[int, Category]:
        return {item.id: item for item in self.items}

    def __iter__(self) -> Iterator[Category]:
        return iter(self.items)

    def __len__(self) -> int:
        return len(self.items)

    @property
    def num_slots(self) -> int:
        """How many classes a head needs: the largest label plus one."""
        return self.items[-1].label + 1

    def by_label(self, label: int) -> Category:
        """Return the class of a label; a label in a gap gets a category named after its number.

        Args:
            label: A 0-based label.

        Returns:
            The category.
        """
        return self._by_label.get(label) or Category(label, label + 1, f"class {label + 1}")

    def by_name(self, name: str) -> Category | None:
        """Return the class of a name.

        Args:
            name: The name that annotations use.

        Returns:
            The category, or None.
        """
        return self._by_name.get(name)

    def by_id(self, id: int) -> Category | None:
        """Return the class of an id.

        Args:
            id: The id in the source.

        Returns:
            The category, or None.
        """
        return self._by_id.get(id)

    def to_list(self) -> list[dict[str, Any]]:
        """Return plain data, for checkpoints and JSON.

        Returns:
            One dictionary a category.
        """
        return [
            {"label": c.label, "id": c.id, "name": c.name, "display_name": c.display_name, "keypoints": [*c.keypoints]}
            for c in self.items
        ]

    @classmethod
    def from_list(cls, items: list[dict[str, Any]]) -> Categories:
        """Invert `to_list`.

        Args:
            items: What `to_list` returned.

        Returns:
            The categories.

        Raises:
            DataError: Where it is not what `to_list` returns.
        """
        kinds: dict[str, Any] = {"label": int, "id": int, "name": str, "display_name": str, "keypoints": list | tuple}
        for number, item in enumerate(items):
            wrong = next(
                (key for key, value in item.items() if not isinstance(value, kinds.get(key, type(None)))), None
            )
            if wrong is not None or not {"label", "id", "name"} <= set(item) or item["label"] < 0:
                raise DataError(f"class {number}: expected label, id and name, found {str(item)[:120]}")
        return cls(tuple(Category(**{**item, "keypoints": tuple(item.get("keypoints", ()))}) for item in items))


@dataclass
class Sample:
    """One image with what is known about its objects.

    Attributes:
        image: uint8 [H, W, 3], RGB, upright.
        boxes: float32 [N, 4], xyxy in pixels of `image`, as annotated (they may cross the border).
        labels: int64 [N], 0-based.
        weights: float32 [N]; how much each object counts in training.
        difficult: bool [N]; excused in VOC evaluation.
        is_crowd: bool [N]; the box stands for many objects: ignored in training and evaluation.
        group_of: bool [N]; Open Images' mark of groups.
        areas: float32 [N] in pixels; of the mask where the source knows it, else of the box.
        masks: uint8 [N, H, W] of 0 and 1, or None.
        keypoints: float32 [N, P, 3] as x, y in pixels and visibility (0 or 1), or None.
        class_scores: float32 [N, K]; what the class logits of each object should say, where that is not its
            label alone; or None.
        verified_labels: int64 [V]; classes that somebody looked for in the image, found or not (Open Images).
        id: What identifies the image in its source.
        filename: The image's file name, as the source has it; may be empty.
    """

    image: NDArray[np.uint8]
    boxes: NDArray[np.float32]
    labels: NDArray[np.int64]
    weights: NDArray[np.float32] = field(default_factory=lambda: np.zeros(0, np.float32))
    difficult: NDArray[np.bool_] = field(default_factory=lambda: np.zeros(0, np.bool_))
    is_crowd: NDArray[np.bool_] = field(default_factory=lambda: np.zeros(0, np.bool_))
    group_of: NDArray[np.bool_] = field(default_factory=lambda: np.zeros(0, np.bool_))
    areas: NDArray[np.float32] = field(default_factory=lambda: np.zeros(0, np.float32))
    masks: NDArray[np.uint8] | None = None
    keypoints: NDArray[np.float32] | None = None
    class_scores: NDArray[np.float32] | None = None
    verified_labels: NDArray[np.int64] = field(default_factory=lambda: np.zeros(0, np.int64))
    id: str = ""
    filename: str = ""

    def __post_init__(self) -> None:
        n = len(self.boxes)
        self.boxes = np.asarray(self.boxes, np.float32).reshape(n, 4)
        self.labels = np.asarray(self.labels, np.int64).reshape(n)
        if len(self.weights) != n:
            self.weights = np.ones(n, np.float32)
        for name in ("difficult", "is_crowd", "group_of"):
            if len(getattr(self, name)) != n:
                setattr(self, name, np.zeros(n, np.bool_))
        if len(self.areas) != n:
            sides = np.maximum(self.boxes[:, 2:] - self.boxes[:, :2], 0)
            self.areas = sides[:, 0] * sides[:, 1]

    def keep(self, index: NDArray[Any]) -> Sample:
        """Return the sample with some of its objects.

        Args:
            index: A boolean mask [N] or integer indices of the objects that stay.

        Returns:
            A sample that shares the image.
        """
        picked = {name: getattr(self, name)[index] for name in _PER_OBJECT if getattr(self, name) is not None}
        return replace(self, **picked)


_PER_OBJECT = (
    "boxes",
    "labels",
    "weights",
    "difficult",
    "is_crowd",
    "group_of",
    "areas",
    "masks",
    "keypoints",
    "class_scores",
)


@dataclass(frozen=True)
class Targets:
    """The groundtruth of a batch, padded to G boxes an image.

    Attributes:
        boxes: float32 [B, G, 4], xyxy in pixels of the network's input; zeros where padded.
        labels: int64 [B, G], 0-based; 0 where padded.
        weights: float32 [B, G]; 0 where padded.
        valid: bool [B, G]; False where padded.
        keypoints: float32 [B, G, P, 2], x and y in pixels of the network's input, NaN where not known;
            or None.
        confidences: float32 [B, G, K]; how sure it is that an object is (above 0) or is not (below 0) of
            a class, 0 where nothing is said; or None.
        class_scores: float32 [B, G, K]; what the class logits of each object should say, where that is not its
            label alone; or None.
        annotated: bool [B]; False for images that nobody looked at, which no loss counts; or None for all.
    """

    boxes: Tensor
    labels: Tensor
    weights: Tensor
    valid: Tensor
    keypoints: Tensor | None = None
    confidences: Tensor | None = None
    class_scores: Tensor | None = None
    annotated: Tensor | None = None

    def to(self, device: torch.device | str) -> Targets:
        """Move to a device.

        Args:
            device: The device.

        Returns:
            Targets there.
        """
        wait_not = torch.device(device).type == "cuda"
        return self._each(lambda value: value.to(device, non_blocking=wait_not))

    def rows(self, start: int, stop: int) -> Targets:
        """Take some images.

        Args:
            start: The first.
            stop: The one after the last.

        Returns:
            Their targets.
        """
        return self._each(lambda value: value[start:stop])

    def pin_memory(self) -> Targets:
        """Copy to memory from which a GPU can read while the CPU works.

        Returns:
            Targets there.
        """
        return self._each(Tensor.pin_memory)

    def tensors(self) -> list[Tensor]:
        """List what there is.

        Returns:
            The tensors that are not None.
        """
        return [value for f in fields(self) if (value := getattr(self, f.name)) is not None]

    def _each(self, change: Callable[[Tensor], Tensor]) -> Targets:
        known = {f.name: value for f in fields(self) if (value := getattr(self, f.name)) is not None}
        return Targets(**{name: change(value) for name, value in known.items()})


@dataclass(frozen=True)
class Refinement:
    """What the first step of a two-step network says of a batch.

    Attributes:
        box_codes: float [B, A, 4]; offsets from the anchors as they were laid.
        class_logits: float [B, A, 2]; no object, object.
    """

    box_codes: Tensor
    class_logits: Tensor


@dataclass(frozen=True)
class Predictions:
    """What a one-stage network says of a batch, before any decoding.

    Attributes:
        box_codes: float [B, A, code size]; offsets from the anchors, as the box coder has them.
        class_logits: float [B, A, C]; C is K, or K + 1 where column 0 is background.
        anchors: float32 [A, 4], xyxy in pixels of the network's input; or [B, A, 4] where each image has its own.
        feature_maps: The maps that the heads saw, finest first, each [B, C, H, W].
        input_size: (height, width) of the network's input, the unit in which boxes are coded.
        levels: int64 [A]; which of the feature maps each anchor belongs to, or None where not known.
        masks: float [B, A, h, w] or [B, A, K, h, w], where a head predicts them; or None.
        refinement: The first step, where the network has two; then codes and logits are the second's. Or None.
        passed_over: bool [B, A]; anchors that are not detected, and no negatives; or None.
    """

    box_codes: Tensor
    class_logits: Tensor
    anchors: Tensor
    feature_maps: tuple[Tensor, ...] = ()
    input_size: tuple[int, int] = (1, 1)
    levels: Tensor | None = None
    masks: Tensor | None = None
    refinement: Refinement | None = None
    passed_over: Tensor | None = None


@dataclass(frozen=True)
class RawDetections:
    """Every anchor of a batch decoded, before anything is dropped (TF's `raw_detection_…`).

    Attributes:
        boxes: float32 [B, A, 4], xyxy in pixels of the network's input, not clipped.
        scores: float32 [B, A, C]; background first where there is one.
        levels: int64 [A]; which feature map each anchor belongs to, or None.
    """

    boxes: Tensor
    scores: Tensor
    levels: Tensor | None = None


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
        masks: float32 [D, …], as the head predicted them for that anchor.
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

    def __len__(self) -> int:
        return len(self.boxes)

    def above(self, score: float) -> Detections:
        """Keep the detections of at least a score.

        Args:
            score: The threshold.

        Returns:
            Fewer detections.
        """
        keep = self.scores >= score
        optional = {
            name: value[keep]
            for name in ("anchor_indices", "multiclass_scores", "keypoints", "masks")
            if (value := getattr(self, name)) is not None
        }
        return replace(self, boxes=self.boxes[keep], scores=self.scores[keep], labels=self.labels[keep], **optional)

    def names(self) -> list[str]:
        """Name the class of each detection.

        Returns:
            D names; "class 3" for a label without a category.
        """
        labels = [int(label) for label in self.labels]
        if self.categories is None:
            return [f"class {label + 1}" for label in labels]
        return [self.categories.by_label(label).title for label in labels]

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
        if self.anchor_indices is not None:
            result["detection_anchor_indices"] = self.anchor_indices.cpu().numpy().astype(np.float32)
        return result
