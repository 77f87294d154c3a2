"""Two evaluations of the same images: is the difference of average precision more than chance, and where is it?

Dimensions: K classes, T overlap thresholds, B draws, N objects.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from boxwright.base.errors import DataError
from boxwright.base.files import make_folder, unfinished, write_whole
from boxwright.report.analysis import Analysis, Interval, analyze, interval
from boxwright.report.events import event_columns, mean_curve
from boxwright.report.matching import NOTHING, TYPES, Outcomes, mean_ap
from boxwright.report.page import write_data, write_page
from boxwright.report.pictures import Photos, Progress, copy_photos
from boxwright.report.scores import GRID, score_curve
from boxwright.report.settings import ReportSettings
from boxwright.report.sources import Source
from boxwright.report.tables import Floats, Indices, Tables
from boxwright.report.write import silent

_METRICS = {"AP": slice(None), "AP50": slice(1), "AP75": slice(5, 6)}
# Pixels by which rounding may move a box of the truth.
_SAME = 0.01
# Gained and lost objects that the page shows, each.
_SHOWN = 300


@dataclass(frozen=True)
class Difference:
    """Two values and their difference; its interval is of draws in which both see the same images."""

    name: str
    first: float
    second: float
    difference: Interval

    @property
    def verdict(self) -> str:
        """Whether the difference is more than chance."""
        if np.isnan(self.difference.low):
            return "not known"
        if self.difference.low <= 0 <= self.difference.high:
            return "may be chance"
        return "better" if self.difference.value > 0 else "worse"


@dataclass(frozen=True, eq=False)
class Comparison:
    """What changed from the first evaluation to the second.

    Attributes:
        metrics: AP, AP50 and AP75.
        classes: The AP of each class.
        gained: Indices of objects that only the second finds, each at its own threshold.
        lost: Indices of objects that only the first finds.
    """

    first: Analysis
    second: Analysis
    metrics: list[Difference]
    classes: list[Difference]
    gained: Indices
    lost: Indices


def compare(first: Tables, second: Tables) -> Comparison:
    """Compare two evaluations; a DataError if images, objects or classes differ."""
    _require_same(first, second)
    before, after = analyze(first), analyze(second)
    # The same seed: both see the same images in each draw. Of the shorter one's, if there are fewer draws.
    draws = min(len(before.drawn), len(after.drawn))
    drawn = after.drawn[:draws] - before.drawn[:draws]
    metrics = []
    for name, part in _METRICS.items():
        spread = np.array([mean_ap(draw[:, part]) for draw in drawn])
        metrics.append(_difference(name, mean_ap(before.values[:, part]), mean_ap(after.values[:, part]), spread))
    classes = []
    for number, name in enumerate(first.class_names):
        ap_before, ap_after = (float(analysis.values[number].mean()) for analysis in (before, after))
        classes.append(_difference(name, ap_before, ap_after, drawn[:, number].mean(axis=1)))
    detected_before, detected_after = _detected_objects(before.outcomes), _detected_objects(after.outcomes)
    gained, lost = np.setdiff1d(detected_after, detected_before), np.setdiff1d(detected_before, detected_after)
    return Comparison(before, after, metrics, classes, gained, lost)


def _difference(name: str, first: float, second: float, drawn: Floats) -> Difference:
    return Difference(name, first, second, interval(second - first, drawn))


def _detected_objects(outcomes: Outcomes) -> Indices:
    return np.asarray(outcomes.objects[outcomes.types == TYPES.index("right")])


def _require_same(first: Tables, second: Tables) -> None:
    if first.class_names != second.class_names:
        raise DataError("the two evaluations have other classes: their average precisions cannot be compared")
    if list(first.ids) != list(second.ids):
        raise DataError(
            f"the two evaluations are of other images ({len(first.ids)} and {len(second.ids)}, or in another order): "
            "evaluate both on the same data"
        )
    objects, others = first.objects, second.objects
    differ = len(objects) != len(others) or (objects.labels != others.labels).any()
    if differ or (np.abs(objects.boxes - others.boxes) > _SAME).any():
        raise DataError("the two evaluations have other objects: the annotations changed between them")


def write_comparison(
    sources: tuple[Source, Source], out: str | Path, settings: ReportSettings, progress: Progress = silent
) -> Comparison:
    """Write a page that compares two evaluations, and return what it says."""
    first, second = sources
    comparison = compare(first.tables, second.tables)
    with unfinished(out, "a comparison") as folder:
        make_folder(folder / "data")
        shown = {"gained": comparison.gained[:_SHOWN], "lost": comparison.lost[:_SHOWN]}
        changed = first.tables.objects.images[np.concatenate(list(shown.values()))]
        photos = copy_photos(first.images, first.tables, changed, folder, settings, progress)
        write_data(folder, "comparison", _data(comparison, shown, photos))
        write_page(folder, "compare.html", _content(first, second, comparison))
        rows = {"metrics": comparison.metrics, "classes": comparison.classes}
        numbers: dict[str, Any] = {name: [_numbers(row) for row in listed] for name, listed in rows.items()}
        numbers |= {"gained": len(comparison.gained), "lost": len(comparison.lost)}
        write_whole(folder / "comparison.json", json.dumps(numbers, indent=2) + "\n")
    return comparison


def _numbers(row: Difference) -> dict[str, Any]:
    values = {"first": row.first, "second": row.second}
    known = {name: None if np.isnan(value) else value for name, value in values.items()}
    return {"name": row.name, **known, "difference": row.difference.to_list(), "verdict": row.verdict}


def _content(first: Source, second: Source, comparison: Comparison) -> dict[str, Any]:
    return {
        "title": f"{first.title} and {second.title}",
        "names": [first.title, second.title],
        "metrics": comparison.metrics,
        "classes": comparison.classes,
        "thresholds": [comparison.first.threshold, comparison.second.threshold],
        "draws": min(len(comparison.first.drawn), len(comparison.second.drawn)),
        "gained": len(comparison.gained),
        "lost": len(comparison.lost),
        "problem": first.problem,
    }


def _data(comparison: Comparison, shown: dict[str, Indices], photos: Photos) -> dict[str, Any]:
    tables = comparison.first.tables
    by = {"gained": comparison.second, "lost": comparison.first}
    events = {name: _events(by[name], objects) for name, objects in shown.items()}
    used = sorted({image for columns in events.values() for image in columns["image"]})
    judged = []
    for analysis in (comparison.first, comparison.second):
        curve = score_curve(analysis.curves)
        judged.append([round(curve.at(float(score)).f1, 4) for score in GRID])
    return {
        "classes": tables.class_names,
        "images": {
            image: [tables.names[image], int(tables.sizes[image, 1]), int(tables.sizes[image, 0]), photos.files[image]]
            for image in used
        },
        "events": events,
        "mean": [mean_curve(analysis)[:1] for analysis in (comparison.first, comparison.second)],
        "grid": np.round(GRID, 2).tolist(),
        "f1": judged,
    }


def _events(analysis: Analysis, objects: Indices) -> dict[str, Any]:
    """Return the events in which an evaluation finds some objects."""
    outcomes = analysis.outcomes
    right = np.flatnonzero((outcomes.types == TYPES.index("right")) & (outcomes.detections != NOTHING))
    return event_columns(analysis.tables, outcomes, right[np.isin(outcomes.objects[right], objects)])
