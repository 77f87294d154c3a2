"""The first lines of a report: how good the detector is, what costs it most, and a picture of that.

Dimensions: E events, I images.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field

import numpy as np

from boxwright.report.analysis import Analysis
from boxwright.report.matching import NOTHING, TYPES
from boxwright.report.pictures import Photos
from boxwright.report.tables import Bools, Indices
from boxwright.report.tide import NAMES

# Below this gain in AP50 no kind of error is worth a sentence.
_LEAST_GAIN = 0.005
_RIGHT = TYPES.index("right")
_CAUSES = {
    "classification": "Confused classes cost most",
    "localization": "Inexact boxes cost most",
    "both": "Boxes that are inexact and of a wrong class cost most",
    "duplicate": "Objects that are found more than once cost most",
    "background": "Detections where nothing is annotated cost most",
    "missed": "Missed objects cost most",
}


@dataclass(frozen=True)
class Verdict:
    """What a report opens with.

    Attributes:
        headline: The average precision, in words.
        cause: What costs most, with the gain; or that nothing does.
        example: Which classes it concerns most, with a count; empty if no event at the threshold shows it.
        filters: The values of the page's filters that select the events of the example.
        image: The index of the image that shows most of them, or most right detections; None without pictures.
    """

    headline: str
    cause: str = ""
    example: str = ""
    filters: dict[str, int] = field(default_factory=dict)
    image: int | None = None


def judge(analysis: Analysis, photos: Photos) -> Verdict:
    """Return the verdict on an evaluation."""
    average, average_50 = (analysis.intervals[f"Precision/mAP{at}"].value for at in ("", "@.50IOU"))
    if math.isnan(average):
        return Verdict("No object is annotated in these images, so that there is no average precision.")
    headline = f"AP {average:.3f}, AP50 {average_50:.3f}"
    outcomes = analysis.outcomes
    if not (outcomes.types == _RIGHT).any() and analysis.chosen is None:
        everything = np.ones(len(outcomes), np.bool_)
        return Verdict(
            headline, "No detection finds an object, at any score.", image=_image(analysis, photos, everything)
        )
    gains = analysis.tide.gains
    kind = max(NAMES, key=gains.__getitem__)
    if gains[kind] < _LEAST_GAIN:
        shown = outcomes.types == _RIGHT
        return Verdict(
            headline, "No kind of error costs as much as 0.005 of AP50.", image=_image(analysis, photos, shown)
        )
    cause = f"{_CAUSES[kind]}: +{gains[kind]:.2f} AP50 if solved."
    chosen = outcomes.types == TYPES.index(kind)
    example, filters, shown = _most_frequent(analysis, kind, chosen)
    return Verdict(headline, cause, example, filters, _image(analysis, photos, shown))


def _most_frequent(analysis: Analysis, kind: str, chosen: Bools) -> tuple[str, dict[str, int], Bools]:
    """Return the classes that a kind of error concerns most, the filters of its events, and which events these are.

    Args:
        analysis: Of the report.
        kind: The kind of error.
        chosen: bool [E]; the events of this kind.
    """
    tables, outcomes = analysis.tables, analysis.outcomes
    filters = {"type": TYPES.index(kind)}
    if not chosen.any():
        return "", {}, outcomes.types != _RIGHT
    truth = _classes(tables.objects.labels, outcomes.objects, tables.classes)
    seen = _classes(tables.detections.labels, outcomes.detections, tables.classes)
    names = tables.class_names
    if kind == "classification" and (paired := chosen & (truth != NOTHING)).any():
        pairs, counts = np.unique(np.stack([truth[paired], seen[paired]]), axis=1, return_counts=True)
        first, second = pairs[:, counts.argmax()].tolist()
        shown = paired & (truth == first) & (seen == second)
        words = f"{names[first]} found as {names[second]}, {_times(int(counts.max()))}"
        return words, {**filters, "truth": first, "seen": second}, shown
    column, of = ("truth", truth) if kind == "missed" else ("seen", seen)
    classes, counts = np.unique(of[chosen], return_counts=True)
    most = int(classes[counts.argmax()])
    words = f"{names[most]}, {int(counts.max()):,} of {int(chosen.sum()):,}"
    return f"most of all {words}", {**filters, column: most}, chosen & (of == most)


def _times(count: int) -> str:
    return "once" if count == 1 else f"{count:,} times"


def _classes(labels: Indices, rows: Indices, classes: Indices) -> Indices:
    """Return the position of each event's class, int64 [E]; -1 for none."""
    positions = np.append(np.searchsorted(classes, labels), NOTHING)
    return np.asarray(np.where(rows == NOTHING, NOTHING, positions[rows]), np.int64)


def _image(analysis: Analysis, photos: Photos, shown: Bools) -> int | None:
    """Return the image with most of some events, of equal ones that with most right detections; None without copies."""
    count = len(analysis.tables.ids)
    copied = np.array([bool(file) for file in photos.files])
    if not copied.any():
        return None
    outcomes = analysis.outcomes
    wanted = np.bincount(outcomes.images[shown], minlength=count)
    right = np.bincount(outcomes.images[outcomes.types == _RIGHT], minlength=count)
    return int(np.lexsort((right, np.where(copied, wanted, -1)))[-1])
