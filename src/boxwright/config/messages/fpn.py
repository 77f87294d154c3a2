"""Feature pyramids.

Names, types, defaults and oneofs are those of the TensorFlow Object Detection API.
"""

from boxwright.config.field import AllowedValues, field, number
from boxwright.config.message import Message
from boxwright.config.rules import ordered, refuse


class FeaturePyramidNetworks(Message):
    """Feature pyramid (FPN) on top of the backbone; level n has a stride of 2^n px."""

    min_level: int = number(3, "[2, 5]", "Finest pyramid level, e.g. 3 for a stride of 8 px.")
    max_level: int = number(7, "[0, 16]", "Coarsest pyramid level, e.g. 7 for a stride of 128 px; not below min_level.")
    additional_layer_depth: int = number(256, "[1, 8192]", "Channels of every pyramid level.")

    rules = (ordered("min_level", "max_level"),)

class BidirectionalFeaturePyramidNetworks(Message):
    """Settings of a BiFPN, the repeated two-way feature pyramid of EfficientDet."""

    min_level: int = number(3, "[1, 5]", "Finest pyramid level; level L has stride 2^L pixels.")
    max_level: int = number(7, "[0, 16]", "Coarsest pyramid level; level L has stride 2^L pixels.")
    num_iterations: int = number(0, "[0, 64]", "How many times the top-down plus bottom-up block is stacked.")
    num_filters: int = number(0, "[0, 8192]", "Channels of every BiFPN feature map.")
    combine_method: str = field("fast_attention",
        "How a node merges its inputs: fast_attention, attention, weighted_sum or sum.",
        values=AllowedValues(('fast_attention', 'attention', 'weighted_sum', 'sum')),
        note="attention computes what sum does, as in TF, whose softmax runs over one element")
    use_native_resize_op: bool = field(False, "Upsample with TensorFlow's nearest resize op instead of the tiled "
        "reshape.", no_effect="the same pixels by another operation")

    rules = (
        ordered("min_level", "max_level"),
        refuse("num_iterations", "expected at least 1, found {num_iterations}", when=lambda c: c.num_iterations < 1),
    )
