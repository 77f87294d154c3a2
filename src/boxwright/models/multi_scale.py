"""One detector, many looks: sizes, mirror images, and a vote (RefineDet, section 4: "multi-scale testing").

Dimensions: D detections of one image.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor

from boxwright.criteria.criterion import Criterion
from boxwright.errors import ConfigError
from boxwright.models.detector import Detector
from boxwright.models.network import Network
from boxwright.postprocessing.nms import Nms, SoftVoting, Voting
from boxwright.preprocessing.image_resizer import FixedShapeResizer
from boxwright.preprocessing.images import Images, image_tensors
from boxwright.types import Categories, Detections

__all__ = ["MULTI_SCALE", "Look", "MultiScale", "MultiScaleDetector", "at_scales"]


@dataclass(frozen=True)
class Look:
    """One size at which an image and its mirror image are looked at, and what is believed of it.

    Attributes:
        long_side: Pixels of the network's input along the image's longer side.
        short_side: Along its shorter one; the aspect ratio is not kept.
        larger_than: Boxes whose longer side has so many pixels of the image or fewer are dropped.
        smaller_than: Boxes whose shorter side has so many or more are dropped.
    """

    long_side: int
    short_side: int
    larger_than: float = 0.0
    smaller_than: float = float("inf")

    def size(self, image: Tensor) -> tuple[int, int]:
        """Say how large the input is.

        Args:
            image: [C, H, W].

        Returns:
            (height, width).
        """
        upright = image.shape[1] > image.shape[2]
        return (self.long_side, self.short_side) if upright else (self.short_side, self.long_side)

    def believes(self, boxes: Tensor) -> Tensor:
        """Judge boxes by their sides.

        Args:
            boxes: float32 [D, 4], xyxy in pixels of the image.

        Returns:
            bool [D].
        """
        sides = boxes[:, 2:] - boxes[:, :2]
        return (sides.amax(1) > self.larger_than) & (sides.amin(1) < self.smaller_than)


@dataclass(frozen=True)
class MultiScale:
    """Several looks, and how they are merged.

    Attributes:
        looks: The looks.
        voting: Merges what they find of a class.
        max_detections: The most that an image keeps.
    """

    looks: tuple[Look, ...]
    voting: Voting | SoftVoting
    max_detections: int = 500


def _squares(*rules: tuple[int, float, float]) -> tuple[Look, ...]:
    return tuple(Look(side, side, larger, smaller) for side, larger, smaller in rules)


_INF = float("inf")
_320 = (
    Look(320, 320),
    Look(320, 192),
    *_squares((192, 32, _INF), (384, 0, 160), (448, 0, 128), (512, 0, 96), (576, 0, 64), (704, 0, 32)),
)
_512 = (
    Look(512, 512),
    Look(512, 384),
    *_squares((256, 0, _INF), (384, 0, _INF), (768, 0, 192), (896, 0, 128)),
)
# The authors' test scripts.
MULTI_SCALE: dict[str, MultiScale] = {
    "refinedet320-voc": MultiScale(_320, Voting()),
    "refinedet320-coco": MultiScale((*_320, *_squares((640, 0, 48))), SoftVoting()),
    "refinedet512-voc": MultiScale(_512, Voting()),
    "refinedet512-coco": MultiScale((*_512, *_squares((640, 0, 224), (1024, 0, 96), (1152, 0, 64))), SoftVoting()),
}


class MultiScaleDetector:
    """Looks at each image many times; for evaluation and prediction it takes the place of a detector."""

    def __init__(self, detector: Detector, rules: MultiScale) -> None:
        """Prepare.

        Args:
            detector: Looks once; it stays as it is.
            rules: The looks.

        Raises:
            ConfigError: Where the detector does not bring images to a fixed size, or predicts masks, which cannot vote.
        """
        if detector.network.learns_masks:
            raise ConfigError("looking at many sizes merges boxes; a detector of masks looks once")
        if not isinstance(detector.preprocessor.resizer, FixedShapeResizer):
            raise ConfigError("looking at many sizes is for a detector with image_resizer { fixed_shape_resizer { } }")
        self.detector, self.rules = detector, rules

    @property
    def training(self) -> bool:
        """Whether the detector is in training mode."""
        return self.detector.training

    @property
    def categories(self) -> Categories | None:
        """The classes, where known."""
        return self.detector.categories

    @property
    def network(self) -> Network:
        """The detector's network."""
        return self.detector.network

    @property
    def criterion(self) -> Criterion[Any]:
        """The detector's criterion."""
        return self.detector.criterion

    def regularization(self) -> Tensor:
        """Sum the penalties on the network's kernels."""
        return self.detector.regularization()

    def train(self, mode: bool = True) -> None:
        """Set the detector's mode.

        Args:
            mode: Whether to train.
        """
        self.detector.train(mode)

    def eval(self) -> None:
        """Set the detector to inference."""
        self.detector.eval()

    def detect(self, images: Images) -> list[Detections]:
        """Return one result an image, in pixels of that image; without anchors and scores of other classes."""
        return self._merged([image.permute(2, 0, 1) for image in image_tensors(images)])

    def detect_runs(self, images: Images) -> Iterator[tuple[list[Detections], Any, Tensor]]:
        """Detect, and hand out the raw predictions of one plain look, which an evaluation's losses need.

        Args:
            images: As for `Detector.detect`.

        Yields:
            As `Detector.detect_runs`.
        """
        tensors = [image.permute(2, 0, 1) for image in image_tensors(images)]
        start = 0
        for found, predictions, sizes in self.detector.detect_runs(tensors):
            run = tensors[start : start + len(found)]
            start += len(found)
            yield self._merged(run), predictions, sizes

    def _merged(self, images: list[Tensor]) -> list[Detections]:
        views = [(look, mirror) for look in self.rules.looks for mirror in (False, True)]
        return [
            _vote([self._look(image, look, mirror=mirror) for look, mirror in views], self.rules) for image in images
        ]

    def _look(self, image: Tensor, look: Look, *, mirror: bool) -> Detections:
        height, width = look.size(image)
        plain = self.detector
        resizer = replace(plain.preprocessor.resizer, height=height, width=width)  # type: ignore[type-var]
        sized = Detector(
            replace(plain.preprocessor, resizer=resizer),
            plain.network,
            plain.criterion,
            plain.postprocessor,
            num_classes=plain.num_classes,
            categories=plain.categories,
        )
        (found,) = sized.train(plain.training).detect([image.flip(-1) if mirror else image])
        boxes = found.boxes
        if mirror:
            left = image.shape[-1] - boxes[:, 2:3]
            boxes = torch.cat([left, boxes[:, 1:2], image.shape[-1] - boxes[:, 0:1], boxes[:, 3:4]], 1)
        kept = look.believes(boxes)
        return Detections(boxes[kept], found.scores[kept], found.labels[kept], found.image_size, found.categories)


def _vote(looks: list[Detections], rules: MultiScale) -> Detections:
    boxes, scores, labels = (torch.cat([getattr(one, name) for one in looks]) for name in ("boxes", "scores", "labels"))
    classes = int(labels.max()) + 1 if len(labels) else 1
    by_class = scores.new_full((len(scores), classes), -torch.inf).scatter(1, labels[:, None], scores[:, None])
    window = torch.tensor([looks[0].image_size], device=boxes.device)
    nms = Nms(rules.voting, max_total_detections=rules.max_detections, outside="unclipped")
    best = nms(boxes[None], by_class[None], window).image(0)
    return Detections(best.boxes, best.scores, best.labels, looks[0].image_size, looks[0].categories)


def at_scales(detector: Detector, name: str) -> Detector | MultiScaleDetector:
    """Let a detector look many times.

    Args:
        detector: Looks once.
        name: A key of `MULTI_SCALE`; empty for one look.

    Returns:
        What looks so; the detector itself for one look.

    Raises:
        ConfigError: For an unknown name.
    """
    if not name:
        return detector
    if name not in MULTI_SCALE:
        raise ConfigError(f"multi_scale: {name!r} is not known; known: {', '.join(MULTI_SCALE)}")
    return MultiScaleDetector(detector, MULTI_SCALE[name])
