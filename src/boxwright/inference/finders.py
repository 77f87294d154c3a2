"""Opening whatever detects: a run, a checkpoint, an exported file; in this process or another."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from boxwright.base.errors import ConfigError, ExportError
from boxwright.evaluation.settings import EvaluationSettings
from boxwright.inference.exports import open_export
from boxwright.inference.merging import MERGES
from boxwright.inference.settings import PredictionSettings
from boxwright.inference.tiles import in_tiles
from boxwright.inference.tracking import least_score
from boxwright.runtime.formats import EXPORTS
from boxwright.types import Categories, Finder, FoundObjects


@dataclass(frozen=True, eq=False)
class OpenModel:
    """A detector, ready to look.

    Attributes:
        detect: Finds objects in pictures.
        categories: The classes; None where nothing says them.
        weights: Their SHA-256, and for an export its format and precision.
    """

    detect: Finder
    categories: Categories | None
    weights: str


@dataclass(frozen=True)
class Model:
    """Where a detector is, and how it is to look; small enough to be sent to another process.

    Attributes:
        path: A run's folder, a checkpoint, or an exported file.
        settings: How to look.
        config: The configuration, where the checkpoint has none.
        label_map: Names of the classes, where the configuration finds none.
        changes: Of the configuration, as `model.ssd.num_classes=3`.
    """

    path: Path
    settings: PredictionSettings
    config: Path | None = None
    label_map: Path | None = None
    changes: Sequence[str] = ()

    def open(self, threads: int = 0) -> OpenModel:
        """Read the weights.

        Args:
            threads: How many its runtime may use; 0 for what it chooses.

        Returns:
            The detector; an exported one does without PyTorch.

        Raises:
            BoxwrightError: Where there is no detector, or it cannot be what is asked for.
        """
        return _exported(self, threads) if self.path.suffix in EXPORTS else _trained(self, threads)


def looking(detect: Finder, settings: PredictionSettings) -> Finder:
    """Return what finds objects of a score that is asked for, tile by tile where that is.

    Args:
        settings: The least score, the tiles and how they are merged.

    Raises:
        ConfigError: For a way to merge that there is not.
    """
    if settings.merge not in MERGES:
        raise ConfigError(f"--merge {settings.merge}: expected {' or '.join(MERGES)}")
    least = least_score(settings.min_score) if settings.track else settings.min_score

    def above(images: Sequence[NDArray[np.uint8]]) -> list[FoundObjects]:
        return [found.above(least) for found in detect(images)]

    return in_tiles(above, settings.tile, settings.overlap, MERGES[settings.merge]) if settings.tile else above


def check_fixed(path: Path, settings: PredictionSettings | EvaluationSettings) -> None:
    """Raise an ExportError where an exported file is asked for another precision, or to be compiled."""
    if settings.precision != "float32" or settings.compile:
        raise ExportError(f"{path} is exported: its precision is fixed, and it is compiled; export it anew")


def _exported(model: Model, threads: int) -> OpenModel:
    settings = model.settings
    if model.config or model.label_map or model.changes or settings.multi_scale:
        raise ExportError(f"{model.path} is exported: its configuration, classes and scales are fixed; export it anew")
    check_fixed(model.path, settings)
    detector = open_export(model.path, threads, allow_edited=settings.allow_edited)
    about = detector.metadata
    return OpenModel(detector.detect, detector.categories, f"{about.weights_sha256} {about.format} {about.precision}")


def _trained(model: Model, threads: int) -> OpenModel:
    import torch

    from boxwright.checkpoints.restore import restore_detector, stored_config
    from boxwright.config.load import load_config
    from boxwright.config.overrides import apply_override
    from boxwright.data.label_map import load_label_map
    from boxwright.device import open_device
    from boxwright.evaluation.optimized import optimized
    from boxwright.exporters.describe import weights_sha256
    from boxwright.models.multi_scale import at_scales

    if threads:
        torch.set_num_threads(threads)
    config = load_config(model.config) if model.config else None
    if model.changes:
        config = config or stored_config(model.path)
        for change in model.changes:
            apply_override(config, change)
    names = load_label_map(model.label_map) if model.label_map else None
    detector, _, _ = restore_detector(model.path, config=config, categories=names)
    digest = weights_sha256(detector)
    detector.to(open_device(model.settings.device, tf32=model.settings.tf32))
    detector = optimized(detector, model.settings.precision, compile=model.settings.compile)
    seeing = at_scales(detector, model.settings.multi_scale)
    return OpenModel(lambda images: [found.arrays() for found in seeing.detect(images)], detector.categories, digest)
