"""Anchors.

Names, types, defaults and oneofs are those of the TensorFlow Object Detection API.
"""

from boxwright.config.field import UInt32, field, number
from boxwright.config.message import Message
from boxwright.config.rules import refuse

ONE_A_LAYER = "expected none, or one a layer ({num_layers}) for height and width alike"

class GridAnchorGenerator(Message):
    """Same set of anchors at every cell of one feature map."""

    height: int = number(256, "[1, 32768]", "Height of the base anchor, px, at scale 1 and aspect ratio 1.")
    width: int = number(256, "[1, 32768]", "Width of the base anchor, px, at scale 1 and aspect ratio 1.")
    height_stride: int = number(16, "[0, 65536]", "Vertical distance between anchor centers, px.")
    width_stride: int = number(16, "[0, 65536]", "Horizontal distance between anchor centers, px.")
    height_offset: int = number(0, "[-65536, 65536]", "Vertical position of the first anchor center, px.")
    width_offset: int = number(0, "[-65536, 65536]", "Horizontal position of the first anchor center, px.")
    scales: list[float] = number([], "(0, inf)",
        "Size factors applied to the base anchor; each is combined with each aspect ratio.")
    aspect_ratios: list[float] = number([], "(0, inf)",
        "Width divided by height of the anchors; each is combined with each scale.")

class SsdAnchorGenerator(Message):
    """Anchors for a series of feature maps, small on fine maps and large on coarse ones."""

    num_layers: int = number(6, "[1, 64]", "Number of feature maps that get anchors.")
    min_scale: float = number(0.2, "[0, inf)",
        "Anchor size on the finest map, as a fraction of the base anchor; unused if scales is set.")
    max_scale: float = number(0.95, "[0, inf)",
        "Anchor size on the coarsest map, as a fraction of the base anchor; unused if scales is set.")
    scales: list[float] = number([], "(0, inf)",
        "Anchor size of each map, finest first, one per layer; replaces min_scale and max_scale.")
    aspect_ratios: list[float] = number([], "(0, inf)", "Width divided by height of the anchors on each map.")
    interpolated_scale_aspect_ratio: float = number(1.0, "[0, inf)",
        "Aspect ratio of one extra anchor sized between this map and the next; 0 for none.")
    reduce_boxes_in_lowest_layer: bool = field(True, "Use a fixed set of only 3 anchors per cell on the finest map.")
    base_anchor_height: float = number(1.0, "(0, inf)",
        "Height of the anchor at scale 1, as a fraction of the shorter image side.")
    base_anchor_width: float = number(1.0, "(0, inf)",
        "Width of the anchor at scale 1, as a fraction of the shorter image side.")
    height_stride: list[int] = field([],
        "Vertical distance between anchor centers, px, one per layer; from the map size when unset.")
    width_stride: list[int] = field([],
        "Horizontal distance between anchor centers, px, one per layer; from the map size when unset.")
    height_offset: list[int] = field([],
        "Vertical position of the first anchor center, px, one per layer; half a stride when unset.")
    width_offset: list[int] = field([],
        "Horizontal position of the first anchor center, px, one per layer; half a stride when unset.")

    first_release: bool = field(False,
        "Ours: anchors of the API's first release, June to November 2017: the interpolated one is a square and follows "
        "the square, where later releases append it; sizes are fractions of the image's own height and width.")

    rules = (
        refuse("interpolated_scale_aspect_ratio", "first_release: true interpolates squares alone; remove this field",
            when=lambda c: c.first_release and c.interpolated_scale_aspect_ratio != 1),
        refuse("scales", "{num_layers} layers, but scales are {scales}",
            when=lambda c: c.scales and len(c.scales) != c.num_layers),
        refuse("height_stride", ONE_A_LAYER, when=lambda c: not _one_a_layer(c, c.height_stride, c.width_stride)),
        refuse("height_offset", ONE_A_LAYER, when=lambda c: not _one_a_layer(c, c.height_offset, c.width_offset)),
    )

class MultiscaleAnchorGenerator(Message):
    """Anchors for pyramid levels; anchor size doubles from one level to the next."""

    min_level: int = number(3, "[0, 16]", "Finest pyramid level with anchors; must agree with the feature extractor.")
    max_level: int = number(7, "[0, 16]", "Coarsest pyramid level with anchors; must agree with the feature extractor.")
    anchor_scale: float = number(4.0, "(0, inf)",
        "Smallest anchor size on a level, in strides of that level (anchor side = scale * 2^level px).")
    aspect_ratios: list[float] = number([], "(0, inf)",
        "Width divided by height of the anchors; each is combined with each scale.")
    scales_per_octave: int = number(2, "[1, 64]",
        "Number of anchor sizes per level, evenly spaced in log scale up to twice the first.")
    normalize_coordinates: bool = field(True,
        "Give anchors as fractions of the image (0..1) instead of pixels.",
        note="anchors are in pixels throughout; of a two-stage detector it must be false, as in TensorFlow")

class AnchorGrid(Message):
    """Anchors of one feature map."""

    base_sizes: list[float] = number([], "(0, inf)",
        "Anchor sizes, px; entry i goes with aspect_ratios entry i to make one anchor.")
    aspect_ratios: list[float] = number([], "(0, inf)",
        "Width divided by height of each anchor, as many as base_sizes.")
    height_stride: UInt32 = number(0, "[0, 65536]", "Vertical distance between anchor centers, px.")
    width_stride: UInt32 = number(0, "[0, 65536]", "Horizontal distance between anchor centers, px.")
    height_offset: UInt32 = number(0, "[-65536, 65536]", "Vertical position of the first anchor center, px.")
    width_offset: UInt32 = number(0, "[-65536, 65536]", "Horizontal position of the first anchor center, px.")

    rules = (
        refuse("", "expected as many base_sizes as aspect_ratios, or one of either",
            when=lambda c: not (c.base_sizes and c.aspect_ratios)
            or {len(c.base_sizes), len(c.aspect_ratios)} - {1, max(len(c.base_sizes), len(c.aspect_ratios))}),
        refuse("", "set height_stride and width_stride", when=lambda c: not (c.height_stride and c.width_stride)),
    )

class FlexibleGridAnchorGenerator(Message):
    """Anchors listed separately for every feature map."""

    anchor_grid: list[AnchorGrid] = field([],
        "Anchors of one feature map; one entry per map, in the order of the maps.")
    normalize_coordinates: bool = field(True,
        "Give anchors as fractions of the image (0..1) instead of pixels.",
        no_effect="anchors are in pixels throughout")

class AnchorGenerator(Message, oneof="anchor_generator_oneof"):
    """How anchor boxes are laid out; set exactly one field."""

    grid_anchor_generator: GridAnchorGenerator | None = field(None,
        "One grid of anchors on a single feature map (classic Faster R-CNN).")
    ssd_anchor_generator: SsdAnchorGenerator | None = field(None,
        "Anchors for several feature maps with linearly growing scale (classic SSD).")
    multiscale_anchor_generator: MultiscaleAnchorGenerator | None = field(None,
        "Anchors for each pyramid level (RetinaNet, EfficientDet, FPN models).")
    flexible_grid_anchor_generator: FlexibleGridAnchorGenerator | None = field(None,
        "Anchors written out separately for each feature map.")


def _one_a_layer(config: SsdAnchorGenerator, heights: list[int], widths: list[int]) -> bool:
    return {len(heights), len(widths)} in ({0}, {config.num_layers})
