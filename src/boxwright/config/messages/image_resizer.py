"""How images reach the size of the network.

Names, types, defaults and oneofs are those of the TensorFlow Object Detection API.
"""

from typing import ClassVar

from boxwright.config.field import Field
from boxwright.config.message import Bool, Enum, Finite, Int32, Message


class ResizeType(Enum):
    """Values of `ResizeType`."""

    BILINEAR = 0
    NEAREST_NEIGHBOR = 1
    BICUBIC = 2
    AREA = 3


class ConditionalShapeResizerResizeCondition(Enum):
    """Values of `ConditionalShapeResizer.ResizeCondition`."""

    INVALID = 0
    GREATER = 1
    SMALLER = 2


class KeepAspectRatioResizer(Message):
    """Scales an image so its sides fall in a range, keeping its proportions."""

    proto_name: ClassVar[str] = "KeepAspectRatioResizer"

    min_dimension: Int32 = Field(
        600,
        ge=0,
        le=32768,
        description="Target length of the shorter side, px, unless the longer side would exceed max_dimension.",
    )
    max_dimension: Int32 = Field(1024, ge=0, le=32768, description="Upper limit on the longer side, px.")
    resize_method: ResizeType = Field(ResizeType.BILINEAR, description="Interpolation used when resizing the image.")
    pad_to_max_dimension: Bool = Field(
        False, description="Pad bottom and right so the result is max_dimension x max_dimension px."
    )
    convert_to_grayscale: Bool = Field(False, description="Convert the resized image to a single grayscale channel.")
    per_channel_pad_value: list[Finite] = Field(
        default_factory=list, description="Pixel value used for padding, one per channel; 0 for each when unset."
    )
    half_pixel_centers: Bool = Field(
        False,
        description="Ours: resize bilinearly between pixels' centres, and cut sides off to whole pixels, as torchvision "
        "and kerod do; false as TensorFlow does.",
    )


class FixedShapeResizer(Message):
    """Stretches every image to one size, ignoring proportions."""

    proto_name: ClassVar[str] = "FixedShapeResizer"

    height: Int32 = Field(300, ge=1, le=32768, description="Output height, px.")
    width: Int32 = Field(300, ge=1, le=32768, description="Output width, px.")
    resize_method: ResizeType = Field(ResizeType.BILINEAR, description="Interpolation used when resizing the image.")
    convert_to_grayscale: Bool = Field(False, description="Convert the resized image to a single grayscale channel.")


class IdentityResizer(Message):
    """Passes images through at their original size; has no fields."""

    proto_name: ClassVar[str] = "IdentityResizer"


class ConditionalShapeResizer(Message):
    """Resizes an image only if it is too large or too small, keeping its proportions."""

    proto_name: ClassVar[str] = "ConditionalShapeResizer"

    condition: ConditionalShapeResizerResizeCondition = Field(
        ConditionalShapeResizerResizeCondition.GREATER,
        description="GREATER shrinks images whose longer side exceeds the threshold; SMALLER enlarges by shorter side.",
    )
    size_threshold: Int32 = Field(
        300, ge=0, le=32768, description="Threshold on the side length, px, and the length that side is resized to."
    )
    resize_method: ResizeType = Field(ResizeType.BILINEAR, description="Interpolation used when resizing the image.")
    convert_to_grayscale: Bool = Field(False, description="Convert the resized image to a single grayscale channel.")


class PadToMultipleResizer(Message):
    """Pads an image with zeros at the bottom and right to a multiple; no scaling."""

    proto_name: ClassVar[str] = "PadToMultipleResizer"

    multiple: Int32 = Field(
        1, le=32768, ge=0, description="Height and width are padded up to a multiple of this, px; use 1 for no padding."
    )
    convert_to_grayscale: Bool = Field(False, description="Convert the image to a single grayscale channel.")


class ImageResizer(Message):
    """How input images are resized; set exactly one field."""

    proto_name: ClassVar[str] = "ImageResizer"
    oneofs: ClassVar[dict[str, tuple[str, ...]]] = {
        "image_resizer_oneof": (
            "keep_aspect_ratio_resizer",
            "fixed_shape_resizer",
            "identity_resizer",
            "conditional_shape_resizer",
            "pad_to_multiple_resizer",
        )
    }

    keep_aspect_ratio_resizer: KeepAspectRatioResizer | None = Field(
        None, description="Scale within a size range without distorting the image."
    )
    fixed_shape_resizer: FixedShapeResizer | None = Field(
        None, description="Stretch every image to one fixed height and width."
    )
    identity_resizer: IdentityResizer | None = Field(None, description="Leave the image size unchanged.")
    conditional_shape_resizer: ConditionalShapeResizer | None = Field(
        None, description="Resize only images above or below a size threshold."
    )
    pad_to_multiple_resizer: PadToMultipleResizer | None = Field(
        None, description="Pad height and width up to a multiple of a given number."
    )
