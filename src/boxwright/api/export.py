"""Exporting a model to another runtime; by default it is compared on pictures of the run's own data."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from boxwright.api.pictures import is_one, iterate_pictures
from boxwright.base.errors import ExportError
from boxwright.config.load import dump_message
from boxwright.data.shapes import ShapesDataset
from boxwright.exporters.export import FORMATS, ExportDescription, export, require_format
from boxwright.exporters.parity import Report
from boxwright.exporters.pictures import varied
from boxwright.exporters.settings import GraphOptions
from boxwright.nn.detector import Detector
from boxwright.pipeline.data_paths import placeholder_of_data
from boxwright.pipeline.input_reader import build_dataset
from boxwright.pipeline.messages import TrainEvalPipelineConfig
from boxwright.weights.open_model import OpenModel, export_folder

_COLORS = 3
# Made pictures: how many of each (height, width).
_MADE, _SIZES = 4, ((480, 640), (640, 480), (300, 300))


@dataclass(frozen=True)
class ExportedFile:
    """An exported file.

    Attributes:
        path: The file.
        report: Its comparison with the detector.
    """

    path: Path
    report: Report


def export_model(
    model: OpenModel, format: str, path: str | Path | None, images: Any = None, options: dict[str, Any] | None = None
) -> ExportedFile:
    """Export a model's detector to another runtime.

    Args:
        model: The model, not an exported one.
        format: One of `exporters.export.FORMATS`.
        path: The file; None for `export/detector` with the format's ending in the run's folder.
        images: Pictures for the comparison, as for a model; None for those of the configuration's data.
        options: `nms` and `allow_difference` of `exporters.export.export`, and those of `GraphOptions`.

    Returns:
        The file and its report.

    Raises:
        ExportError: If the format cannot express the detector, or the exported file differs from it.
    """
    require_format(format)
    known = ("nms", "allow_difference", *(field.name for field in fields(GraphOptions)))
    unknown = next((name for name in options or {} if name not in known), None)
    if unknown is not None:
        raise ExportError(f"export has no option {unknown!r}; it has {', '.join(known)}")
    detector = model.detector
    file = export_folder(model.path) / f"detector{FORMATS[format].suffix}" if path is None else Path(path)
    if images is None:
        pictures, source = pictures_of_data(model.config, detector)
    else:
        given = [images] if is_one(images) else images
        pictures = [
            picture.image
            for picture in iterate_pictures(given, channels=detector.image_channels, white_level=detector.white_level)
        ]
        source = "pictures of the caller"
    report = export(
        detector,
        file,
        images=pictures,
        format=format,  # type: ignore[arg-type]  # a key of FORMATS
        about=ExportDescription(config=dump_message(model.config), step=model.step, source=source),
        **(options or {}),
    )
    return ExportedFile(file, report)


def pictures_of_data(config: TrainEvalPipelineConfig, detector: Detector) -> tuple[Sequence[NDArray[np.uint8]], str]:
    """Return pictures of a configuration's data, and the name of their reader; made ones for the zoo's placeholders.

    Args:
        config: The configuration.
        detector: The detector, for its classes.

    Returns:
        uint8 [H, W, 3] each, or of as many channels as the reader gives, and the reader's name.

    Raises:
        ExportError: If the configuration names no data, or leaves them to its user and colors are not all it takes.
    """
    readers = [(reader, "eval_input_reader") for reader in config.eval_input_reader]
    if config.train_input_reader is not None:
        readers.append((config.train_input_reader, "train_input_reader"))
    if not readers and config.pedigree:  # published weights come without data
        return made_pictures("the weights come without data", detector.image_channels)
    if not readers:
        raise ExportError(
            "the configuration names no data on which to compare the export; pass pictures: images=[…], or --images"
        )
    reader, name = readers[0]
    if left := placeholder_of_data(reader):
        return made_pictures(f"{left} stands for your data", detector.image_channels)
    dataset = build_dataset(reader, name, detector.categories)
    return varied(lambda number: dataset[number].image, len(dataset)), name


def made_pictures(reason: str, channels: int) -> tuple[Sequence[NDArray[np.uint8]], str]:
    """Return made pictures of three sizes, for a configuration that leaves its data to its user; and what they are.

    Args:
        reason: Why there are no others.
        channels: How many channels the detector's images have.

    Returns:
        uint8 [H, W, 3] each, and their source.

    Raises:
        ExportError: If the detector takes more than colors.
    """
    if channels > _COLORS:
        raise ExportError(f"{reason}, and no images of {channels} channels are made: pass some")
    made = [ShapesDataset(_MADE, seed=number, size=size) for number, size in enumerate(_SIZES)]
    pictures = [shapes[number].image for number in range(_MADE) for shapes in made]
    return pictures, f"made shapes, as {reason}; --images names others"
