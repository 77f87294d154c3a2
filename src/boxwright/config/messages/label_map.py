"""Label maps.

Names, types, defaults and oneofs are those of the TensorFlow Object Detection API.
"""

from boxwright.config.field import Enum, field, number
from boxwright.config.message import Message


class LVISFrequency(Enum):
    """Values of `LVISFrequency`."""

    UNSPECIFIED = 0
    FREQUENT = 1
    COMMON = 2
    RARE = 3

class StringIntLabelMapItemKeypointMap(Message, name="StringIntLabelMapItem.KeypointMap"):
    """One keypoint of a class."""

    id: int = number(0, "[0, 10000)", "Index of the keypoint, unique over the whole label map, from 0.")
    label: str = field("", "Keypoint name, unique over the whole label map.")

class StringIntLabelMapItem(Message):
    """One class of the label map."""

    name: str = field("", "Class name as it appears in the data (class text).")
    id: int = number(0, "[0, inf)", "Class number as it appears in the data; start at 1, 0 is reserved for background.")
    display_name: str = field("", "Readable class name for display; empty = use name.")
    keypoints: list[StringIntLabelMapItemKeypointMap] = field([], "Keypoints of this class.")
    ancestor_ids: list[int] = field([],
        "Ids of the more general classes above this one, for expand_labels_hierarchy.")
    descendant_ids: list[int] = field([],
        "Ids of the more specific classes below this one, for expand_labels_hierarchy.")
    frequency: LVISFrequency = field(LVISFrequency.UNSPECIFIED, "LVIS frequency group of the class: FREQUENT, COMMON, "
        "RARE or UNSPECIFIED.")
    instance_count: int = field(0,
        "Number of annotated objects of this class in the data set (LVIS).",
        no_effect="TensorFlow hands it to LVIS's evaluator, which computes nothing from it")

class StringIntLabelMap(Message):
    """Label map: the list of classes."""

    item: list[StringIntLabelMapItem] = field([], "One class; repeat for each class.")
