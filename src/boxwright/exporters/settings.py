"""Settings of exporting."""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum
from pathlib import Path

from boxwright.base.settings import setting

_REFUSED = "Refused: `boxwright export --context` puts a camera's memory into the file instead."


class Nms(str, Enum):
    """Where suppression happens."""

    OPERATOR = "operator"
    PADDED = "padded"
    NONE = "none"


class Precision(str, Enum):
    """The export's arithmetic."""

    FLOAT32 = "float32"
    INT8 = "int8"


@dataclass(frozen=True, kw_only=True)
class ExportSettings:
    """How a detector is exported; `boxwright export` has an option for each."""

    nms: Nms = setting(
        Nms.OPERATOR,
        "Suppression by the runtime's own operator; padded: by plain tensor operations, if it has none; none: raw "
        "boxes and scores only.",
    )
    allow_difference: bool = setting(
        False, "Also write a file that differs from the detector; its metadata records it."
    )
    allow_edited: bool = setting(False, "With --verify: also compare a file that was modified.")
    precision: Precision = setting(
        Precision.FLOAT32,
        "int8: quantize an ONNX file, calibrated on the pictures; it is written if average precision on the "
        "evaluation data falls by at most 0.01. Layers that cost more are found and stay in float32.",
    )
    context: Path | None = setting(
        None, "For Context R-CNN: a camera's memory, a .npy of `boxwright context build --banks`; part of the file."
    )
    require_license: str = setting(
        "",
        "Stop unless all published weights that the model's own descend from have one of these licenses, as in "
        "Apache-2.0,MIT; a license that is not stated is none.",
    )
    triton: Path | None = setting(None, "With --format onnx: also write this folder as a Triton model repository.")


@dataclass(frozen=True, kw_only=True)
class ExporterFlags:
    """Rarely used flags of TensorFlow's; `boxwright exporter_main_v2` has an option for each."""

    config_override: str = setting("", "Configuration text that overrides the file's.")
    use_side_inputs: bool = setting(False, _REFUSED, flags=("--use_side_inputs/--nouse_side_inputs",))
    side_input_shapes: str = setting("", _REFUSED)
    side_input_types: str = setting("", _REFUSED)
    side_input_names: str = setting("", _REFUSED)

    @property
    def side_inputs(self) -> bool:
        """Whether any side input is requested."""
        return bool(self.use_side_inputs or self.side_input_shapes or self.side_input_types or self.side_input_names)
