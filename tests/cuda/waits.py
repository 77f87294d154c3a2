"""Where a step makes the program wait for the GPU, and why it still does; nothing else may, and the list only shrinks.

A wait is a place in the package and an operation. `items`, `nonzero` and boolean masks ask the GPU how many there are;
a copy from the CPU of what a list of numbers says waits until the numbers have left.
"""

from __future__ import annotations

Wait = tuple[str, str]

_ARRIVED: Wait = ("training/step.py _read", "Event.synchronize")
_SUPPRESSED: set[Wait] = {("nn/suppression/image_by_image.py incomplete_images", "copy to the CPU")}
_GREEDY: Wait = ("nn/suppression/image_by_image.py suppress_classes", "nms")
_ALL_MINED: Wait = ("nn/criteria/example_selection.py suppress_batch", "item")
_MINED: set[Wait] = {_ALL_MINED}
_VALID: Wait = ("families/two_stage/second_stage.py of_valid_rows", "item")
_MATCHED: Wait = ("types/packing.py fetched", "copy to the CPU")
# Of every family: the numbers of the step before, which were sent on their way when it ended.
ALWAYS: set[Wait] = {_ARRIVED}

# Of a step, by family.
STEPS: dict[str, set[Wait]] = {
    "ssd, mined": _MINED,
    "faster_rcnn": _SUPPRESSED,
    "faster_rcnn, one map": _SUPPRESSED,
    "faster_rcnn, options": _SUPPRESSED | _MINED,
    "mask_rcnn": _SUPPRESSED | {_VALID},
    "mask_rcnn, paper": _SUPPRESSED | {_VALID},
    "rfcn": _SUPPRESSED,
    "proposals": _SUPPRESSED,
}
# What steps wait for beside that where Triton does not compile.
WITHOUT_TRITON: dict[str, set[Wait]] = {"ssd, mined": {_GREEDY}, "d_fine": {_MATCHED}, "rf_detr": {_MATCHED}}
# How often a step waits at most, beside the numbers of the step before: once for each of these.
MOST = {"faster_rcnn, options": 2, "mask_rcnn": 2, "mask_rcnn, paper": 2}
# What a step that is described for the log waits for, beside that: each hundredth.
DESCRIBED: set[Wait] = {("nn/criteria/anchor.py describe", "boolean mask")}

REASONS: dict[Wait, str] = {
    _ARRIVED: "losses of the step before are read while this one runs; an update that is not finite was left out by the GPU",
    _GREEDY: "without Triton: how many boxes torchvision's kernel keeps is not known before; once for up to 8,192 boxes or one image",
    (
        "nn/suppression/image_by_image.py incomplete_images",
        "copy to the CPU",
    ): "images of which more than the best candidates could matter are suppressed one by one, and without Triton those whose chains of overlaps are long",
    _ALL_MINED: "where more than the costliest anchors could matter images are mined one by one",
    _MATCHED: "without Triton: queries are matched with objects on the CPU: the costs of all sets of outputs come in one copy",
    _VALID: "padding is not shown to the mask head, where there is any",
    **dict.fromkeys(DESCRIBED, "distributions of losses are of some anchors; only each hundredth step is described"),
}
