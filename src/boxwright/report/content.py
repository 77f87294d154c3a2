"""What a page says: values for its template, and data for its scripts."""

from __future__ import annotations

from dataclasses import asdict
from typing import Any

import numpy as np

from boxwright.report.analysis import Analysis
from boxwright.report.events import (
    CLASSES_A_PART,
    EVENTS_A_PART,
    IMAGES_A_PART,
    event_columns,
    has_shapes,
    label_disagreements,
    mean_curve,
    trusted_classes,
)
from boxwright.report.explained import Part, ranked
from boxwright.report.matching import THRESHOLDS, TYPES, confusion
from boxwright.report.metric_words import absence, readable_name, sentence
from boxwright.report.pictures import Photos
from boxwright.report.scores import (
    GRID,
    ChosenThreshold,
    FittedCalibration,
    Reliability,
    reliability,
    score_curve,
    scored,
)
from boxwright.report.sources import Source
from boxwright.report.tables import Tables
from boxwright.report.verdict import Verdict, judge
from boxwright.runtime.optional import installed_versions

# COCO's bounds of sizes, in square pixels.
SMALL, LARGE = 32.0**2, 96.0**2
_SIZES = ("small", "medium", "large")
# So many groups of near-duplicates are shown.
_MOST_GROUPS = 100
_PREFIX = "DetectionBoxes_"
# What comes before a class's name in the name of its average precision by other things than boxes.
_BY_CLASS = {"masks": "DetectionMasks_PerformanceByCategory/mAP/", "keypoints": "Keypoints_Precision/mAP ByCategory/"}
_ERRORS = {
    "classification": "The right place, another class.",
    "localization": "The right class, but the box shares only a tenth to a half of its area with the object.",
    "both": "Neither the class is right, nor the place exact.",
    "duplicate": "An object that a more confident detection has found already.",
    "background": "Nothing is there that is annotated.",
    "missed": "An object that is not found, nor taken for another class (any score: nor near a wrong detection).",
    "false positives": "All wrong detections, if they were scored below every right one.",
    "false negatives": "All objects that were not found, if they did not count.",
}


def page_content(
    source: Source, analysis: Analysis, photos: Photos, parts: list[Part], fitted: FittedCalibration | None
) -> dict[str, Any]:
    """Return the values of the template: `data` for scripts, `numbers` for programs, and what the page says."""
    tables = source.tables
    judged = reliability(*scored(analysis.curves))
    first = ranked(parts)
    most = max((part.gain.value for part in parts), default=0.0) or 1.0
    metrics = _metrics(source, analysis)
    errors = _errors(analysis)
    verdict = judge(analysis, photos)
    kinds = [kind for kind, start in _BY_CLASS.items() if any(name.startswith(start) for name in source.metrics)]
    classes = _classes(source, analysis, kinds)
    return {
        "title": source.title,
        "facts": _facts(source, analysis, photos),
        "metrics": metrics,
        "draws": len(analysis.drawn),
        "classes": classes,
        "kinds": kinds,
        "shapes": has_shapes(tables),
        "counts": _counts(tables),
        "chosen": _chosen(analysis.chosen),
        "threshold": analysis.threshold,
        "errors": errors,
        "tide_ap": analysis.tide.average_precision,
        "causes": first,
        "most_gain": most,
        "factors": {
            name: [part for part in parts if part.factor == name]
            for name in dict.fromkeys(part.factor for part in parts)
        },
        "reliability": judged,
        "fitted": fitted,
        "disagreements": len(label_disagreements(analysis)),
        "trusted": [tables.class_names[number] for number in np.flatnonzero(trusted_classes(analysis))],
        "verdict": verdict,
        "photos": photos,
        "duplicates": len(photos.groups),
        "shown_duplicates": min(len(photos.groups), _MOST_GROUPS),
        "problem": source.problem,
        "data": _data(analysis)
        | {
            "reliability": _reliability_data(judged, fitted),
            "duplicates": photos.groups[:_MOST_GROUPS],
            "verdict": _verdict_data(analysis, verdict),
        },
        "numbers": {
            "metrics": {row["name"]: row["value"] for row in metrics},
            "intervals": {name: interval.to_list() for name, interval in analysis.intervals.items()},
            "draws": len(analysis.drawn),
            "threshold": _chosen(analysis.chosen),
            "errors": {row["name"]: {key: row[key] for key in ("count", "shown", "gain")} for row in errors},
            "parts": [{**vars(part), "gain": part.gain.to_list()} for part in parts],
            "calibration_error": _plain(judged.error),
            "classes": [{key: _plain(value) for key, value in row.items()} for row in classes],
        },
    }


def _verdict_data(analysis: Analysis, verdict: Verdict) -> dict[str, Any]:
    """Return the picture of the verdict with its events, and the filters that select what it speaks of."""
    if verdict.image is None:
        return {"filters": verdict.filters, "image": None}
    events = np.flatnonzero(analysis.outcomes.images == verdict.image)
    columns = event_columns(analysis.tables, analysis.outcomes, events)
    return {"filters": verdict.filters, "image": verdict.image, "events": columns}


def _reliability_data(judged: Reliability, fitted: FittedCalibration | None) -> dict[str, Any]:
    """Return score and precision of each bin, of all images, and before and after calibration on half of them."""
    shown = {"all": judged} if fitted is None else {"before": fitted.before, "after": fitted.after}
    return {
        name: {
            "x": [_plain(float(share)) for share in curve.scores],
            "y": [_plain(float(share)) for share in curve.precision],
        }
        for name, curve in shown.items()
    }


def _plain(value: Any) -> Any:
    return None if isinstance(value, float) and np.isnan(value) else value


def _metrics(source: Source, analysis: Analysis) -> list[dict[str, Any]]:
    """Return the metrics of the evaluation, or COCO's three, with sentences and intervals."""
    intervals = {f"{_PREFIX}{name}": interval for name, interval in analysis.intervals.items()}
    values: dict[str, float | None] = dict(source.metrics)
    if not values:
        values = {name: _plain(interval.value) for name, interval in intervals.items()}
    return [
        {
            "name": name,
            "readable": readable_name(name),
            "value": None if value is None or absence(name, value) else value,
            "sentence": sentence(name),
            "absence": absence(name, value),
            "interval": intervals.get(name),
        }
        for name, value in values.items()
        # The classes have a table of their own, but for the many numbers of keypoints, of which each class has others.
        if "ByCategory" not in name or name.startswith("Keypoints_")
    ]


def _facts(source: Source, analysis: Analysis, photos: Photos) -> list[tuple[str, str]]:
    about, tables = source.about, source.tables
    versions = about.get("versions") or installed_versions("boxwright")
    rows = [
        ("model", about.get("model")),
        ("step", about.get("step")),
        ("weights (SHA-256)", about.get("weights_sha256")),
        ("configuration", about.get("config")),
        ("detections", about.get("detections")),
        ("truth", about.get("truth")),
        ("data", source.images.name if source.images is not None else None),
        ("evaluated", about.get("created")),
        ("command", about.get("command")),
        ("versions", ", ".join(f"{name} {version}" for name, version in versions.items())),
        ("images", f"{len(tables.ids):,}"),
        ("objects", f"{int((~tables.objects.crowd).sum()):,} and {int(tables.objects.crowd.sum()):,} crowds"),
        ("detections kept", f"{len(tables.detections):,}"),
        (
            "images that could not be read",
            f"{len(photos.problems):,}: {photos.problems[0]}" if photos.problems else None,
        ),
    ]
    return [(name, str(value)) for name, value in rows if value not in (None, "")]


def _counts(tables: Tables) -> list[tuple[str, int]]:
    """Return the number of objects by COCO's sizes."""
    areas = tables.objects.areas[~tables.objects.crowd]
    sizes = np.searchsorted([SMALL, LARGE], areas, "right")
    return [(name, int((sizes == number).sum())) for number, name in enumerate(_SIZES)]


def _classes(source: Source, analysis: Analysis, kinds: list[str]) -> list[dict[str, Any]]:
    rows, categories = [], source.tables.categories
    for number, (category, curve) in enumerate(zip(categories, analysis.curves, strict=True)):
        precision_interval, chosen = analysis.class_interval(number), analysis.by_class[number]
        judged = score_curve([curve]).at(analysis.threshold)
        rows.append(
            {
                "name": category.title,
                "objects": int(curve.objects.sum()),
                "images": int((curve.objects > 0).sum()),
                "detections": len(curve.rows),
                "ap": precision_interval.value,
                "low": precision_interval.low,
                "high": precision_interval.high,
                "ap50": float(analysis.values[number, 0]),
                "precision": judged.precision,
                "recall": judged.recall,
                "f1": judged.f1,
                "threshold": None if chosen is None else chosen.threshold,
                **{f"ap_of_{kind}": _class_precision(source, kind, category.name) for kind in kinds},
            }
        )
    return rows


def _class_precision(source: Source, kind: str, name: str) -> float | None:
    """Return a class's average precision by masks or keypoints; None where it has none."""
    value = source.metrics.get(_BY_CLASS[kind] + name)
    return None if value is None or value < 0 else value


def _chosen(chosen: ChosenThreshold | None) -> dict[str, Any] | None:
    if chosen is None:
        return None
    halves = {"chosen_on": chosen.chosen_on, "judged_on": chosen.judged_on}
    plain = {name: {key: _plain(value) for key, value in vars(half).items()} for name, half in halves.items()}
    return {"threshold": chosen.threshold, **plain}


def _errors(analysis: Analysis) -> list[dict[str, Any]]:
    """Return the kinds of errors: their number at the threshold and at any score, and what they cost."""
    tide, objects = analysis.tide, int((~analysis.tables.objects.crowd).sum())
    counts = tide.counts | {
        "false positives": sum(count for name, count in tide.counts.items() if name != "missed"),
        "false negatives": objects - _count_detected_objects(analysis),
    }
    events = dict(zip(TYPES, np.bincount(analysis.outcomes.types, minlength=len(TYPES)).tolist(), strict=True))
    shown = events | {
        "false positives": sum(count for name, count in events.items() if name not in ("right", "missed")),
        "false negatives": objects - events["right"],
    }
    most = max(tide.gains.values()) or 1.0
    return [
        {
            "name": name,
            "sentence": text,
            "type": TYPES.index(name) if name in TYPES else None,
            "count": counts[name],
            "shown": shown[name],
            "gain": tide.gains[name],
            "share": max(tide.gains[name], 0.0) / most,
        }
        for name, text in _ERRORS.items()
    ]


def _count_detected_objects(analysis: Analysis) -> int:
    """Return how many objects some detection finds, at any score."""
    objects = analysis.matching.objects[0]
    return len(np.unique(objects[analysis.matching.right[0]]))


def _data(analysis: Analysis) -> dict[str, Any]:
    """Return what the page's scripts need before the first click."""
    tables = analysis.tables
    curve = score_curve(analysis.curves)
    judged = [asdict(curve.at(float(score))) for score in GRID]
    matrix = confusion(tables, analysis.outcomes)
    cells = [[int(row), int(column), int(matrix[row, column])] for row, column in np.argwhere(matrix)]
    return {
        "classes": tables.class_names,
        "types": list(TYPES),
        "overlaps": np.round(THRESHOLDS, 2).tolist(),
        "mean": mean_curve(analysis),
        "grid": np.round(GRID, 2).tolist(),
        "judged": {name: [round(point[name], 4) for point in judged] for name in ("precision", "recall", "f1")},
        "threshold": analysis.threshold,
        "confusion": cells,
        "eventParts": -(-len(analysis.outcomes) // EVENTS_A_PART),
        "classesAPart": CLASSES_A_PART,
        "imagesAPart": IMAGES_A_PART,
        "shapeParts": has_shapes(tables),
    }
