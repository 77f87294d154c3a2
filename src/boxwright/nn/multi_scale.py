"""One detector at many input sizes and on mirror images, merged by voting: RefineDet's and SRN's multi-scale testing.

Dimensions: D detections of one image.
"""

from __future__ import annotations

import copy
import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor

from boxwright.base.errors import ConfigError
from boxwright.nn.criteria.criterion import Criterion
from boxwright.nn.detector import DetectionsAndLosses, Detector, EvaluationLosses
from boxwright.nn.network import Network
from boxwright.nn.ops.boxes import box_area, clip_boxes
from boxwright.nn.postprocessing.nms import Nms, SoftVoting, Voting
from boxwright.nn.preprocessing import (
    FixedShapeResizer,
    IdentityResizer,
    Images,
    image_tensors,
    scaled_by_opencv,
)
from boxwright.types import Categories, Detections
from boxwright.types.context_features import ContextFeatures
from boxwright.types.pixels import Scale


@dataclass(frozen=True)
class InputSize:
    """One input size, for an image and its mirror image, and the sizes of boxes kept from it.

    Attributes:
        long_side: Pixels of the network's input along the image's longer side.
        short_side: Pixels along the shorter side; the aspect ratio is not kept.
        larger_than: Boxes are dropped whose longer side, in pixels of the image, is at most this.
        smaller_than: Boxes are dropped whose shorter side is at least this.
    """

    long_side: int
    short_side: int
    larger_than: float = 0.0
    smaller_than: float = float("inf")

    def size(self, image: Tensor) -> tuple[int, int]:
        """Return (height, width) of the input for an image [C, H, W]."""
        upright = image.shape[1] > image.shape[2]
        return (self.long_side, self.short_side) if upright else (self.short_side, self.long_side)

    def keeps(self, boxes: Tensor) -> Tensor:
        """Return which boxes [D, 4], xyxy in pixels of the image, are kept for their size: bool [D]."""
        sides = boxes[:, 2:] - boxes[:, :2]
        return (sides.amax(1) > self.larger_than) & (sides.amin(1) < self.smaller_than)


@dataclass(frozen=True)
class View:
    """An image mirrored or resized for one pass.

    Attributes:
        image: [C, H, W]; mirrored or scaled.
        size: (height, width) of the network's input; None for the detector's own resizer.
        to_original: Maps boxes [D, 4] from pixels of the view to pixels of the image.
        keeps: Returns which boxes in pixels of the image are kept, bool [D].
    """

    image: Tensor
    size: tuple[int, int] | None
    to_original: Callable[[Tensor], Tensor]
    keeps: Callable[[Tensor], Tensor]


@dataclass(frozen=True)
class MultiScale:
    """Several sizes of the network's input, each with its mirror image, and how their detections are merged.

    Attributes:
        clips: Whether merged boxes are clipped to the image.
    """

    input_sizes: tuple[InputSize, ...]
    voting: Voting | SoftVoting
    max_detections: int = 500
    clips: bool = False

    def check(self, detector: Detector) -> None:
        """Raise if a detector does not resize images to a fixed size, which the input sizes replace."""
        if not isinstance(detector.preprocessor.resizer, FixedShapeResizer):
            raise ConfigError(
                "multi_scale: many input sizes are for a detector with image_resizer { fixed_shape_resizer { } }"
            )

    def views(self, image: Tensor) -> Iterator[View]:
        """Yield the views of an image [C, H, W]."""
        for input_size in self.input_sizes:
            yield View(image, input_size.size(image), _unchanged, input_size.keeps)
            yield View(image.flip(-1), input_size.size(image), _mirrored(image.shape[-1]), input_size.keeps)


# SRN's script drops a box that no other view has found.
_HALF = Voting(0.5, least_members=2)


@dataclass(frozen=True)
class ScalePyramid:
    """The image, its mirror image, and the image scaled down and up (SRN's test script).

    Images of up to `max_size`² pixels are halved, for faces of more than 30 pixels, and enlarged 1.5 times repeatedly
    up to the limit, for faces of fewer than 100. Larger images are scaled down to the limit, and then to three and two
    quarters of it, for faces of more than 30 pixels.

    Attributes:
        max_size: The square root of the largest input's area.
        clips: Whether merged boxes are clipped to the image.
    """

    max_size: int
    voting: Voting = _HALF
    max_detections: int = 750
    clips: bool = True

    def check(self, detector: Detector) -> None:
        """Raise if a detector resizes images itself."""
        if not isinstance(detector.preprocessor.resizer, IdentityResizer):
            raise ConfigError(
                "multi_scale: scales of the image are for a detector with image_resizer { identity_resizer { } }"
            )

    def views(self, image: Tensor) -> Iterator[View]:
        """Yield the views of an image [C, H, W]."""
        height, width = image.shape[-2:]
        room = self.max_size**2 / (height * width)
        large, small = InputSize(0, 0, larger_than=30).keeps, InputSize(0, 0, smaller_than=100).keeps
        if room > 1:
            plain, base = image, 1.0
            # An enlargement by 1.5 takes 2.25 times the area.
            scales = [(0.5, large), *((1.5 ** (t + 1), small) for t in range(int(math.log(room, 2.25))))]
            scales.append((math.sqrt(room), small))
        else:
            base = math.sqrt(room)
            plain = scaled_by_opencv(image, base)
            scales = [(0.75, large), (0.5, large)]
        yield View(plain, None, _from_scale(base), _all)
        flipped, unmirrored = plain.flip(-1), _mirrored(plain.shape[-1])
        yield View(flipped, None, lambda boxes: _from_scale(base)(unmirrored(boxes)), _all)
        for scale, keeps in scales:
            # OpenCV rejects a size that rounds to 0 pixels.
            if min(height, width) * base * scale >= 1:
                yield View(scaled_by_opencv(plain, scale), None, _from_scale(base * scale), keeps)


def _unchanged(boxes: Tensor) -> Tensor:
    return boxes


def _all(boxes: Tensor) -> Tensor:
    return torch.ones(len(boxes), dtype=torch.bool, device=boxes.device)


def _mirrored(width: int) -> Callable[[Tensor], Tensor]:
    """Return the function that maps boxes of a mirrored image back."""
    return lambda boxes: torch.cat([width - boxes[:, 2:3], boxes[:, 1:2], width - boxes[:, 0:1], boxes[:, 3:4]], 1)


def _from_scale(scale: float) -> Callable[[Tensor], Tensor]:
    """Return the function that maps boxes of a scaled image back, by the centers of their outermost pixels."""
    return lambda boxes: torch.cat([(boxes[:, :2] + 0.5) / scale - 0.5, (boxes[:, 2:] - 0.5) / scale + 0.5], 1)


def _squares(*rules: tuple[int, float, float]) -> tuple[InputSize, ...]:
    return tuple(InputSize(side, side, larger, smaller) for side, larger, smaller in rules)


_INF = float("inf")
_320 = (
    InputSize(320, 320),
    InputSize(320, 192),
    *_squares((192, 32, _INF), (384, 0, 160), (448, 0, 128), (512, 0, 96), (576, 0, 64), (704, 0, 32)),
)
_512 = (
    InputSize(512, 512),
    InputSize(512, 384),
    *_squares((256, 0, _INF), (384, 0, _INF), (768, 0, 192), (896, 0, 128)),
)
# The authors' test scripts; 2100 and 1400 are the sizes of SRN's two published results.
MULTI_SCALE: dict[str, MultiScale | ScalePyramid] = {
    "refinedet320-voc": MultiScale(_320, Voting()),
    "refinedet320-coco": MultiScale((*_320, *_squares((640, 0, 48))), SoftVoting()),
    "refinedet512-voc": MultiScale(_512, Voting()),
    "refinedet512-coco": MultiScale((*_512, *_squares((640, 0, 224), (1024, 0, 96), (1152, 0, 64))), SoftVoting()),
    "srn-2100": ScalePyramid(2100),
    "srn-1400": ScalePyramid(1400),
}


class MultiScaleDetector:
    """Detects in many views of each image; replaces a detector in evaluation and prediction."""

    def __init__(self, detector: Detector, rules: MultiScale | ScalePyramid) -> None:
        """Check that the detector has the resizer that the views need, and predicts no masks, which cannot vote."""
        if detector.network.learns_masks:
            raise ConfigError("multi_scale: voting merges boxes, but not the masks that this detector predicts")
        rules.check(detector)
        self.detector, self.rules = detector, rules

    @property
    def categories(self) -> Categories | None:
        """The classes, if known."""
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
        """Return the sum of the penalties on the network's kernels."""
        return self.detector.regularization()

    def detect(
        self, images: Images, scale: Scale = "guess", context: ContextFeatures | None = None
    ) -> list[Detections[Tensor]]:
        """Return one result per image, in its pixels, without anchors and scores of other classes."""
        return self._merged(self._tensors(images, scale), context)

    def detect_with_losses(
        self,
        images: Images,
        losses: EvaluationLosses | None = None,
        scale: Scale = "guess",
        context: ContextFeatures | None = None,
    ) -> list[DetectionsAndLosses]:
        """Return as `Detector.detect_with_losses`; `losses` are of the predictions of the unscaled image."""
        tensors = self._tensors(images, scale)
        unscaled = self.detector.detect_with_losses(tensors, losses, "pixels", context)
        merged = self._merged(tensors, context)
        return [(detections, terms) for detections, (_, terms) in zip(merged, unscaled, strict=True)]

    def _tensors(self, images: Images, scale: Scale) -> list[Tensor]:
        """Return images as tensors [C, H, W] in 0..255."""
        detector = self.detector
        tensors = image_tensors(images, scale, detector.image_channels, detector.white_level)
        return [image.permute(2, 0, 1) for image in tensors]

    def _merged(self, images: list[Tensor], context: ContextFeatures | None) -> list[Detections[Tensor]]:
        contexts = [None if context is None else context.at([i]) for i in range(len(images))]
        return [
            _merge([self._detect_view(view, own) for view in self.rules.views(image)], image, self.rules)
            for image, own in zip(images, contexts, strict=True)
        ]

    def _detect_view(self, view: View, context: ContextFeatures | None) -> Detections[Tensor]:
        plain = self.detector
        preprocessor = plain.preprocessor
        if view.size is not None:
            height, width = view.size
            resizer = replace(preprocessor.resizer, height=height, width=width)  # type: ignore[type-var]
            preprocessor = preprocessor.with_resizer(resizer)
        # The network is the same: only the resizer differs from view to view.
        sized = copy.copy(plain)
        sized.preprocessor = preprocessor
        (detections,) = sized.detect([view.image], "pixels", context)
        for what, values in (("keypoints", detections.keypoints), ("temporal offsets", detections.temporal_offsets)):
            if values is not None:
                raise ConfigError(f"multi_scale: voting merges boxes, but not the {what} that this detector predicts")
        boxes = view.to_original(detections.boxes)
        kept = view.keeps(boxes)
        return Detections(
            boxes[kept], detections.scores[kept], detections.labels[kept], detections.image_size, detections.categories
        )


def _merge(views: list[Detections[Tensor]], image: Tensor, rules: MultiScale | ScalePyramid) -> Detections[Tensor]:
    boxes, scores, labels = (
        torch.cat([getattr(view, name) for view in views]) for name in ("boxes", "scores", "labels")
    )
    classes = int(labels.max()) + 1 if len(labels) else 1
    by_class = scores.new_full((len(scores), classes), -torch.inf).scatter(1, labels[:, None], scores[:, None])
    size = (image.shape[-2], image.shape[-1])
    window = torch.tensor([size], device=boxes.device)
    nms = Nms(rules.voting, max_total_detections=rules.max_detections, outside="unclipped")
    best = nms(boxes[None], by_class[None], window).image(0)
    detections = Detections(best.boxes, best.scores, best.labels, size, views[0].categories)
    if not rules.clips:
        return detections
    clipped = clip_boxes(detections.boxes, *size)
    inside = box_area(clipped) > 0
    return Detections(
        clipped[inside], detections.scores[inside], detections.labels[inside], size, detections.categories
    )


def at_scales(detector: Detector, name: str) -> Detector | MultiScaleDetector:
    """Return a detector for the rules of `MULTI_SCALE` under a name; the detector itself for an empty name."""
    if not name:
        return detector
    if name not in MULTI_SCALE:
        raise ConfigError(f"multi_scale: {name!r} is not known; known: {', '.join(MULTI_SCALE)}")
    return MultiScaleDetector(detector, MULTI_SCALE[name])
