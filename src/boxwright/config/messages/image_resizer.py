"""How images reach the size of the network.

Names, types, defaults and oneofs are those of the TensorFlow Object Detection API.
"""

from boxwright.config.field import Enum, field, number
from boxwright.config.message import Message
from boxwright.config.rules import ordered, refuse


class ResizeType(Enum):
    """Values of `ResizeType`; BILINEAR_ANTIALIASED, which weighs all pixels that a new one covers, is ours."""

    BILINEAR = 0
    NEAREST_NEIGHBOR = 1
    BICUBIC = 2
    AREA = 3
    BILINEAR_ANTIALIASED = 4

class ConditionalShapeResizerResizeCondition(Enum):
    """Values of `ConditionalShapeResizer.ResizeCondition`."""

    INVALID = 0
    GREATER = 1
    SMALLER = 2

class KeepAspectRatioResizer(Message):
    """Scales an image so its sides fall in a range, keeping its proportions."""

    min_dimension: int = number(600, "[1, 32768]",
        "Target length of the shorter side, px, unless the longer side would exceed max_dimension.")
    max_dimension: int = number(1024, "[1, 32768]", "Upper limit on the longer side, px.")
    resize_method: ResizeType = field(ResizeType.BILINEAR, "Interpolation used when resizing the image.")
    pad_to_max_dimension: bool = field(False, "Pad bottom and right so the result is max_dimension x max_dimension px.")
    convert_to_grayscale: bool = field(False, "Convert the resized image to a single grayscale channel.")
    per_channel_pad_value: list[float] = number([], "(-inf, inf)",
        "Pixel value used for padding, one per channel; 0 for each when unset.", length=3)
    half_pixel_centers: bool = field(False, "Ours: resize bilinearly between pixel centers, and cut sides off to "
        "whole pixels, as torchvision and kerod do; false as TensorFlow does.")

    rules = (
        ordered("min_dimension", "max_dimension"),
        refuse("half_pixel_centers", "only with resize_method: BILINEAR",
            when=lambda c: c.half_pixel_centers and c.resize_method.name != "BILINEAR"),
    )

class FixedShapeResizer(Message):
    """Stretches every image to one size, ignoring proportions."""

    height: int = number(300, "[1, 32768]", "Output height, px.")
    width: int = number(300, "[1, 32768]", "Output width, px.")
    resize_method: ResizeType = field(ResizeType.BILINEAR, "Interpolation used when resizing the image.")
    convert_to_grayscale: bool = field(False, "Convert the resized image to a single grayscale channel.")

class IdentityResizer(Message):
    """Passes images through at their original size; has no fields."""

class ConditionalShapeResizer(Message):
    """Resizes an image only if it is too large or too small, keeping its proportions."""

    condition: ConditionalShapeResizerResizeCondition = field(ConditionalShapeResizerResizeCondition.GREATER,
        "GREATER shrinks images whose longer side exceeds the threshold; SMALLER enlarges by shorter side.")
    size_threshold: int = number(300, "[0, 32768]",
        "Threshold on the side length, px, and the length that side is resized to.")
    resize_method: ResizeType = field(ResizeType.BILINEAR, "Interpolation used when resizing the image.")
    convert_to_grayscale: bool = field(False, "Convert the resized image to a single grayscale channel.")

    rules = (
        refuse("", "expected condition GREATER or SMALLER, and a positive threshold",
            when=lambda c: c.condition.name == "INVALID" or c.size_threshold < 1),
    )

class PadToMultipleResizer(Message):
    """Pads an image with zeros at the bottom and right to a multiple; no scaling."""

    multiple: int = number(1, "[0, 32768]",
        "Height and width are padded up to a multiple of this, px; use 1 for no padding.")
    convert_to_grayscale: bool = field(False, "Convert the image to a single grayscale channel.")

    rules = (
        refuse("multiple", "expected at least 1, found {multiple}", when=lambda c: c.multiple < 1),
    )

class ImageResizer(Message, oneof="image_resizer_oneof"):
    """How input images are resized; set exactly one field."""

    keep_aspect_ratio_resizer: KeepAspectRatioResizer | None = field(None,
        "Scale within a size range without distorting the image.")
    fixed_shape_resizer: FixedShapeResizer | None = field(None, "Stretch every image to one fixed height and width.")
    identity_resizer: IdentityResizer | None = field(None, "Leave the image size unchanged.")
    conditional_shape_resizer: ConditionalShapeResizer | None = field(None,
        "Resize only images above or below a size threshold.")
    pad_to_multiple_resizer: PadToMultipleResizer | None = field(None,
        "Pad height and width up to a multiple of a given number.")


def sides_problem(resizer: ImageResizer | None, unit: int, meaning: str = "") -> str:
    """Return why a resizer's images have sides that are not multiples of a number; empty if they have.

    Args:
        resizer: A message without one is another rule's matter.
        unit: The number.
        meaning: What it is made of, as the message ends where it names a wrong side.
    """
    chosen = resizer.which("image_resizer_oneof") if resizer is not None else None
    if resizer is None or chosen is None:
        return ""
    settings = getattr(resizer, chosen)
    sides: dict[str, tuple[str, ...]] = {
        "fixed_shape_resizer": ("height", "width"),
        "pad_to_multiple_resizer": ("multiple",),
        "keep_aspect_ratio_resizer": ("max_dimension",),
    }
    if chosen not in sides or (chosen == "keep_aspect_ratio_resizer" and not settings.pad_to_max_dimension):
        return f"inputs need sides that are multiples of {unit}; use fixed_shape_resizer"
    values = {name: getattr(settings, name) for name in sides[chosen]}
    wrong = next((f"{name} {value}" for name, value in values.items() if value % unit), "")
    return f"inputs need sides that are multiples of {unit}{meaning}, found {wrong}" if wrong else ""
