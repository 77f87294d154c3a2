"""The detector for predictions, opened in this process or another, and filtering its results."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from boxwright.base.errors import ConfigError
from boxwright.inference.merging import MERGES
from boxwright.inference.settings import PredictionSettings
from boxwright.inference.tiles import in_tiles
from boxwright.inference.tracking import least_score
from boxwright.runtime.devices import require_runtime
from boxwright.runtime.exported import ExportedDetector
from boxwright.runtime.formats import EXPORTS
from boxwright.runtime.thresholds import above_thresholds, read_thresholds, require_same_model
from boxwright.types import Categories, Finder, FoundObjects
from boxwright.weights.memory import remember
from boxwright.weights.open_model import OpenModel, fixed, open_model, require_adjustable

if TYPE_CHECKING:
    from boxwright.pipeline.messages import TrainEvalPipelineConfig


_COLORS = 3


@dataclass(frozen=True, eq=False)
class ImageDetector:
    """An opened detector.

    Attributes:
        categories: The classes; None if unknown.
        weights: Their SHA-256, and for an export its format and precision.
        channels: How many the images have that it takes: 3, or more.
        device: Where PyTorch detects, such as "cpu" or "cuda:0"; empty for an exported file.
    """

    detect: Finder
    categories: Categories | None
    weights: str
    channels: int = 3
    device: str = ""

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
        detect = opened.finder(settings.multi_scale)
        if settings.thresholds:
            detect = _above_thresholds(detect, settings.thresholds, opened)
        return ImageDetector(detect, opened.categories, _weights(opened), opened.image_channels, device)

    def _changes(self) -> tuple[TrainEvalPipelineConfig | None, Categories | None]:
        """Return the configuration and classes that replace the model's own; None for no replacement."""
        if not (self.config or self.label_map or self.changes):
            return None, None
        if self.path.suffix in EXPORTS:
            raise fixed(self.path)
        # Not at the top, as an exported detector opens without PyTorch.
        from boxwright.data.label_map import load_label_map
        from boxwright.pipeline.load import load_config
        from boxwright.pipeline.overrides import with_overrides
        from boxwright.weights.restore import stored_config

        config = load_config(self.config) if self.config else None
        if self.changes:
            config = with_overrides(config or stored_config(self.path), self.changes)
        return config, load_label_map(self.label_map) if self.label_map else None


def _weights(model: OpenModel) -> str:
    """Return the SHA-256 of a model's weights; for an export with its format and precision."""
    if isinstance(model.opened, ExportedDetector):
        about = model.opened.metadata
        return f"{about.weights_sha256} {about.format} {about.precision}"
    return model.weights_sha256()


def _above_thresholds(detect: Finder, path: str, model: OpenModel) -> Finder:
    """Return a finder of the detections that reach their class's threshold; DataError for those of another model."""
    limits = require_same_model(read_thresholds(path), path, model.weights_sha256(), model.categories)
    return lambda images: [above_thresholds(found, limits) for found in detect(images)]


def finder_with(detect: Finder, settings: PredictionSettings) -> Finder:
    """Return a finder that applies the least score, and tiles if requested; ConfigError for an unknown `merge`."""
    if settings.merge not in MERGES:
        raise ConfigError(f"--merge {settings.merge}: expected {' or '.join(MERGES)}")
    # Low scores may continue a track; what does not is removed after tracking.
    least = least_score(settings.min_score) if settings.track else settings.least_score

    def above(images: Sequence[NDArray[np.uint8]]) -> list[FoundObjects]:
        return [found.above(least) for found in detect(images)]

    return in_tiles(above, settings.tile, settings.overlap, MERGES[settings.merge]) if settings.tile else above
