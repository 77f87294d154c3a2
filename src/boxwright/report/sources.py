"""What a report is made from: an evaluation's folder, or COCO's files of truth and results."""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from boxwright.base.errors import BoxwrightError, DataError
from boxwright.base.files import is_file, read_file, refuse_unfinished, shown
from boxwright.data.coco import CocoDataset
from boxwright.data.dataset import Dataset
from boxwright.evaluation.data import open_evaluation_data
from boxwright.evaluation.settings import EvaluationSettings
from boxwright.evaluation.write import DATA_SETTINGS
from boxwright.pipeline.load import load_config
from boxwright.pipeline.messages import TrainEvalPipelineConfig
from boxwright.report.tables import Tables, read_tables


@dataclass(frozen=True, eq=False)
class Source:
    """What a report is made from.

    Attributes:
        metrics: Names to values; None where a value is not a number. Empty if they were not computed.
        about: Facts on model, settings and versions (`evaluation.json`).
        config: The configuration of the evaluation, if there is one.
        images: The data that were evaluated, for their images; None if they cannot be read.
        problem: Why there are no images.
    """

    title: str
    tables: Tables
    metrics: dict[str, float | None] = field(default_factory=dict)
    about: dict[str, Any] = field(default_factory=dict)
    config: TrainEvalPipelineConfig | None = None
    images: Dataset | None = None
    problem: str = ""


def source_of_evaluation(folder: str | Path) -> Source:
    """Open the folder of an evaluation; its data are opened for their images alone, and may be missing.

    Raises:
        DataError: If it is no evaluation's folder, or one of an older version.
    """
    folder = Path(folder)
    refuse_unfinished(folder)
    if not is_file(folder / "detections.json"):
        raise DataError(f"{shown(folder)}: no detections.json; expected the folder of `boxwright evaluate`")
    if not is_file(folder / "truth.json"):
        raise DataError(f"{shown(folder)}: no truth.json: an older version evaluated here; evaluate again")
    dataset = CocoDataset(folder / "truth.json", folder, num_keypoints=None, allow_paths_outside=True)
    about, metrics = (_read_object(folder / name) for name in ("evaluation.json", "metrics.json"))
    config = load_config(folder / "pipeline.config") if is_file(folder / "pipeline.config") else None
    images, problem = _evaluated_images(config, about.get("settings") or {})
    return Source(
        title=str(about.get("model") or folder),
        tables=read_tables(dataset, folder / "detections.json"),
        metrics={name: value for name, value in metrics.items() if name not in ("step", "learning_rate")},
        about=about,
        config=config,
        images=images,
        problem=problem,
    )


def source_of_files(truth: str | Path, detections: str | Path, image_folder: str | Path | None = None) -> Source:
    """Open COCO's files of truth and of results, of any detector; images may be missing.

    Raises:
        DataError: If they are not COCO's, or do not belong together.
    """
    dataset = CocoDataset(truth, image_folder, num_keypoints=None, allow_paths_outside=True)
    tables = read_tables(dataset, detections)
    first = Path(dataset.folder, tables.names[0])
    problem = "" if is_file(first) else f"{shown(first)} is missing; name the images' folder with --image_folder"
    about = {"detections": str(detections), "truth": str(truth)}
    return Source(str(detections), tables, about=about, images=None if problem else dataset, problem=problem)


def _read_object(path: Path) -> dict[str, Any]:
    if not is_file(path):
        return {}
    try:
        content = json.loads(read_file(path).decode())
    except ValueError as error:
        raise DataError(f"{shown(path)}: not JSON: {str(error)[:200]}") from None
    if not isinstance(content, dict):
        raise DataError(f"{shown(path)}: expected an object, found a {type(content).__name__}")
    return content


def _evaluated_images(config: TrainEvalPipelineConfig | None, settings: dict[str, Any]) -> tuple[Dataset | None, str]:
    """Return the data that were evaluated; or None, and why."""
    if config is None:
        return None, "the evaluation's folder has no pipeline.config"
    known = {name: value for name, value in settings.items() if name in DATA_SETTINGS}
    try:
        return open_evaluation_data(config, EvaluationSettings(**known), None).dataset, ""
    except BoxwrightError as error:
        return None, str(error)
