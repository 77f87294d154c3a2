"""The values that pass between the rooms.

Conventions, everywhere inside Boxwright: boxes are `x_min, y_min, x_max, y_max` in pixels, float32,
with continuous coordinates (a box that covers a whole 4×3 image is `0, 0, 4, 3`); labels are
0-based indices of foreground classes; a class's id, as its label map or COCO file has it, lives in
`Categories` alone.
"""

from boxwright.types.categories import Categories, Category
from boxwright.types.detections import Detections, PaddedDetections
from boxwright.types.predictions import (
    AnchorPredictions,
    CascadePredictions,
    FinalFeatures,
    InstancePredictions,
    Proposals,
    RawDetections,
    RegionPredictions,
    TwoStagePredictions,
)
from boxwright.types.sample import Sample
from boxwright.types.targets import Targets

__all__ = [
    "AnchorPredictions",
    "Categories",
    "Category",
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
