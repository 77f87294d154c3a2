"""Where a step makes the program wait for the GPU, and why it still does; nothing else may, and the list only shrinks.

A wait is a place in the package and an operation. `items`, `nonzero` and boolean masks ask the GPU how many there are;
a copy from the CPU of what a list of numbers says waits until the numbers have left.
"""

from __future__ import annotations

__all__ = ["ALWAYS", "DESCRIBED", "REASONS", "STEPS", "Wait"]

Wait = tuple[str, str]

_ARRIVED: Wait = ("training/step.py _read", "Event.synchronize")
_SUPPRESSED: set[Wait] = {
    ("ops/suppression.py _candidates", "item"),
    ("ops/suppression.py _candidates", "nonzero"),
    ("ops/nms.py suppress_classes", "nms"),
}
_PICKED: Wait = ("ops/suppression.py __getitem__", "boolean mask")
_FULL_CLASSES: Wait = ("ops/suppression.py _per_class", "boolean mask")
_MINED: set[Wait] = {("ops/nms.py suppress_batch", "nonzero"), ("ops/nms.py suppress_batch", "nms")}
_NEAR: set[Wait] = {
    ("ops/nms.py _nearly_equal", "item"),
    ("ops/nms.py _nearly_equal", "nonzero"),
    ("ops/nms.py _nearly_equal", "boolean mask"),
}
_VALID: Wait = ("models/valid_rows.py of_valid_rows", "item")
# Of every family: the numbers of the step before, which were sent on their way when it ended.
ALWAYS: set[Wait] = {_ARRIVED}

# Of a step, by family.
STEPS: dict[str, set[Wait]] = {
    "ssd, mined": _MINED | _NEAR,
    "faster_rcnn": _SUPPRESSED | {_PICKED},
    "faster_rcnn, one map": _SUPPRESSED | {_PICKED},
    "faster_rcnn, options": _SUPPRESSED | {_FULL_CLASSES} | _MINED,
    "mask_rcnn": _SUPPRESSED | {_PICKED} | {_VALID},
    "mask_rcnn, paper": _SUPPRESSED | {_PICKED, _FULL_CLASSES, _VALID},
    "rfcn": _SUPPRESSED | {_PICKED},
    "proposals": _SUPPRESSED | {_PICKED},
}
# What a step that is described for the log waits for, beside that: each hundredth.
DESCRIBED: set[Wait] = {("criteria/anchor.py describe", "boolean mask")}

REASONS: dict[Wait, str] = {
    _ARRIVED: "losses of the step before are read while this one runs; an update that is not finite was left out by the GPU",
    **dict.fromkeys(
        _SUPPRESSED, "greedy suppression looks at ever more of the best candidates until the image is full"
    ),
    _PICKED: "boxes that clipping leaves without area are dropped, not masked",
    _FULL_CLASSES: "candidates of classes that are full are dropped, not masked",
    **dict.fromkeys(_MINED, "hard examples are suppressed greedily, image by image"),
    **dict.fromkeys(_NEAR, "near an overlap of 1 those that overlap at all are looked for first"),
    _VALID: "padding is not shown to the mask head, where there is any",
    **dict.fromkeys(DESCRIBED, "distributions of losses are of some anchors; only each hundredth step is described"),
}
