"""Writing a report's folder.

The report also says how many anchors could be matched with each object, and how many objects of each class the training
data have.

Dimensions: N objects, A anchors, K classes of the report.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import torch

from boxwright.base.errors import BoxwrightError
from boxwright.base.files import make_folder, unfinished, write_whole
from boxwright.config.load import dump_message
from boxwright.data.coco import CocoDataset
from boxwright.data.dataset import Dataset
from boxwright.nn.ops.boxes import pairwise_iou
from boxwright.pipeline import messages as m
from boxwright.pipeline.detector import build_detector
from boxwright.pipeline.input_reader import build_dataset
from boxwright.pipeline.messages import TrainEvalPipelineConfig
from boxwright.report.analysis import Analysis, analyze
from boxwright.report.content import page_content
from boxwright.report.events import (
    CLASSES_A_PART,
    EVENTS_A_PART,
    FIRST,
    IMAGES_A_PART,
    curve_part,
    event_columns,
    has_shapes,
    image_columns,
    image_severity,
    label_disagreements,
    shape_part,
    to_coco,
    worst_first,
)
from boxwright.report.explained import Part, explain
from boxwright.report.factors import compute_factors
from boxwright.report.page import remove_parts, write_data, write_page
from boxwright.report.pictures import Photos, Progress, copy_photos
from boxwright.report.scores import ChosenThreshold, calibration_message, fit
from boxwright.report.settings import ReportSettings
from boxwright.report.sources import Source
from boxwright.report.tables import Indices, Tables
from boxwright.runtime.thresholds import Thresholds
from boxwright.training.preflight.anchors import AnchorLayouts, InputFrame, find_anchor_generator
from boxwright.training.preflight.records import Record, spread
from boxwright.types import Categories, Sample

# Objects that are compared with all anchors at a time.
_BLOCK = 128


def count_anchors(config: m.TrainEvalPipelineConfig, tables: Tables) -> Indices | None:
    """Return how many anchors reach the matcher's overlap with each object, int64 [N]; None without anchors."""
    anchor_settings = find_anchor_generator(config.model)
    if anchor_settings is None or config.model is None:
        return None
    detector = build_detector(config.model)
    frame, layouts, threshold = InputFrame(detector), AnchorLayouts(detector), anchor_settings[1]
    counts = np.zeros(len(tables.objects), np.int64)
    by_size: dict[tuple[int, int], tuple[list[Indices], list[np.ndarray]]] = {}
    bounds = np.searchsorted(tables.objects.images, np.arange(len(tables.ids) + 1))
    for image in np.flatnonzero(np.diff(bounds)).tolist():
        rows = np.arange(bounds[image], bounds[image + 1])
        rows = rows[_usable(tables, rows, image)]
        boxes, size = frame.boxes(_record(tables, rows, image))
        numbers, kept = by_size.setdefault(size, ([], []))
        numbers.append(rows[: len(boxes)])
        kept.append(boxes)
    for size, (numbers, parts) in by_size.items():
        anchors, joined, places = layouts.own(size), torch.from_numpy(np.concatenate(parts)), np.concatenate(numbers)
        for start in range(0, len(joined), _BLOCK):
            overlap = pairwise_iou(joined[start : start + _BLOCK], anchors)
            counts[places[start : start + _BLOCK]] = (overlap >= threshold).sum(1).numpy()
    return counts


def _usable(tables: Tables, rows: Indices, image: int) -> np.ndarray:
    """Return which objects have an area within their image, and are no crowd: the others match no anchor."""
    height, width = tables.sizes[image].tolist()
    boxes = np.clip(tables.objects.boxes[rows], 0, [width, height, width, height])
    return np.asarray((boxes[:, 2:] - boxes[:, :2] > 1e-3).all(axis=1) & ~tables.objects.crowd[rows])


def _record(tables: Tables, rows: Indices, image: int) -> Record:
    height, width = tables.sizes[image].tolist()
    return Record(
        name=tables.names[image],
        size=(height, width),
        boxes=tables.objects.boxes[rows].astype(np.float32),
        labels=tables.objects.labels[rows],
        crowd=tables.objects.crowd[rows],
        left_out=0,
    )


# Samples that are read where labels cannot be had without pixels: shares of classes need no more.
MOST_READ = 2000


def training_objects(config: TrainEvalPipelineConfig, categories: Categories, threads: int) -> Indices | None:
    """Return the objects of each class in the training data, or in a sample of them, int64 [K].

    None if the data cannot be read, or have none of the classes, as where all count as one.

    Args:
        categories: The report's, matched by name.
    """
    if config.train_input_reader is None:
        return None
    try:
        dataset = build_dataset(config.train_input_reader, "train_input_reader", categories)
        counts = np.zeros(dataset.categories.num_slots, np.int64)
        for sample in _samples(dataset, threads):
            counts += np.bincount(sample.labels[~sample.is_crowd], minlength=len(counts))[: len(counts)]
    except BoxwrightError:
        return None
    of_name = {category.name: int(counts[category.label]) for category in dataset.categories}
    class_counts = np.array([of_name.get(category.name, 0) for category in categories], np.int64)
    return class_counts if class_counts.any() else None


def _samples(dataset: Dataset, threads: int) -> Iterator[Sample]:
    if isinstance(dataset, CocoDataset):
        yield from (dataset.truth(index) for index in range(len(dataset)))
        return
    with ThreadPoolExecutor(threads) as pool:
        yield from pool.map(dataset.__getitem__, spread(len(dataset), MOST_READ))


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
        worst = np.argsort(-image_severity(source.tables, analysis.outcomes), kind="stable")
        copied = worst[: settings.max_pictures]
        photos = copy_photos(source.images, source.tables, copied, folder, settings, progress)
        _write_events(analysis, photos, folder)
        _write_curves(analysis, folder)
        _write_disagreements(analysis, folder)
        _write_shapes(analysis, folder)
        fitted = fit(analysis.curves, len(source.tables.ids)) if settings.fit_calibration else None
        if fitted is not None:
            write_whole(folder / "calibration.config", _CALIBRATION + dump_message(calibration_message(fitted)))
        causes = _causes(source, analysis, photos, settings.threads)
        content = page_content(source, analysis, photos, causes, fitted)
        write_data(folder, "summary", content["data"])
        if analysis.chosen is not None:
            write_whole(folder / "thresholds.json", _thresholds(source, analysis, analysis.chosen))
        write_page(folder, "report.html", content)
        write_whole(folder / "report.json", json.dumps(content["numbers"], indent=2) + "\n")
    return Path(out) / "index.html"


def _write_events(analysis: Analysis, photos: Photos, folder: Path) -> None:
    tables, outcomes = analysis.tables, analysis.outcomes
    order = worst_first(tables, outcomes)
    write_data(folder, "images", image_columns(tables, outcomes, photos))
    write_data(folder, "first", event_columns(tables, outcomes, order[:FIRST]))
    for number, start in enumerate(range(0, len(order), EVENTS_A_PART)):
        write_data(folder, f"events-{number}", event_columns(tables, outcomes, order[start : start + EVENTS_A_PART]))


def _write_disagreements(analysis: Analysis, folder: Path) -> None:
    tables, outcomes = analysis.tables, analysis.outcomes
    chosen = label_disagreements(analysis)
    write_data(folder, "disagreements", event_columns(tables, outcomes, chosen))
    write_whole(folder / "label_errors.json", json.dumps(to_coco(tables, outcomes, chosen), indent=1) + "\n")


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
    factors = compute_factors(tables, photos, anchors, training)
    return explain(tables, analysis.matching, analysis.curves, factors)


def _write_curves(analysis: Analysis, folder: Path) -> None:
    for number, start in enumerate(range(0, len(analysis.curves), CLASSES_A_PART)):
        write_data(folder, f"curves-{number}", curve_part(analysis, start, start + CLASSES_A_PART))


def _thresholds(source: Source, analysis: Analysis, chosen: ChosenThreshold) -> str:
    categories = source.tables.categories
    by_class = {
        category.name: class_threshold.threshold
        for category, class_threshold in zip(categories, analysis.by_class, strict=True)
        if class_threshold is not None
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
