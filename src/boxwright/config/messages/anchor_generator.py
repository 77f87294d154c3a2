"""Anchors.

Names, types, defaults and oneofs are those of the TensorFlow Object Detection API.
"""

from typing import ClassVar

from boxwright.config.field import Field
from boxwright.config.message import Bool, Float, Int32, Message, Positive, UInt32


class GridAnchorGenerator(Message):
    """Same set of anchors at every cell of one feature map."""

    proto_name: ClassVar[str] = "GridAnchorGenerator"

    height: Int32 = Field(
        256, ge=1, le=32768, description="Height of the base anchor, px, at scale 1 and aspect ratio 1."
    )
    width: Int32 = Field(
        256, ge=1, le=32768, description="Width of the base anchor, px, at scale 1 and aspect ratio 1."
    )
    height_stride: Int32 = Field(16, ge=0, le=65536, description="Vertical distance between anchor centers, px.")
    width_stride: Int32 = Field(16, ge=0, le=65536, description="Horizontal distance between anchor centers, px.")
    height_offset: Int32 = Field(
        0, ge=-65536, le=65536, description="Vertical position of the first anchor center, px."
    )
    width_offset: Int32 = Field(
        0, ge=-65536, le=65536, description="Horizontal position of the first anchor center, px."
    )
    scales: list[Positive] = Field(
        default_factory=list,
        description="Size factors applied to the base anchor; each is combined with each aspect ratio.",
    )
    aspect_ratios: list[Positive] = Field(
        default_factory=list, description="Width divided by height of the anchors; each is combined with each scale."
    )


class SsdAnchorGenerator(Message):
    """Anchors for a series of feature maps, small on fine maps and large on coarse ones."""

    proto_name: ClassVar[str] = "SsdAnchorGenerator"

    num_layers: Int32 = Field(6, ge=1, le=64, description="Number of feature maps that get anchors.")
    min_scale: Float = Field(
        0.2,
        ge=0,
        allow_inf_nan=False,
        description="Anchor size on the finest map, as a fraction of the base anchor; unused if scales is set.",
    )
    max_scale: Float = Field(
        0.95,
        ge=0,
        allow_inf_nan=False,
        description="Anchor size on the coarsest map, as a fraction of the base anchor; unused if scales is set.",
    )
    scales: list[Positive] = Field(
        default_factory=list,
        description="Anchor size of each map, finest first, one per layer; replaces min_scale and max_scale.",
    )
    aspect_ratios: list[Positive] = Field(
        default_factory=list, description="Width divided by height of the anchors on each map."
    )
    interpolated_scale_aspect_ratio: Float = Field(
        1.0,
        ge=0,
        allow_inf_nan=False,
        description="Aspect ratio of one extra anchor sized between this map and the next; 0 for none.",
    )
    reduce_boxes_in_lowest_layer: Bool = Field(
        True, description="Use a fixed set of only 3 anchors per cell on the finest map."
    )
    base_anchor_height: Float = Field(
        1.0,
        gt=0,
        allow_inf_nan=False,
        description="Height of the anchor at scale 1, as a fraction of the shorter image side.",
    )
    base_anchor_width: Float = Field(
        1.0,
        gt=0,
        allow_inf_nan=False,
        description="Width of the anchor at scale 1, as a fraction of the shorter image side.",
    )
    height_stride: list[Int32] = Field(
        default_factory=list,
        description="Vertical distance between anchor centers, px, one per layer; from the map size when unset.",
    )
    width_stride: list[Int32] = Field(
        default_factory=list,
        description="Horizontal distance between anchor centers, px, one per layer; from the map size when unset.",
    )
    height_offset: list[Int32] = Field(
        default_factory=list,
        description="Vertical position of the first anchor center, px, one per layer; half a stride when unset.",
    )
    width_offset: list[Int32] = Field(
        default_factory=list,
        description="Horizontal position of the first anchor center, px, one per layer; half a stride when unset.",
    )


class MultiscaleAnchorGenerator(Message):
    """Anchors for pyramid levels; anchor size doubles from one level to the next."""

    proto_name: ClassVar[str] = "MultiscaleAnchorGenerator"

    min_level: Int32 = Field(
        3, ge=0, le=16, description="Finest pyramid level with anchors; must agree with the feature extractor."
    )
    max_level: Int32 = Field(
        7, ge=0, le=16, description="Coarsest pyramid level with anchors; must agree with the feature extractor."
    )
    anchor_scale: Float = Field(
        4.0,
        gt=0,
        allow_inf_nan=False,
        description="Smallest anchor size on a level, in strides of that level (anchor side = scale * 2^level px).",
    )
    aspect_ratios: list[Positive] = Field(
        default_factory=list, description="Width divided by height of the anchors; each is combined with each scale."
    )
    scales_per_octave: Int32 = Field(
        2,
        ge=1,
        le=64,
        description="Number of anchor sizes per level, evenly spaced in log scale up to twice the first.",
    )
    normalize_coordinates: Bool = Field(
        True,
        note="anchors are in pixels throughout; of a two-stage detector it must be false, as in TensorFlow",
        description="Give anchors as fractions of the image (0..1) instead of pixels.",
    )


class AnchorGrid(Message):
    """Anchors of one feature map."""

    proto_name: ClassVar[str] = "AnchorGrid"

    base_sizes: list[Positive] = Field(
        default_factory=list,
        description="Anchor sizes, px; entry i goes with aspect_ratios entry i to make one anchor.",
    )
    aspect_ratios: list[Positive] = Field(
        default_factory=list, description="Width divided by height of each anchor, as many as base_sizes."
    )
    height_stride: UInt32 = Field(0, ge=0, le=65536, description="Vertical distance between anchor centers, px.")
    width_stride: UInt32 = Field(0, ge=0, le=65536, description="Horizontal distance between anchor centers, px.")
    height_offset: UInt32 = Field(
        0, ge=-65536, le=65536, description="Vertical position of the first anchor center, px."
    )
    width_offset: UInt32 = Field(
        0, ge=-65536, le=65536, description="Horizontal position of the first anchor center, px."
    )


class FlexibleGridAnchorGenerator(Message):
    """Anchors listed separately for every feature map."""

    proto_name: ClassVar[str] = "FlexibleGridAnchorGenerator"

    anchor_grid: list[AnchorGrid] = Field(
        default_factory=list, description="Anchors of one feature map; one entry per map, in the order of the maps."
    )
    normalize_coordinates: Bool = Field(
        True,
        no_effect="anchors are in pixels throughout",
        description="Give anchors as fractions of the image (0..1) instead of pixels.",
    )


class AnchorGenerator(Message):
    """How anchor boxes are laid out; set exactly one field."""

    proto_name: ClassVar[str] = "AnchorGenerator"
    oneofs: ClassVar[dict[str, tuple[str, ...]]] = {
        "anchor_generator_oneof": (
            "grid_anchor_generator",
            "ssd_anchor_generator",
            "multiscale_anchor_generator",
            "flexible_grid_anchor_generator",
        )
    }

    grid_anchor_generator: GridAnchorGenerator | None = Field(
        None, description="One grid of anchors on a single feature map (classic Faster R-CNN)."
    )
    ssd_anchor_generator: SsdAnchorGenerator | None = Field(
        None, description="Anchors for several feature maps with linearly growing scale (classic SSD)."
    )
    multiscale_anchor_generator: MultiscaleAnchorGenerator | None = Field(
        None, description="Anchors for each pyramid level (RetinaNet, EfficientDet, FPN models)."
    )
    flexible_grid_anchor_generator: FlexibleGridAnchorGenerator | None = Field(
        None, description="Anchors written out separately for each feature map."
    )
