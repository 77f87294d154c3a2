"""TensorFlow graph rewriting (quantization-aware training).

Names, types, defaults and oneofs are those of the TensorFlow Object Detection API.
"""

from typing import ClassVar

from boxwright.config.field import Field
from boxwright.config.message import Bool, Int32, Message
from boxwright.config.reasons import QUANTIZATION


class Quantization(Message):
    """Quantization-aware training (TF1 graph rewriting)."""

    proto_name: ClassVar[str] = "Quantization"

    delay: Int32 = Field(
        500000, no_effect=QUANTIZATION, description="Training step at which simulated quantization starts."
    )
    weight_bits: Int32 = Field(8, no_effect=QUANTIZATION, description="Bits per weight; only 8 is supported.")
    activation_bits: Int32 = Field(8, no_effect=QUANTIZATION, description="Bits per activation; only 8 is supported.")
    symmetric: Bool = Field(False, no_effect=QUANTIZATION, description="Use value ranges centered on 0.")


class GraphRewriter(Message):
    """Changes made to the model graph, such as quantization-aware training."""

    proto_name: ClassVar[str] = "GraphRewriter"

    quantization: Quantization | None = Field(
        None, no_effect=QUANTIZATION, description="Train with simulated 8-bit quantization."
    )
