"""TensorFlow graph rewriting (quantization-aware training).

Names, types, defaults and oneofs are those of the TensorFlow Object Detection API.
"""

from boxwright.config.field import field
from boxwright.config.message import Message
from boxwright.config.reasons import QUANTIZATION


class Quantization(Message):
    """Quantization-aware training (TF1 graph rewriting)."""

    delay: int = field(500000, "Training step at which simulated quantization starts.", no_effect=QUANTIZATION)
    weight_bits: int = field(8, "Bits per weight; only 8 is supported.", no_effect=QUANTIZATION)
    activation_bits: int = field(8, "Bits per activation; only 8 is supported.", no_effect=QUANTIZATION)
    symmetric: bool = field(False, "Use value ranges centered on 0.", no_effect=QUANTIZATION)

class GraphRewriter(Message):
    """Changes made to the model graph, such as quantization-aware training."""

    quantization: Quantization | None = field(None, "Train with simulated 8-bit quantization.", no_effect=QUANTIZATION)
