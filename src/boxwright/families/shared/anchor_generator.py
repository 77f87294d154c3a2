"""`AnchorGenerator`: the layout of anchors."""

from __future__ import annotations

from collections.abc import Callable

from boxwright.config import messages as m
from boxwright.config.build import build_chosen
from boxwright.nn.anchor_grids import (
    AnchorGenerator,
    AnchorGrid,
    FlexibleGridAnchorGenerator,
    GridAnchorGenerator,
    MultiscaleAnchorGenerator,
    SsdAnchorGenerator,
)


def build_anchor_generator(config: m.AnchorGenerator) -> AnchorGenerator:
    """Build a generator."""
    return build_chosen(config, "anchor_generator_oneof", _GENERATORS)


def _grid(config: m.GridAnchorGenerator) -> AnchorGenerator:
    return GridAnchorGenerator(
        scales=tuple(config.scales) or (0.5, 1.0, 2.0),
        aspect_ratios=tuple(config.aspect_ratios) or (0.5, 1.0, 2.0),
        base_size=(config.height, config.width),
        stride=(config.height_stride, config.width_stride),
        offset=(config.height_offset, config.width_offset),
    )


def _ssd(config: m.SsdAnchorGenerator) -> AnchorGenerator:
    return SsdAnchorGenerator.from_scales(
        _scales(config),
        config.aspect_ratios,
        interpolated_scale_aspect_ratio=config.interpolated_scale_aspect_ratio,
        reduce_boxes_in_lowest_layer=config.reduce_boxes_in_lowest_layer,
        base_size=(config.base_anchor_height, config.base_anchor_width),
        strides=_pairs(config.height_stride, config.width_stride),
        offsets=_pairs(config.height_offset, config.width_offset),
        first_release=config.first_release,
    )


def _scales(config: m.SsdAnchorGenerator) -> list[float]:
    if config.scales:
        return list(config.scales)
    steps = max(config.num_layers - 1, 1)
    span = config.max_scale - config.min_scale
    return [config.min_scale + span * layer / steps for layer in range(config.num_layers)]


def _pairs(heights: list[int], widths: list[int]) -> tuple[tuple[float, float], ...]:
    return tuple((float(y), float(x)) for y, x in zip(heights, widths, strict=True))


def _multiscale(config: m.MultiscaleAnchorGenerator) -> AnchorGenerator:
    return MultiscaleAnchorGenerator(
        min_level=config.min_level,
        max_level=config.max_level,
        anchor_scale=config.anchor_scale,
        aspect_ratios=tuple(config.aspect_ratios),
        scales_per_octave=config.scales_per_octave,
    )


def _flexible(config: m.FlexibleGridAnchorGenerator) -> AnchorGenerator:
    grids = []
    for grid in config.anchor_grid:
        sizes, ratios = list(grid.base_sizes), list(grid.aspect_ratios)
        count = max(len(sizes), len(ratios))
        grids.append(
            AnchorGrid(
                tuple(sizes if len(sizes) == count else sizes * count),
                tuple(ratios if len(ratios) == count else ratios * count),
                (grid.height_stride, grid.width_stride),
                (grid.height_offset, grid.width_offset),
            )
        )
    return FlexibleGridAnchorGenerator(tuple(grids))


_GENERATORS: dict[str, Callable[..., AnchorGenerator]] = {
    "grid_anchor_generator": _grid,
    "ssd_anchor_generator": _ssd,
    "multiscale_anchor_generator": _multiscale,
    "flexible_grid_anchor_generator": _flexible,
}
