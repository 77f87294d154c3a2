"""Settings of exporting."""

from __future__ import annotations

import re
from dataclasses import dataclass
from enum import Enum
from pathlib import Path
from typing import Any

from boxwright.base.errors import ExportError
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
    FLOAT16 = "float16"
    INT8 = "int8"


# ONNX's versions of operators: ours, and those that PyTorch's exporter converts to.
OPSET, OPSETS = 20, range(18, 24)
_LARGEST_BATCH, _LARGEST_SIDE = 1024, 16384
_HALF_FORMATS = ("onnx", "openvino")
_SIZE = re.compile("([0-9]{1,5})x([0-9]{1,5})")


@dataclass(frozen=True, kw_only=True)
class GraphOptions:
    """What an exported graph computes in, and what it takes; each is a keyword of `export`.

    Attributes:
        precision: "float32"; "float16" for layers in float16; "int8" for convolutions in 8 bits, with `accuracy`.
        opset: ONNX's version of operators.
        batch: How many pictures the graph takes at a time; 0 for any number.
        image_size: The (height, width) of all pictures; empty for any.

    Raises:
        ExportError: For values that no graph can have.
    """

    precision: str = Precision.FLOAT32.value
    opset: int = OPSET
    batch: int = 0
    image_size: tuple[int, ...] = ()

    def __post_init__(self) -> None:
        known = [precision.value for precision in Precision]
        if self.precision not in known:
            raise ExportError(f"precision {self.precision!r}: expected {', '.join(known)}")
        if self.opset not in OPSETS:
            raise ExportError(f"opset {self.opset}: expected {OPSETS[0]} to {OPSETS[-1]}")
        if not 0 <= self.batch <= _LARGEST_BATCH:
            raise ExportError(f"batch {self.batch}: expected 1 to {_LARGEST_BATCH} pictures, or 0 for any number")
        sides = self.image_size
        if sides and not (len(sides) == 2 and all(type(side) is int and 0 < side <= _LARGEST_SIDE for side in sides)):
            raise ExportError(f"image_size {sides}: expected (height, width) in pixels, each up to {_LARGEST_SIDE}")

    def require_expressible(self, format: str, nms: str, *, measured: bool) -> None:
        """Raise an ExportError if a format cannot have the options.

        Args:
            format: A key of `export.FORMATS`.
            nms: Where suppression happens.
            measured: Whether average precision can be measured.

        Raises:
            ExportError: If the format cannot.
        """
        if self.precision == Precision.INT8.value and format != "onnx":
            raise ExportError("int8 requires --format onnx")
        if self.precision == Precision.INT8.value and not measured:
            raise ExportError("precision int8 needs accuracy, which measures what it costs")
        if self.precision == Precision.FLOAT16.value and format not in _HALF_FORMATS:
            raise ExportError(f"--precision float16: expected format {' or '.join(_HALF_FORMATS)}, found {format}")
        if self.precision != Precision.FLOAT32.value and nms == Nms.NONE.value:
            raise ExportError(
                f"--precision {self.precision} --nms none: the file has no detections to compare; remove one, or let "
                "the compiler that reads the file reduce its precision"
            )
        if self.opset != OPSET and format != "onnx":
            raise ExportError(f"--opset: only ONNX files have one, found format {format}")
        if (self.batch or self.image_size) and format == "litert":
            raise ExportError("--batch, --image_size: a LiteRT file always takes one picture, of the network's size")

    def describe_input(self, about: dict[str, Any]) -> dict[str, Any]:
        """Return the metadata of an input with the shape that is fixed, if one is."""
        if not (self.batch or self.image_size):
            return about
        fixed = {"batch": self.batch} if self.batch else {}
        fixed |= dict(zip(("height", "width"), self.image_size, strict=False))
        dtype = about["dtype"]
        for name, side in fixed.items():
            dtype = dtype.replace(name, str(side))
        return {**about, "dtype": dtype, "fixed": fixed}


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
        "float16: layers compute in it, and their weights take half the space (onnx, openvino); the file is written if "
        "average precision on the evaluation data falls by at most 0.01, or without such data if 99 % of the "
        "detections on the pictures are the same. int8: quantize an ONNX file, calibrated on the pictures; it is "
        "written if average precision falls by at most 0.01. Layers that cost more are found and stay in float32.",
    )
    opset: int = setting(OPSET, "ONNX's version of operators.", least=OPSETS[0], most=OPSETS[-1])
    batch: int = setting(
        0, "Take exactly so many pictures at a time, for runtimes that need fixed shapes; 0 for any number.", least=0
    )
    image_size: str = setting("", "Take pictures of this size alone, WIDTHxHEIGHT such as 640x480; default: any size.")
    context: Path | None = setting(
        None, "For Context R-CNN: a camera's memory, a .npy of `boxwright context build --banks`; part of the file."
    )
    require_license: str = setting(
        "",
        "Stop unless all published weights that the model's own descend from have one of these licenses, as in "
        "Apache-2.0,MIT; a license that is not stated is none.",
    )
    triton: Path | None = setting(None, "With --format onnx: also write this folder as a Triton model repository.")

    def to_graph_options(self) -> GraphOptions:
        """Return what of these the graph has; ExportError for a size that is none."""
        size = _SIZE.fullmatch(self.image_size)
        if self.image_size and size is None:
            raise ExportError(f"--image_size {self.image_size}: expected WIDTHxHEIGHT in pixels, such as 640x480")
        sides = () if size is None else (int(size[2]), int(size[1]))
        return GraphOptions(precision=self.precision.value, opset=self.opset, batch=self.batch, image_size=sides)


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
