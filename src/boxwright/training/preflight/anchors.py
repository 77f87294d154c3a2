"""Anchor coverage: the share of objects that some anchor fits, and anchors that would fit more.

Boxes are in the coordinates of the network's input.

Dimensions: N objects, A anchors, K clusters.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import TypeVar

import numpy as np
import torch
from numpy.typing import NDArray

from boxwright.config.load import dump_message
from boxwright.config.message import Message
from boxwright.families.shared.anchor_generator import build_anchor_generator
from boxwright.nn.anchor_grids import AnchorGenerator
from boxwright.nn.anchor_layer import AnchorLayer, infer_grids
from boxwright.nn.detector import Detector
from boxwright.nn.ops.boxes import pairwise_iou
from boxwright.pipeline import messages as m
from boxwright.training.preflight.records import Finding, Record, Verdict


class InputFrame:
    """Sizes of images, and their boxes, after the detector's resizing."""

    def __init__(self, detector: Detector) -> None:
        """Use a detector's resizer."""
        self._resizer = detector.preprocessor.resizer
        self._known: dict[Size, tuple[Size, Size]] = {}

    def sizes(self, size: Size) -> tuple[Size, Size]:
        """Return (height, width) of the input, and of the image in it without padding, for an image of a size."""
        if size not in self._known:
            # By resizing: each resizer rounds by rules of its own, which would otherwise stand here again.
            resized, true_size = self._resizer(torch.zeros((*size, 3), dtype=torch.uint8))
            self._known[size] = ((resized.shape[0], resized.shape[1]), true_size)
        return self._known[size]

    def boxes(self, record: Record) -> tuple[NDArray[np.float32], Size]:
        """Return the boxes used for training, [N, 4] in pixels of the input, and the input's size."""
        size, true_size = self.sizes(record.size)
        scale = np.array([true_size[1] / record.size[1], true_size[0] / record.size[0]] * 2, np.float32)
        limits = np.array([true_size[1], true_size[0]] * 2, np.float32)
        boxes = np.clip(record.boxes * scale, 0, limits)
        return boxes[(boxes[:, 2:] > boxes[:, :2]).all(1) & ~record.crowd], size


Size = tuple[int, int]
Boxes = NDArray[np.float32]
M = TypeVar("M", bound=Message)
# Shares of objects that reach the threshold: below the first a warning, from the second on nothing to say.
_FEW, _ENOUGH = 0.5, 0.8
_SMALL, _LARGE = 32.0**2, 96.0**2
_LONG = 1.5
# Numbers of objects: for coverage, and for comparing candidates.
_MOST, _FEWER = 2000, 400
# Each input size has anchors of its own, and without padding nearly every image has its own size.
_MOST_SIZES = 6
_CLUSTERS = 9
_ROUNDS = 50  # of k-means, at most
# Objects that are compared with all anchors at a time; RetinaNet has some 100,000 of those.
_BLOCK = 128
# The first stage of two-stage detectors has a fixed threshold.
_PROPOSAL_THRESHOLD = 0.7
# Where no argmax_matcher states one.
_ANCHORLESS_THRESHOLD = 0.5
_LEAST = 0.001  # scale or ratio


@dataclass(frozen=True)
class Coverage:
    """How well anchors fit objects.

    Attributes:
        share: The share of objects that reach the matcher's threshold with some anchor.
        parts: Share and number of small, medium, large (COCO's bounds, in the input), tall, square and wide objects, if
            there are any.
        mean: The mean of the objects' best IoU.
    """

    share: float
    parts: dict[str, tuple[float, int]]
    mean: float

    def __str__(self) -> str:
        parts = ", ".join(f"{name} {share:.0%} of {count}" for name, (share, count) in self.parts.items())
        return f"{self.share:.0%} ({parts})"


def measure_coverage(
    by_size: dict[Size, Boxes], anchors_of: Callable[[Size], torch.Tensor], threshold: float
) -> Coverage:
    """Return the coverage of boxes; without boxes it is 1.

    Args:
        by_size: (height, width) of inputs to boxes [N, 4] in them, xyxy in pixels.
        anchors_of: An input's anchors, [A, 4].
    """
    best: list[NDArray[np.float32]] = []
    for size, boxes in by_size.items():
        anchors = anchors_of(size)
        for start in range(0, len(boxes), _BLOCK):
            block = torch.from_numpy(boxes[start : start + _BLOCK])
            best.append(pairwise_iou(block, anchors).amax(1).numpy())
    boxes = np.concatenate([*by_size.values(), np.zeros((0, 4), np.float32)])
    fits = np.concatenate([*best, np.zeros(0, np.float32)])
    if not len(boxes):
        return Coverage(1.0, {}, 1.0)
    width, height = (boxes[:, 2:] - boxes[:, :2]).T
    areas, reached = width * height, fits >= threshold
    kinds = {
        "small": areas < _SMALL,
        "medium": (areas >= _SMALL) & (areas < _LARGE),
        "large": areas >= _LARGE,
        "tall": height > _LONG * width,
        "square": np.maximum(height, width) <= _LONG * np.minimum(height, width),
        "wide": width > _LONG * height,
    }
    parts = {name: (float(reached[kind].mean()), int(kind.sum())) for name, kind in kinds.items() if kind.any()}
    return Coverage(float(reached.mean()), parts, float(fits.mean()))


def kmeans_by_iou(sizes: NDArray[np.float64], count: int) -> NDArray[np.float64]:
    """Return the widths and heights of the K best-fitting boxes: k-means by 1 - IoU (YOLOv2, section 2).

    Args:
        sizes: [N, 2], widths and heights.
        count: K; fewer if there are fewer boxes.

    Returns:
        [K, 2], by area; deterministic, as it starts from boxes spread evenly by area.
    """
    ordered = sizes[np.argsort(sizes.prod(1), kind="stable")]
    # Not at random: the same data get the same advice.
    means = ordered[np.unique(np.linspace(0, len(ordered) - 1, count).astype(np.int64))]
    for _ in range(_ROUNDS):
        shared = np.minimum(sizes[:, None], means[None]).prod(2)
        chosen = (shared / (sizes.prod(1)[:, None] + means.prod(1)[None] - shared)).argmax(1)
        new = np.array([sizes[chosen == k].mean(0) if (chosen == k).any() else means[k] for k in range(len(means))])
        if np.allclose(new, means):
            break
        means = new
    return means[np.argsort(means.prod(1))]


def find_anchor_generator(model: m.DetectionModel | None) -> tuple[m.AnchorGenerator, float] | None:
    """Return the generator's message and the threshold of the first matcher that uses its anchors."""
    if model is None:
        return None
    if model.faster_rcnn is not None and model.faster_rcnn.first_stage_anchor_generator is not None:
        return model.faster_rcnn.first_stage_anchor_generator, _PROPOSAL_THRESHOLD
    family = model.ssd or model.refinedet or model.srn or model.align_det
    if family is None or family.anchor_generator is None:
        return None
    matcher = family.matcher.argmax_matcher if family.matcher is not None else None
    return family.anchor_generator, matcher.matched_threshold if matcher is not None else _ANCHORLESS_THRESHOLD


def fit_anchors(
    detector: Detector, generator: m.AnchorGenerator, records: Sequence[Record], threshold: float
) -> tuple[Coverage, tuple[m.AnchorGenerator, Coverage] | None]:
    """Return the coverage of a detector's anchors, and the best anchors of the same kind with theirs, if any."""
    by_size = _by_size(records, InputFrame(detector))
    layers = AnchorLayouts(detector)
    coverage = measure_coverage(by_size, layers.own, threshold)
    return coverage, suggest_anchors(generator, by_size, layers.generated, threshold) if by_size else None


def check_anchors(
    detector: Detector, generator: m.AnchorGenerator, records: Sequence[Record], frame: InputFrame, threshold: float
) -> Iterable[Finding]:
    """Yield how many objects reach the matcher's threshold, and anchors that would fit more of them."""
    by_size = _by_size(records, frame)
    if not by_size:
        return
    layers = AnchorLayouts(detector)
    coverage = measure_coverage(by_size, layers.own, threshold)
    text = f"{coverage} of objects reach IoU {threshold:g} with an anchor; their best IoU averages {coverage.mean:.2f}"
    if coverage.share >= _ENOUGH:
        yield Finding("anchors", "fine", text)
        return
    better = suggest_anchors(generator, by_size, layers.generated, threshold)
    verdict: Verdict = "warning" if coverage.share < _FEW else "note"
    if better is None or better[1].share <= coverage.share:
        kind = generator.which("anchor_generator_oneof")
        remedy = f"no scales and ratios of {kind} were found that fit more; a larger image_resizer may"
    else:
        fragment = " ".join(dump_message(better[0]).split())
        remedy = f"anchor_generator {{ {fragment} }} would reach {better[1]}; heads must then be retrained"
    yield Finding("anchors", verdict, text, remedy)


def _by_size(records: Sequence[Record], frame: InputFrame) -> dict[Size, Boxes]:
    """Return boxes in the input, for the most common input sizes."""
    grouped: dict[Size, list[Boxes]] = defaultdict(list)
    for record in records:
        boxes, size = frame.boxes(record)
        grouped[size].append(boxes)
    joined = {size: np.concatenate(boxes) for size, boxes in grouped.items()}
    common = sorted((size for size in joined if len(joined[size])), key=lambda size: -len(joined[size]))[:_MOST_SIZES]
    total = sum(len(joined[size]) for size in common)
    return {size: _thinned(joined[size], len(joined[size]) * _MOST // max(total, _MOST)) for size in common}


def _thinned(boxes: Boxes, most: int) -> Boxes:
    return boxes[np.unique(np.linspace(0, len(boxes) - 1, min(max(most, 1), len(boxes))).astype(np.int64))]


class AnchorLayouts:
    """The anchors of a detector for inputs of any size, on the CPU; the detector is not changed."""

    def __init__(self, detector: Detector) -> None:
        self._network, self._channels = detector.network, detector.preprocessor.resizer.channels
        self._layer = next(module for module in detector.network.modules() if isinstance(module, AnchorLayer))
        self._grids: dict[Size, list[Size]] = {}
        self._own: dict[Size, torch.Tensor] = {}

    def own(self, size: Size) -> torch.Tensor:
        """Return the detector's own anchors, [A, 4]."""
        if size not in self._own:
            self._own[size], _ = self._layer.generate(self._grid_sizes(size), size)
        return self._own[size]

    def generated(self, generator: AnchorGenerator, size: Size) -> torch.Tensor:
        """Return another generator's anchors for the same feature maps."""
        return torch.cat(list(generator(self._grid_sizes(size), size)))

    def _grid_sizes(self, size: Size) -> list[Size]:
        if size not in self._grids:
            self._grids[size] = infer_grids(self._network, size, self._channels)
        return self._grids[size]


def suggest_anchors(
    generator: m.AnchorGenerator,
    by_size: dict[Size, Boxes],
    generated: Callable[[AnchorGenerator, Size], torch.Tensor],
    threshold: float,
) -> tuple[m.AnchorGenerator, Coverage] | None:
    """Return scales and aspect ratios found by k-means on IoU, with their coverage; None if the kind has fixed scales.

    Args:
        generator: The message; its kind and number of scales are kept, with three or more aspect ratios.
        by_size: Sizes of inputs to boxes in them.
        generated: The anchors of a generator for an input of a size.
    """
    sizes = np.concatenate([boxes[:, 2:] - boxes[:, :2] for boxes in by_size.values()]).astype(np.float64)
    clusters = kmeans_by_iou(sizes, _CLUSTERS)
    shortest = min(min(size) for size in by_size)
    candidates = list(_candidates(generator, clusters, shortest))
    if not candidates:
        return None
    total = len(sizes)
    fewer = {size: _thinned(boxes, len(boxes) * _FEWER // max(total, _FEWER)) for size, boxes in by_size.items()}

    def measured(message: m.AnchorGenerator, boxes: dict[Size, Boxes]) -> Coverage:
        built = build_anchor_generator(message)
        return measure_coverage(boxes, lambda size: generated(built, size), threshold)

    # The mean decides among candidates with equal shares.
    best = max(candidates, key=lambda message: (reached := measured(message, fewer)).share + reached.mean / 100)
    return best, measured(best, by_size)


def _candidates(
    generator: m.AnchorGenerator, clusters: NDArray[np.float64], shortest: int
) -> Iterable[m.AnchorGenerator]:
    """Yield messages of the same kind whose scales and ratios follow clusters [K, 2]."""
    if (own := generator.multiscale_anchor_generator) is not None:
        for ratios in _ratio_sets(clusters, len(own.aspect_ratios)):
            for scale in (1.0, 1.5, 2.0, 2.5, 3.0, 4.0, 5.0, 6.0):
                yield m.AnchorGenerator(
                    multiscale_anchor_generator=_changed(own, anchor_scale=scale, aspect_ratios=ratios)
                )
    if (ssd := generator.ssd_anchor_generator) is not None:
        for ratios in _ratio_sets(clusters, len(ssd.aspect_ratios)):
            sides = _groups(np.sqrt(clusters.prod(1)) / shortest, ssd.num_layers)
            yield m.AnchorGenerator(
                ssd_anchor_generator=_changed(ssd, scales=sorted(_filled(sides, ssd.num_layers)), aspect_ratios=ratios)
            )
    if (grid := generator.grid_anchor_generator) is not None:
        base = float(np.sqrt(grid.height * grid.width))
        for ratios in _ratio_sets(clusters, len(grid.aspect_ratios)):
            scales = _groups(np.sqrt(clusters.prod(1)) / base, max(len(grid.scales), 3))
            yield m.AnchorGenerator(grid_anchor_generator=_changed(grid, scales=scales, aspect_ratios=ratios))


def _ratio_sets(clusters: NDArray[np.float64], count: int) -> Iterable[list[float]]:
    """Yield aspect ratios, width over height: those of the clusters, and a plain set."""
    yield _groups(clusters[:, 0] / clusters[:, 1], max(count, 3))
    yield [1.0, 2.0, 0.5]


def _groups(values: NDArray[np.float64], count: int) -> list[float]:
    """Return at most `count` typical values, by k-means of their logarithms."""
    logs = np.sort(np.log(values))
    means = logs[np.unique(np.linspace(0, len(logs) - 1, count).astype(np.int64))]
    for _ in range(_ROUNDS):
        chosen = np.abs(logs[:, None] - means[None]).argmin(1)
        means = np.array([logs[chosen == k].mean() if (chosen == k).any() else means[k] for k in range(len(means))])
    return sorted({max(round(float(np.exp(mean)), 3), _LEAST) for mean in means})


def _filled(values: list[float], count: int) -> list[float]:
    """Return values extended to `count` by multiplying the last one by a factor."""
    while len(values) < count:
        values = [*values, round(values[-1] * 1.4, 3)]
    return values


def _changed(own: M, **values: object) -> M:
    """Return a message with other values of some fields."""
    # Only fields that were set, so that the advice shows no defaults.
    given = {name: getattr(own, name) for name in own.present()}
    return type(own)(**{**given, **values})
