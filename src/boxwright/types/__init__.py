"""The data types shared by all packages.

Conventions throughout Boxwright: boxes are `x_min, y_min, x_max, y_max` in pixels, float32, with continuous coordinates
(a box that covers a whole 4×3 image is `0, 0, 4, 3`); labels are 0-based indices of foreground classes; class ids, as
in label maps or COCO files, exist only in `Categories`.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from boxwright.types.categories import Categories, Category
    from boxwright.types.detections import Array, DetectFunction, Detections
    from boxwright.types.padded_detections import PaddedDetections, RawDetections
    from boxwright.types.predictions import (
        AnchorPredictions,
        CascadePredictions,
        FinalFeatures,
        InstancePredictions,
        Proposals,
        RegionPredictions,
        TwoStagePredictions,
    )
    from boxwright.types.sample import Sample
    from boxwright.types.targets import Targets

__all__ = [
    "AnchorPredictions",
    "Array",
    "Categories",
    "Category",
    "DetectFunction",
    "Detections",
    "FinalFeatures",
    "InstancePredictions",
    "PaddedDetections",
    "Proposals",
    "RawDetections",
    "CascadePredictions",
    "RegionPredictions",
    "Sample",
    "Targets",
    "TwoStagePredictions",
]

# Module of each name. Names are imported lazily: some need PyTorch, which the runtime of exported detectors avoids.
_HOMES = {
    "boxwright.types.categories": ("Categories", "Category"),
    "boxwright.types.detections": ("Array", "DetectFunction", "Detections"),
    "boxwright.types.padded_detections": ("PaddedDetections", "RawDetections"),
    "boxwright.types.predictions": (
        "AnchorPredictions",
        "CascadePredictions",
        "FinalFeatures",
        "InstancePredictions",
        "Proposals",
        "RegionPredictions",
        "TwoStagePredictions",
    ),
    "boxwright.types.sample": ("Sample",),
    "boxwright.types.targets": ("Targets",),
}


def __getattr__(name: str) -> Any:
    for module, names in _HOMES.items():
        if name in names:
            return getattr(import_module(module), name)
    raise AttributeError(f"module 'boxwright.types' has no attribute {name!r}")
