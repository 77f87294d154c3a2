"""Writing a report's folder."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np

from boxwright.base.files import make_folder, unfinished, write_whole
from boxwright.config.load import dump_message
from boxwright.report.analysis import Analysis, analyze
from boxwright.report.anchors import count_anchors
from boxwright.report.calibration import calibration_message, fit
from boxwright.report.content import page_content
from boxwright.report.events import (
    CLASSES_A_PART,
    EVENTS_A_PART,
    FIRST,
    curve_part,
    event_columns,
    image_columns,
    image_severity,
    worst_first,
)
from boxwright.report.explained import Part, explain
from boxwright.report.factors import factors_of
from boxwright.report.page import remove_parts, write_data, write_page
from boxwright.report.pictures import Photos, Progress, copy_photos, without_photos
from boxwright.report.settings import ReportSettings
from boxwright.report.shapes import IMAGES_A_PART, has_shapes, shape_part
from boxwright.report.sources import Source
from boxwright.report.suspects import as_coco, suspects
from boxwright.report.training_classes import training_objects
from boxwright.runtime.thresholds import Thresholds

# A place for the message that follows.
_CALIBRATION = (
    "# For post_processing { calibration_config { … } } of the model's configuration; fitted on half of the images.\n"
)
# By name: the folder may be one that has other files, such as an evaluation's.
_OURS = ("thresholds.json", "calibration.config", "label_errors.json", "report.json")


def silent(indices: Any, _: str) -> Any:
    """Return the indices without showing progress."""
    return indices


def write_report(
    source: Source, out: str | Path, settings: ReportSettings | None = None, progress: Progress = silent
) -> Path:
    """Write a report's folder and return its `index.html`.

    Raises:
        OutputError: If the folder cannot be written.
    """
    settings = settings or ReportSettings()
    with unfinished(out, "a report") as folder:
        make_folder(folder / "data")
        _remove_former(folder)
        analysis = analyze(source.tables)
        photos = _photos(source, analysis, folder, settings, progress)
        _write_events(analysis, photos, folder)
        _write_curves(analysis, folder)
        _write_suspects(analysis, folder)
        _write_shapes(analysis, folder)
        fitted = fit(analysis.curves, len(source.tables.ids)) if settings.fit_calibration else None
        if fitted is not None:
            write_whole(folder / "calibration.config", _CALIBRATION + dump_message(calibration_message(fitted)))
        causes = _causes(source, analysis, photos, settings.threads)
        content = page_content(source, analysis, photos, causes, fitted)
        write_data(folder, "summary", content["data"])
        if analysis.chosen is not None:
            write_whole(folder / "thresholds.json", _thresholds(source, analysis))
        write_page(folder, "report.html", content)
        write_whole(folder / "report.json", json.dumps(content["numbers"], indent=2) + "\n")
    return Path(out) / "index.html"


def _photos(source: Source, analysis: Analysis, folder: Path, settings: ReportSettings, progress: Progress) -> Photos:
    """Copy the images with the worst errors."""
    tables = source.tables
    if source.images is None:
        return without_photos(len(tables.ids))
    worst = np.argsort(-image_severity(tables, analysis.outcomes), kind="stable")
    copied = np.zeros(len(tables.ids), np.bool_)
    copied[worst[: settings.max_pictures]] = True
    return copy_photos(source.images, tables, copied, folder, settings, progress)


def _write_events(analysis: Analysis, photos: Photos, folder: Path) -> None:
    tables, outcomes = analysis.tables, analysis.outcomes
    order = worst_first(tables, outcomes)
    write_data(folder, "images", image_columns(tables, outcomes, photos))
    write_data(folder, "first", event_columns(tables, outcomes, order[:FIRST]))
    for number, start in enumerate(range(0, len(order), EVENTS_A_PART)):
        write_data(folder, f"events-{number}", event_columns(tables, outcomes, order[start : start + EVENTS_A_PART]))


def _write_suspects(analysis: Analysis, folder: Path) -> None:
    tables, outcomes = analysis.tables, analysis.outcomes
    chosen = suspects(tables, outcomes)
    write_data(folder, "suspects", event_columns(tables, outcomes, chosen))
    write_whole(folder / "label_errors.json", json.dumps(as_coco(tables, outcomes, chosen), indent=1) + "\n")


def _write_shapes(analysis: Analysis, folder: Path) -> None:
    tables = analysis.tables
    if not has_shapes(tables):
        return
    for number, start in enumerate(range(0, len(tables.ids), IMAGES_A_PART)):
        part = shape_part(tables, analysis.outcomes, start, start + IMAGES_A_PART)
        write_data(folder, f"shapes-{number}", part)


def _remove_former(folder: Path) -> None:
    """Remove what an earlier report left: a file of thresholds would otherwise seem to be of this one."""
    for name in _OURS:
        (folder / name).unlink(missing_ok=True)
    remove_parts(folder)


def _causes(source: Source, analysis: Analysis, photos: Photos, threads: int) -> list[Part]:
    """Return the parts of the objects, by all factors that are known."""
    tables, anchors, training = source.tables, None, None
    if source.config is not None:
        anchors = count_anchors(source.config, tables)
        training = training_objects(source.config, tables.categories, threads)
    factors = factors_of(tables, photos, anchors, training)
    return explain(tables, analysis.matching, analysis.curves, factors)


def _write_curves(analysis: Analysis, folder: Path) -> None:
    for number, start in enumerate(range(0, len(analysis.curves), CLASSES_A_PART)):
        write_data(folder, f"curves-{number}", curve_part(analysis, start, start + CLASSES_A_PART))


def _thresholds(source: Source, analysis: Analysis) -> str:
    chosen = analysis.chosen
    assert chosen is not None  # noqa: S101  # the caller asked
    categories = source.tables.categories
    by_class = {
        category.name: one.threshold
        for category, one in zip(categories, analysis.by_class, strict=True)
        if one is not None
    }
    return Thresholds(
        weights_sha256=str(source.about.get("weights_sha256") or ""),
        overall=chosen.threshold,
        by_class=by_class,
        classes=tuple(category.name for category in categories),
    ).to_json(
        chosen_by="the highest F1 at an overlap of 0.5, on half of the images",
        overall={"chosen_on": vars(chosen.chosen_on), "judged_on": vars(chosen.judged_on)},
    )
