"""The detector for predictions, opened in this process or another, and filtering its results.

Large images may be searched tile by tile, for small objects, and images in several views, whose detections are merged.

Dimensions: V views, D detections, of one view or of all.
"""

from __future__ import annotations

import difflib
import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, fields, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from boxwright.base.errors import ConfigError
from boxwright.base.text import is_count
from boxwright.evaluation.metrics.matching import overlaps, overlaps_of_crowds
from boxwright.inference.settings import PredictionSettings
from boxwright.inference.tracking import least_score
from boxwright.runtime.devices import require_runtime
from boxwright.runtime.exported import ExportedDetector
from boxwright.runtime.formats import is_export
from boxwright.runtime.thresholds import above_thresholds, read_thresholds, require_same_model
from boxwright.types import Array, Categories, DetectFunction, Detections
from boxwright.weights.open_model import OpenModel, fixed, open_model, remember, require_adjustable

if TYPE_CHECKING:
    from boxwright.pipeline.messages import TrainEvalPipelineConfig


# The share of a cut part that must lie in the whole object for the part to be dropped.
_PART = 0.7
# The IoU from which two views show the same object: the usual one for suppression, and the fusion paper's.
_SAME_SUPPRESSED = 0.5
_SAME_FUSED = 0.55


@dataclass(frozen=True, eq=False)
class View:
    """The detections in one view.

    Attributes:
        detections: In pixels of the image.
        cut: bool [D]; which objects the view's border may have cut.
    """

    detections: Detections[Array]
    cut: NDArray[np.bool_]


def suppressed(views: list[View]) -> Detections[Array]:
    """Return the best of overlapping boxes of a class, best first; parts cut by a border yield to the whole object."""
    detections, cut = _joined(views)
    boxes = detections.boxes.astype(np.float64)
    kept: list[int] = []
    places = _BoxGrid(boxes)
    # The last key sorts first: whole objects before those that a border may have cut, each by score.
    for row in np.lexsort((-detections.scores, cut)).tolist():
        label, own = int(detections.labels[row]), boxes[row : row + 1]
        others = boxes[places.near(label, own[0])]
        same = overlaps(own, others) > _SAME_SUPPRESSED
        if not (same.any() or (cut[row] and _lies_in(own, others))):
            kept.append(row)
            places.add(row, label, own[0])
    return _best_first(detections.select(np.array(kept, np.int64)))


def fused_boxes(views: list[View]) -> Detections[Array]:
    """Return score-weighted means of overlapping boxes of a class, best first; parts cut by a border yield to wholes.

    Weighted boxes fusion (Solovyev et al., 2021), with the mean of the scores: the number of views that contain an
    object means nothing here, as most cover only a part of the image. Other properties are those of the best fused box.
    """
    detections, cut = _joined(views)
    groups: list[list[int]] = []
    boxes: list[NDArray[np.float64]] = []
    places = _BoxGrid(detections.boxes.astype(np.float64))
    for row in np.lexsort((-detections.scores, cut)).tolist():
        label, own = int(detections.labels[row]), detections.boxes[row : row + 1].astype(np.float64)
        same = places.near(label, own[0])
        near = np.array([boxes[number] for number in same]).reshape(-1, 4)
        if cut[row] and _lies_in(own, near):
            continue
        overlap = overlaps(own, near)[0]
        if len(same) and overlap.max() > _SAME_FUSED:
            nearest = same[int(overlap.argmax())]
            groups[nearest].append(row)
            boxes[nearest] = _weighted(detections, groups[nearest])
        else:
            nearest = len(groups)
            groups.append([row])
            boxes.append(own[0])
        # A mean may reach into other cells than before.
        places.add(nearest, label, boxes[nearest])
    best = detections.select(
        np.array([max(group, key=lambda row: detections.scores[row]) for group in groups], np.int64)
    )
    scores = np.array([detections.scores[group].mean() for group in groups], np.float32)
    return _best_first(replace(best, boxes=np.array(boxes, np.float32).reshape(-1, 4), scores=scores))


MERGES = {"nms": suppressed, "wbf": fused_boxes}


class _BoxGrid:
    """Boxes by class and place, so that one is compared with those near it: a large image has tens of thousands."""

    def __init__(self, boxes: NDArray[np.float64]) -> None:
        """Start without any, with cells as large as the boxes [N, 4] are on average."""
        sides = boxes[:, 2:] - boxes[:, :2]
        self._side = max(float(sides.mean()), 1.0) if len(boxes) else 1.0
        self._cells: dict[tuple[int, int, int], set[int]] = {}

    def add(self, number: int, label: int, box: NDArray[np.float64]) -> None:
        """Add a box [4] under a number, which may have others already."""
        for cell in self._covered(label, box):
            self._cells.setdefault(cell, set()).add(number)

    def near(self, label: int, box: NDArray[np.float64]) -> list[int]:
        """Return, in order, the numbers of a class's boxes that may overlap a box [4]."""
        numbers: set[int] = set()
        for cell in self._covered(label, box):
            numbers |= self._cells.get(cell, set())
        return sorted(numbers)

    def _covered(self, label: int, box: NDArray[np.float64]) -> Iterator[tuple[int, int, int]]:
        left, top, right, bottom = np.floor(box / self._side).astype(np.int64).tolist()
        return ((label, row, column) for row in range(top, bottom + 1) for column in range(left, right + 1))


def _weighted(detections: Detections[Array], group: list[int]) -> NDArray[np.float64]:
    weights = detections.scores[group].astype(np.float64)
    weights = weights if weights.sum() > 0 else np.ones_like(weights)
    return np.asarray((detections.boxes[group] * weights[:, None]).sum(0) / weights.sum())


def _joined(views: list[View]) -> tuple[Detections[Array], NDArray[np.bool_]]:
    first = views[0].detections
    rows: dict[str, Any] = {
        field.name: np.concatenate([getattr(view.detections, field.name) for view in views])
        for field in fields(first)
        if isinstance(getattr(first, field.name), np.ndarray)
    }
    return replace(first, **rows), np.concatenate([view.cut for view in views])


def _best_first(detections: Detections[Array]) -> Detections[Array]:
    return detections.select(np.argsort(-detections.scores, kind="stable"))


def _lies_in(part: NDArray[np.float64], wholes: NDArray[np.float64]) -> bool:
    """Return whether most of a box [1, 4] lies in one of others [N, 4]."""
    # COCO's measure for crowds: the intersection over the area of the first box alone.
    return bool((overlaps_of_crowds(part, wholes) >= _PART).any())


Merge = Callable[[list[View]], Detections[Array]]
# Tiles that a detector gets together: all of a large image would not fit in memory.
_AT_ONCE = 4


@dataclass(frozen=True)
class Window:
    """A part of an image, in its pixels."""

    top: int
    left: int
    height: int
    width: int

    def of(self, image: NDArray[np.uint8]) -> NDArray[np.uint8]:
        """Return this part of an image, contiguous."""
        rows, columns = slice(self.top, self.top + self.height), slice(self.left, self.left + self.width)
        return np.ascontiguousarray(image[rows, columns])


def tile_windows(height: int, width: int, tile: int, overlap: float) -> list[Window]:
    """Return equally overlapping square tiles of one size that cover an image.

    As few as the overlap allows, evenly spaced; the first and the last touch the image's borders. A side not longer
    than a tile has one tile of that length.

    Args:
        overlap: The least share of a tile that overlaps the next, in 0..1.
    """
    rows, columns = _starts(height, tile, overlap), _starts(width, tile, overlap)
    return [Window(top, left, min(tile, height), min(tile, width)) for top in rows for left in columns]


def _starts(length: int, tile: int, overlap: float) -> list[int]:
    if length <= tile:
        return [0]
    step = max(tile * (1 - overlap), 1.0)
    count = math.ceil((length - tile) / step) + 1
    # The side is longer than a tile, so that there are at least two.
    return [round(number * (length - tile) / (count - 1)) for number in range(count)]


def in_tiles(detect: DetectFunction, tile: int, overlap: float, merge: Merge) -> DetectFunction:
    """Return a function that detects in an image's tiles and in the whole image, and merges the detections.

    The whole image is one of the views, for objects larger than a tile. An image that one tile covers is processed
    once.

    Args:
        tile: The tiles' side in pixels.
        overlap: As for `tile_windows`.
    """

    def find(images: Sequence[NDArray[np.uint8]]) -> list[Detections[Array]]:
        return [_find(image) for image in images]

    def _find(image: NDArray[np.uint8]) -> Detections[Array]:
        height, width = image.shape[:2]
        windows = tile_windows(height, width, tile, overlap)
        if len(windows) == 1:
            return detect([image])[0]
        detections = detect([image])
        for first in range(0, len(windows), _AT_ONCE):
            detections += detect([window.of(image) for window in windows[first : first + _AT_ONCE]])
        size, windows = (height, width), [Window(0, 0, height, width), *windows]
        views = [
            View(_moved(objects, window, size), _cut(objects, window, size))
            for objects, window in zip(detections, windows, strict=True)
        ]
        return merge(views)

    return find


def _moved(detections: Detections[Array], window: Window, size: tuple[int, int]) -> Detections[Array]:
    """Return a window's detections in pixels of the image; anchors and cells no longer apply."""
    corner = np.array([window.left, window.top], np.float32)
    moved = detections.with_points(lambda points: points + corner, size)
    return replace(moved, anchor_indices=None, cell_boxes=None)


def _cut(detections: Detections[Array], window: Window, size: tuple[int, int]) -> NDArray[np.bool_]:
    """Return which boxes end at a border of the window, within a hundredth of its size, that is not the image's."""
    x0, y0, x1, y1 = detections.boxes.T
    near_x, near_y = max(window.width / 100, 1), max(window.height / 100, 1)
    height, width = size
    return np.asarray(
        ((x0 <= near_x) & (window.left > 0))
        | ((y0 <= near_y) & (window.top > 0))
        | ((x1 >= window.width - near_x) & (window.left + window.width < width))
        | ((y1 >= window.height - near_y) & (window.top + window.height < height))
    )


_COLORS = 3


@dataclass(frozen=True, eq=False)
class ImageDetector:
    """An opened detector.

    Attributes:
        categories: The classes; None if unknown.
        weights: Their SHA-256, and for an export its format and precision.
        channels: How many the images have that it takes: 3, or more.
        device: Where PyTorch detects, such as "cpu" or "cuda:0"; empty for an exported file.
        white_level: The value that is white in images of more than 8 bits; 0 for that of 16 bits.
    """

    detect: DetectFunction
    categories: Categories | None
    weights: str
    channels: int = 3
    device: str = ""
    white_level: float = 0.0

    def require_colors(self, what: str) -> None:
        """Raise a ConfigError if it takes more channels than files of pictures have; `what` has them."""
        if self.channels > _COLORS:
            raise ConfigError(
                f"{what}: the detector takes images of {self.channels} channels, and pictures have red, green and "
                f"blue; predict in .npy files (uint8 [height, width, {self.channels}]), or evaluate it on records"
            )


@dataclass(frozen=True)
class ModelSource:
    """Where a detector is and how to run it; picklable and small.

    Attributes:
        path: A run's folder, a checkpoint, or an exported file.
        config: The configuration, if the checkpoint has none.
        label_map: The class names, if the configuration does not lead to any.
        changes: Configuration overrides, such as `model.ssd.num_classes=3`.
    """

    path: Path
    settings: PredictionSettings
    config: Path | None = None
    label_map: Path | None = None
    changes: Sequence[str] = ()

    def open(self, threads: int = 0) -> ImageDetector:
        """Return the detector, opened; an exported one does not need PyTorch.

        Args:
            threads: How many an export's runtime may use; 0 for its default.

        Raises:
            BoxwrightError: If there is no detector, or it does not support the settings.
        """
        settings = self.settings
        require_runtime(self.path, settings.runtime, settings.device)
        require_adjustable(self.path, settings.precision, compile=settings.compile)
        config, categories = self._changes()
        opened = open_model(
            self.path,
            device=settings.device,
            threads=threads,
            config=config,
            categories=categories,
            allow_edited=settings.allow_edited,
        )
        if settings.context:
            remember(opened.detector, settings.context)
        device = "" if opened.is_exported else str(next(opened.detector.parameters()).device)
        opened = opened.optimized(settings.precision, compile=settings.compile)
        # Voting over several scales reads scores below the threshold.
        if not (opened.is_exported or settings.multi_scale):
            opened.detector.postprocessor = opened.detector.postprocessor.above(_least_score(settings))
        if settings.cuda_graphs and settings.context:
            raise ConfigError("--cuda_graphs: a camera's memory is given with each batch")
        if settings.cuda_graphs:
            opened.use_cuda_graphs(settings.multi_scale, compile=settings.compile)
        detect = opened.detect_function(settings.multi_scale)
        if settings.thresholds:
            detect = _above_thresholds(detect, settings.thresholds, opened)
        if settings.classes:
            detect = _of_classes(detect, parse_classes(settings.classes, opened.categories))
        white = settings.white_level or opened.white_level
        return ImageDetector(detect, opened.categories, _weights(opened), opened.image_channels, device, white)

    def _changes(self) -> tuple[TrainEvalPipelineConfig | None, Categories | None]:
        """Return the configuration and classes that replace the model's own; None for no replacement."""
        if not (self.config or self.label_map or self.changes):
            return None, None
        if is_export(self.path):
            raise fixed(self.path)
        # Not at the top, as an exported detector opens without PyTorch.
        from boxwright.data.label_map import load_label_map
        from boxwright.weights.restore import replacing_config

        config = replacing_config(self.path, self.config, self.changes)
        return config, load_label_map(self.label_map) if self.label_map else None


def _weights(model: OpenModel) -> str:
    """Return the SHA-256 of a model's weights; for an export with its format and precision."""
    if isinstance(model.opened, ExportedDetector):
        about = model.opened.metadata
        return f"{about.weights_sha256} {about.format} {about.precision}"
    return model.weights_sha256()


def _above_thresholds(detect: DetectFunction, path: str, model: OpenModel) -> DetectFunction:
    """Return a function that keeps what reaches its class's threshold; DataError for thresholds of another model."""
    limits = require_same_model(read_thresholds(path), path, model.weights_sha256(), model.categories)
    return lambda images: [above_thresholds(detections, limits) for detections in detect(images)]


def parse_classes(words: Sequence[str], categories: Categories | None) -> list[int]:
    """Return the labels of classes that a user names.

    Args:
        words: Names or ids, several in a word if they are separated by commas.
        categories: The model's classes; None if it has no names, so that ids are labels plus 1.

    Raises:
        ConfigError: For a class that the model does not detect.
    """
    known: dict[str, int] = {}
    for item in categories or ():
        known |= {str(item.id): item.label}
    for item in categories or ():
        known |= {item.name: item.label, item.title: item.label}
    labels = []
    for word in words:
        # A name may contain a comma itself.
        for name in [word] if word in known else [part.strip() for part in word.split(",")]:
            if categories is None and is_count(name) and int(name) > 0:
                labels.append(int(name) - 1)
            elif name in known:
                labels.append(known[name])
            else:
                raise _unknown_class(name, categories)
    return labels


def _unknown_class(name: str, categories: Categories | None) -> ConfigError:
    if categories is None:
        return ConfigError(
            f"--classes {name}: the model has no class names; give numbers, from 1, or add names with --label_map"
        )
    titles = [item.title for item in categories]
    close = difflib.get_close_matches(name, titles, 1)
    hint = f"did you mean {close[0]}?" if close else f"it has {', '.join(titles)}"
    return ConfigError(f"--classes: the model has no class {name!r}; {hint}")


def _of_classes(detect: DetectFunction, labels: Sequence[int]) -> DetectFunction:
    """Return a function that keeps the detections of some labels."""
    return lambda images: [detections.select(np.isin(detections.labels, labels)) for detections in detect(images)]


def _least_score(settings: PredictionSettings) -> float:
    """Return the score below which nothing is kept of an image or a tile."""
    # Low scores may continue a track; what does not is removed after tracking.
    return least_score(settings.min_score) if settings.track else settings.least_score


def apply_settings(detect: DetectFunction, settings: PredictionSettings) -> DetectFunction:
    """Return a function that applies the confidence threshold and tiles if requested.

    Raises:
        ConfigError: If `merge` is unknown.
    """
    if settings.merge not in MERGES:
        raise ConfigError(f"--merge {settings.merge}: expected {' or '.join(MERGES)}")
    least = _least_score(settings)

    def above(images: Sequence[NDArray[np.uint8]]) -> list[Detections[Array]]:
        return [detections.above(least) for detections in detect(images)]

    return in_tiles(above, settings.tile, settings.overlap, MERGES[settings.merge]) if settings.tile else above
