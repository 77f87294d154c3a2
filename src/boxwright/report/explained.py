"""Average precision explained: the gain if one part of the objects, and nothing else, were detected perfectly.

Then every object of the part is found before all others, and no wrong detection is about them.

Dimensions: K classes, T overlap thresholds, N detections of one class, B draws.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np

from boxwright.report.analysis import Interval, draws_for, image_draws, interval
from boxwright.report.factors import Factor
from boxwright.report.matching import RECALLS, ClassCurve, Matching, mean_ap
from boxwright.report.tables import Bools, Floats, Tables

MOST_DRAWS = 100


@dataclass(frozen=True)
class Part:
    """One part of a factor.

    Attributes:
        objects: How many objects it has.
        share: Its share of each class's objects, mean over the classes.
        average_precision: On its objects and the detections about them alone; NaN without objects.
        gain: The average precision that is gained if it is detected perfectly.
        excess: The gain beyond the part's share of its factor's gains, whose sum over the factor's parts is 0; above 0
            where the part is harder than the others.
    """

    factor: str
    name: str
    objects: int
    share: float
    average_precision: float
    gain: Interval
    excess: float


@dataclass(frozen=True, eq=False)
class _Split:
    """What a part has of a class: its detections and objects.

    Attributes:
        right: bool [T, N]; right detections of its objects.
        wrong: bool [N]; detections about its objects, if they are wrong.
        objects: float64 [I]; how many of its objects each image has.
    """

    right: Bools
    wrong: Bools
    objects: Floats


def explain(
    tables: Tables, matching: Matching, curves: list[ClassCurve], factors: list[Factor], most_draws: int = MOST_DRAWS
) -> list[Part]:
    """Return all parts that have objects, the most unexpected loss first.

    Args:
        most_draws: How many draws of images make the intervals, at most.
    """
    everything = mean_ap(_perfect(curves, None))
    if np.isnan(everything):
        return []
    splits = [
        (factor, number, _split(tables, matching, curves, factor, number))
        for factor in factors
        for number in range(len(factor.parts))
    ]
    splits = [row for row in splits if any(part.objects.any() for part in row[2])]
    draws = list(image_draws(len(tables.ids), min(draws_for(curves, len(splits)), most_draws), seed=1))
    before = [mean_ap(_perfect(curves, None, weights)) for weights in draws]
    parts = []
    for factor, number, split in splits:
        gain = mean_ap(_perfect(curves, split)) - everything
        drawn = np.array([mean_ap(_perfect(curves, split, weights)) for weights in draws]) - before
        pairs = [
            (class_split.objects.sum(), curve.objects.sum()) for class_split, curve in zip(split, curves, strict=True)
        ]
        share = float(np.mean([own / count for own, count in pairs if count]))
        parts.append(
            Part(
                factor=factor.name,
                name=factor.parts[number],
                objects=int(sum(class_split.objects.sum() for class_split in split)),
                share=share,
                average_precision=mean_ap(_alone(curves, split)),
                gain=interval(gain, drawn),
                excess=float("nan"),
            )
        )
    return _by_excess(parts)


def _by_excess(parts: list[Part]) -> list[Part]:
    """Return the parts with their excess, the largest first."""
    together: dict[str, float] = {}
    for part in parts:
        together[part.factor] = together.get(part.factor, 0.0) + part.gain.value
    parts = [replace(part, excess=part.gain.value - part.share * together[part.factor]) for part in parts]
    return sorted(parts, key=lambda part: -part.excess)


def _split(tables: Tables, matching: Matching, curves: list[ClassCurve], factor: Factor, number: int) -> list[_Split]:
    """Return what a part has of each class."""
    inside = np.append(factor.objects == number, False)
    counted = ~tables.objects.crowd & inside[:-1]
    images = len(tables.ids)
    class_splits = []
    for label, curve in zip(tables.classes.tolist(), curves, strict=True):
        own = tables.objects.images[counted & (tables.objects.labels == label)]
        class_splits.append(
            _Split(
                right=inside[matching.objects[:, curve.rows]],
                wrong=factor.detections[curve.rows] == number,
                objects=np.bincount(own, minlength=images).astype(np.float64),
            )
        )
    return class_splits


def _perfect(curves: list[ClassCurve], splits: list[_Split] | None, weights: Floats | None = None) -> Floats:
    """Return the average precision of each class with a part that is detected perfectly; None for no part, [K, T]."""
    rows = []
    for number, curve in enumerate(curves):
        split = None if splits is None else splits[number]
        ones = np.ones(len(curve.objects)) if weights is None else weights
        count = float(curve.objects @ ones)
        if not count:
            rows.append(np.full(len(curve.gains), np.nan))
            continue
        gains, losses, first = curve.gains, curve.losses, 0.0
        if split is not None:
            gains, losses = gains * ~split.right, losses * ~split.wrong
            first = float(split.objects @ ones)
        rows.append(_areas(gains * ones[curve.images], losses * ones[curve.images], first, count))
    return np.stack(rows)


def _alone(curves: list[ClassCurve], splits: list[_Split]) -> Floats:
    """Return the average precision of each class on a part alone, [K, T]."""
    rows = []
    for curve, split in zip(curves, splits, strict=True):
        count = float(split.objects.sum())
        if count:
            rows.append(_areas(curve.gains * split.right, curve.losses * split.wrong, 0.0, count))
        else:
            rows.append(np.full(len(curve.gains), np.nan))
    return np.stack(rows)


def _areas(gains: Floats, losses: Floats, first: float, count: float) -> Floats:
    """Return COCO's average precision, [T], of detections after `first` right ones; best first.

    All overlaps at once: several times as fast as one by one, and equal up to rounding.
    """
    kept = np.flatnonzero(gains.any(axis=0))
    if not len(kept):
        reached = float(np.searchsorted(RECALLS, first / count + 1e-9)) / len(RECALLS)
        return np.full(len(gains), reached if first else 0.0)
    right = first + np.cumsum(gains, axis=1)[:, kept]
    wrong = np.cumsum(losses, axis=1)[:, kept]
    precision = right / np.maximum(right + wrong, np.spacing(1))
    ends = np.zeros((len(gains), 1))
    # The part's objects come first, with precision 1; beyond the last recall precision is 0.
    precision = np.concatenate([ends + float(first > 0), precision, ends], axis=1)
    recall = np.concatenate([ends + first / count, right / count, ends + 2], axis=1)
    envelope = np.maximum.accumulate(precision[:, ::-1], axis=1)[:, ::-1]
    # All rows in one array, so that one search serves all.
    offsets = 4.0 * np.arange(len(gains))[:, None]
    # Rounding must not keep a recall below the point that it equals.
    places = np.searchsorted((recall + offsets + 1e-9).ravel(), (RECALLS + offsets).ravel())
    return np.asarray(envelope.ravel()[places].reshape(len(gains), -1).mean(axis=1))


def ranked(parts: list[Part], most: int = 10) -> list[Part]:
    """Return the parts that lose more than their share, those of one factor with all objects left out."""
    return [part for part in parts if part.excess > 1e-6 and part.share < 1 - 1e-9][:most]
