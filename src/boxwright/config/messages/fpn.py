"""Feature pyramids.

Names, types, defaults and oneofs are those of the TensorFlow Object Detection API.
"""

from typing import ClassVar

from boxwright.config.field import Field, Values
from boxwright.config.message import Bool, Int32, Message, String


class FeaturePyramidNetworks(Message):
    """Feature pyramid (FPN) on top of the backbone; level n has a stride of 2^n px."""

    proto_name: ClassVar[str] = "FeaturePyramidNetworks"

    min_level: Int32 = Field(3, ge=0, le=16, description="Finest pyramid level, e.g. 3 for a stride of 8 px.")
    max_level: Int32 = Field(
        7, ge=0, le=16, description="Coarsest pyramid level, e.g. 7 for a stride of 128 px; not below min_level."
    )
    additional_layer_depth: Int32 = Field(256, ge=1, le=8192, description="Channels of every pyramid level.")


class BidirectionalFeaturePyramidNetworks(Message):
    """Settings of a BiFPN, the repeated two-way feature pyramid of EfficientDet."""

    proto_name: ClassVar[str] = "BidirectionalFeaturePyramidNetworks"

    min_level: Int32 = Field(3, ge=0, le=16, description="Finest pyramid level; level L has stride 2^L pixels.")
    max_level: Int32 = Field(7, ge=0, le=16, description="Coarsest pyramid level; level L has stride 2^L pixels.")
    num_iterations: Int32 = Field(
        0, ge=0, le=64, description="How many times the top-down plus bottom-up block is stacked."
    )
    num_filters: Int32 = Field(0, ge=0, le=8192, description="Channels of every BiFPN feature map.")
    combine_method: String = Field(
        "fast_attention",
        values=Values(("fast_attention", "attention", "weighted_sum", "sum")),
        note="attention computes what sum does, as in TF, whose softmax runs over one element",
        description="How a node merges its inputs: fast_attention, attention, weighted_sum or sum.",
    )
    use_native_resize_op: Bool = Field(
        False,
        no_effect="the same pixels by another operation",
        description="Upsample with TensorFlow's nearest resize op instead of the tiled reshape.",
    )
