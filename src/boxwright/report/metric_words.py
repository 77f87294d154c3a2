"""Metrics in words: what people call them, what they are, why one has no value, and a line for an evaluation."""

from __future__ import annotations

import math
import re
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from boxwright.training.log import Evaluated

# The first pattern that a name contains tells what it is.
_SENTENCES = (
    (
        r"^Keypoints_Precision/mAP@\.(\d\d)",
        r"Average precision of a class's keypoints where a similarity (OKS) of 0.\1 is enough.",
    ),
    (
        r"^Keypoints_Precision/mAP \((medium|large)\)",
        r"Average precision of a class's keypoints, on \1 objects by COCO's bounds.",
    ),
    (
        r"^Keypoints_Precision/mAP",
        "Average precision of a class's keypoints, mean over similarities (OKS) 0.50 to 0.95: how near are they to the"
        " true places, by the object's size and each point's own tolerance.",
    ),
    (r"^Keypoints_Recall", "Objects of a class whose keypoints are found: recall by similarity (OKS)."),
    (r"mAP \(small\)", "Average precision on objects of fewer than 32² pixels."),
    (r"mAP \(medium\)", "Average precision on objects of 32² to 96² pixels."),
    (r"mAP \(large\)", "Average precision on objects of more than 96² pixels."),
    (r"mAP@\.50IOU", "Average precision where sharing half of the area is enough to find an object."),
    (r"mAP@\.75IOU", "Average precision where three quarters of the area must be shared: how exact are the boxes?"),
    (r"AR@100 \(small\)", "Recall of objects of fewer than 32² pixels, with 100 detections per image."),
    (r"AR@100 \(medium\)", "Recall of objects of 32² to 96² pixels, with 100 detections per image."),
    (r"AR@100 \(large\)", "Recall of objects of more than 96² pixels, with 100 detections per image."),
    (r"AR@1$", "Recall with one detection per class and image, mean over overlaps 0.50 to 0.95."),
    (
        r"AR@(\d+)",
        r"Recall with at most \1 detections per class and image, mean over overlaps 0.50 to 0.95.",
    ),
    (r"Precision/mAP ByCategory|PerformanceByCategory/mAP/", "Average precision of one class."),
    (r"PerformanceBySuperCategory", "Average precision, mean over a group of classes."),
    (r"Precision/mAP$", "Average precision, mean over classes and overlaps 0.50 to 0.95: COCO's headline number."),
    (r"AP@0\.5IOU|mAP@0\.5IOU", "Average precision at an overlap of 0.5, as PASCAL VOC or Open Images define it."),
    (r"_AP$", "Average precision by LVIS's rules: only classes that were looked for in an image count there."),
    (r"_AP50$", "LVIS's, where sharing half of the area is enough to find an object."),
    (r"_AP75$", "LVIS's, where three quarters of the area must be shared."),
    (r"_AP([sml])$", "LVIS's, on small (below 32²), medium (to 96²) or large objects."),
    (r"_AP([rcf])$", "LVIS's, of classes in fewer than 10 (r), 10 to 99 (c) or more (f) training images."),
    (r"_AR[sml]?@300$", "Objects found with at most 300 detections of an image, by LVIS's rules."),
    (r"CorLoc", "The share of images in which at least one object of a class is found."),
    (r"^Loss/", "Training loss on these images."),
    (r"easy|medium|hard", "Average precision on WIDER FACE's faces of this difficulty."),
)

_OF_MASKS = "DetectionMasks_"


def sentence(name: str) -> str:
    """Return what a metric is; empty if it is not known here."""
    for pattern, text in _SENTENCES:
        if match := re.search(pattern, name):
            own = match.expand(text) if "\\1" in text else text
            return f"{own} Objects share areas of masks, not of boxes." if name.startswith(_OF_MASKS) else own
    return ""


def absence(name: str, value: float | None) -> str:
    """Return why a metric has no value; empty if it has one."""
    if value is None or not math.isfinite(value):
        return "not a number: no object of some class to measure on"
    if value >= 0 or name.startswith("Loss/"):
        return ""
    return "nothing to measure: no object of this kind"


# TensorFlow's names, as patterns, and the usual ones; the first that matches the whole of a name is its own.
_KINDS = {"DetectionBoxes_": "", "DetectionMasks_": "mask ", "Keypoints_": "keypoint "}
_NAMES = (
    (r"Precision/mAP", "AP"),
    (r"Precision/mAP@\.(\d\d)IOU", r"AP\1"),
    (r"Precision/mAP \((small|medium|large)\)", r"AP of \1 objects"),
    (r"Recall/AR@1", "AR with 1 detection"),
    (r"Recall/AR@(\d+)", r"AR with \1 detections"),
    (r"Recall/AR@\d+ \((small|medium|large)\)", r"AR of \1 objects"),
    (r"(?:PerformanceByCategory/mAP/|PerformanceBySuperCategory/|Precision/mAP ByCategory/)(.+)", r"AP of \1"),
    (r"Precision/mAP@\.(\d\d)IOU ByCategory/(.+)", r"AP\1 of \2"),
    (r"Precision/mAP \((medium|large)\) ByCategory/(.+)", r"AP of \1 objects, \2"),
    (r"Recall/AR@\d+ ByCategory/(.+)", r"AR of \1"),
    (r"Recall/AR@\d+ \((medium|large)\) ByCategory/(.+)", r"AR of \1 objects, \2"),
)
_LOSS = re.compile(r"Loss/(?:.*/)?(\w+?)(?:_loss)?$")


def readable_name(name: str) -> str:
    """Return what people call a metric, by TensorFlow's name; the name itself where it has no usual one."""
    if match := _LOSS.fullmatch(name):
        return f"{match[1].replace('_', ' ')} loss"
    for prefix, kind in _KINDS.items():
        if not name.startswith(prefix):
            continue
        for pattern, words in _NAMES:
            if match := re.fullmatch(pattern, name.removeprefix(prefix)):
                return kind + match.expand(words)
    return name


def metric_text(value: float, decimals: int = 4) -> str:
    """Return a metric as text; COCO's convention is -1 where there is no object to measure on."""
    return f"{value:.{decimals}f}" if value >= 0 else "no objects"


_SHOWN = ("DetectionBoxes_Precision/mAP", "DetectionBoxes_Precision/mAP@.50IOU")


def evaluation_line(step: int, event: Evaluated) -> str:
    """Return a line with COCO's AP and AP50, else the first metric; and the metric that chooses the best checkpoint."""
    shown = [name for name in _SHOWN if name in event.metrics] or list(event.metrics)[:1]
    if event.best_metric and event.best_metric not in shown:
        shown.append(event.best_metric)
    parts = [f"step {step}", *([event.name] if event.name else [])]
    for name in shown:
        best = " (best)" if name == event.best_metric else ""
        parts.append(f"{readable_name(name)} {metric_text(event.metrics[name], 3)}{best}")
    return "  ".join(parts)
