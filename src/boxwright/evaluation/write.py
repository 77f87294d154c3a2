"""Writing an evaluation's folder."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from boxwright.base.files import make_folder, unfinished, unique_stem, write_whole
from boxwright.data.image_io import encode_png
from boxwright.evaluation.image_results import ImageResults
from boxwright.evaluation.metrics.metric import without_nan
from boxwright.evaluation.results import Evaluation


def write_evaluation(
    evaluation: Evaluation,
    results: ImageResults,
    folder: str | Path,
    step: int | None = None,
    learning_rate: float | None = None,
    about: Mapping[str, Any] | None = None,
) -> None:
    """Write metrics.json, detections.json, truth.json and the pictures.

    `step` and `learning_rate`, if known, stand beside the metrics.

    Args:
        results: Detections and ground truth of the evaluation's images.
        about: Model, settings and versions (`about_evaluation`), for evaluation.json; None for no such file.

    Raises:
        OutputError: If the disk is full or the folder cannot be written; it stays marked as unfinished.
    """
    with unfinished(folder, "an evaluation") as whole:
        pictures, taken = make_folder(whole / "pictures"), set[str]()
        for name, picture in evaluation.pictures.items():
            write_whole(pictures / f"{unique_stem(name, taken)}.png", encode_png(picture))
        results.write(whole)
        if about is not None:
            write_whole(whole / "evaluation.json", json.dumps({**about, "notes": evaluation.notes}, indent=2) + "\n")
        beside = {"step": step, "learning_rate": learning_rate}
        known = {name: value for name, value in beside.items() if value is not None}
        write_whole(whole / "metrics.json", json.dumps(known | without_nan(evaluation.metrics), indent=2) + "\n")
