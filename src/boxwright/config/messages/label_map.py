"""Label maps.

Names, types, defaults and oneofs are those of the TensorFlow Object Detection API.
"""

from typing import ClassVar

from boxwright.config.field import Field
from boxwright.config.message import Enum, Int32, Message, String


class LVISFrequency(Enum):
    """Values of `LVISFrequency`."""

    UNSPECIFIED = 0
    FREQUENT = 1
    COMMON = 2
    RARE = 3


class StringIntLabelMapItemKeypointMap(Message):
    """One keypoint of a class."""

    proto_name: ClassVar[str] = "StringIntLabelMapItem.KeypointMap"

    id: Int32 = Field(0, description="Index of the keypoint, unique over the whole label map, from 0.")
    label: String = Field("", description="Keypoint name, unique over the whole label map.")


class StringIntLabelMapItem(Message):
    """One class of the label map."""

    proto_name: ClassVar[str] = "StringIntLabelMapItem"

    name: String = Field("", description="Class name as it appears in the data (class text).")
    id: Int32 = Field(
        0, ge=0, description="Class number as it appears in the data; start at 1, 0 is reserved for background."
    )
    display_name: String = Field("", description="Readable class name for display; empty = use name.")
    keypoints: list[StringIntLabelMapItemKeypointMap] = Field(
        default_factory=list, description="Keypoints of this class."
    )
    ancestor_ids: list[Int32] = Field(
        default_factory=list,
        no_effect="only read with expand_labels_hierarchy",
        description="Ids of the more general classes above this one.",
    )
    descendant_ids: list[Int32] = Field(
        default_factory=list,
        no_effect="only read with expand_labels_hierarchy",
        description="Ids of the more specific classes below this one.",
    )
    frequency: LVISFrequency = Field(
        LVISFrequency.UNSPECIFIED,
        no_effect="only read by the LVIS evaluator",
        description="LVIS frequency group of the class: FREQUENT, COMMON, RARE or UNSPECIFIED.",
    )
    instance_count: Int32 = Field(
        0,
        no_effect="only read by the LVIS evaluator",
        description="Number of annotated objects of this class in the data set (LVIS).",
    )


class StringIntLabelMap(Message):
    """Label map: the list of classes."""

    proto_name: ClassVar[str] = "StringIntLabelMap"

    item: list[StringIntLabelMapItem] = Field(default_factory=list, description="One class; repeat for each class.")
