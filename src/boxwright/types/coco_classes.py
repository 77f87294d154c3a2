"""The classes of COCO, by which published weights are trained."""

from __future__ import annotations

from collections.abc import Sequence

from boxwright.types import Categories, Category

# In order; ids count from 1 and leave out those of COCO's stuff that no object has.
# fmt: off
_NAMES = (
    "person", "bicycle", "car", "motorcycle", "airplane", "bus", "train", "truck", "boat", "traffic light",
    "fire hydrant", "stop sign", "parking meter", "bench", "bird", "cat", "dog", "horse", "sheep", "cow",
    "elephant", "bear", "zebra", "giraffe", "backpack", "umbrella", "handbag", "tie", "suitcase", "frisbee", "skis",
    "snowboard", "sports ball", "kite", "baseball bat", "baseball glove", "skateboard", "surfboard",
    "tennis racket", "bottle", "wine glass", "cup", "fork", "knife", "spoon", "bowl", "banana", "apple", "sandwich",
    "orange", "broccoli", "carrot", "hot dog", "pizza", "donut", "cake", "chair", "couch", "potted plant", "bed",
    "dining table", "toilet", "tv", "laptop", "mouse", "remote", "keyboard", "cell phone", "microwave", "oven",
    "toaster", "sink", "refrigerator", "book", "clock", "vase", "scissors", "teddy bear", "hair drier",
    "toothbrush",
)
# fmt: on
_NO_OBJECTS = frozenset((12, 26, 29, 30, 45, 66, 68, 69, 71, 83))
_IDS = [number for number in range(1, 91) if number not in _NO_OBJECTS]
# Darknet's names of six of them, which some hub exports have.
_DARKNET = {
    "motorbike": "motorcycle",
    "aeroplane": "airplane",
    "sofa": "couch",
    "pottedplant": "potted plant",
    "diningtable": "dining table",
    "tvmonitor": "tv",
}


def coco_classes() -> Categories:
    """Return COCO's 80 classes, without gaps between labels."""
    rows = enumerate(zip(_IDS, _NAMES, strict=True))
    return Categories(tuple(Category(label, number, name) for label, (number, name) in rows))


def coco_classes_by_id() -> Categories:
    """Return COCO's 80 classes with the gaps of its ids, as networks with an output for each of 90 ids have them."""
    rows = zip(_IDS, _NAMES, strict=True)
    return Categories(tuple(Category(number - 1, number, name) for number, name in rows))


def are_coco_classes(names: Sequence[str]) -> bool:
    """Tell whether names are those of COCO, or Darknet's of them, in order."""
    return [_DARKNET.get(name, name) for name in names] == list(_NAMES)
