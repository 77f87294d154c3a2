"""TensorFlow graph rewriting (quantization-aware training).

Names, types, defaults and oneofs are those of the TensorFlow Object Detection API.
"""

from typing import ClassVar

from pydantic import Field

from boxwright.config.message import Bool, Int32, Message

__all__ = ["GraphRewriter", "Quantization"]


class Quantization(Message):
    """Quantization-aware training (TF1 graph rewriting)."""

    proto_name: ClassVar[str] = "Quantization"

    delay: Int32 = Field(500000, description="Training step at which simulated quantization starts.")
    weight_bits: Int32 = Field(8, description="Bits per weight; only 8 is supported.")
    activation_bits: Int32 = Field(8, description="Bits per activation; only 8 is supported.")
    symmetric: Bool = Field(False, description="Use value ranges centered on 0.")


class GraphRewriter(Message):
    """Changes made to the model graph, such as quantization-aware training."""

    proto_name: ClassVar[str] = "GraphRewriter"

    quantization: Quantization | None = Field(None, description="Train with simulated 8-bit quantization.")
