"""Necks between a backbone and the heads."""

from __future__ import annotations

from dataclasses import dataclass

from torch import nn

from boxwright.config import messages as m
from boxwright.families.shared.backbones import BackboneRequest
from boxwright.nn.necks.bifpn import COMBINERS, BiFpn
from boxwright.nn.necks.fpn import FeaturePyramid, HandDown, smoothed
from boxwright.nn.necks.multi_resolution import MultiResolutionFeatureMaps, PoolingPyramid

COARSEST_OF_BACKBONE = 5
Pyramid = m.FeaturePyramidNetworks | m.BidirectionalFeaturePyramidNetworks


@dataclass(frozen=True)
class BuiltNeck:
    """A neck and its output channels."""

    module: nn.Module
    channels: tuple[int, ...]


def pyramid_levels(pyramid: Pyramid) -> list[int]:
    """Return the levels of a pyramid that are the backbone's own."""
    return list(range(pyramid.min_level, min(pyramid.max_level, COARSEST_OF_BACKBONE) + 1))


def _extra_levels(pyramid: Pyramid) -> int:
    return pyramid.max_level - min(pyramid.max_level, COARSEST_OF_BACKBONE)


def build_fpn(
    pyramid: m.FeaturePyramidNetworks,
    channels: tuple[int, ...],
    request: BackboneRequest,
    *,
    use_depthwise: bool,
    hand_down: HandDown = smoothed,
) -> BuiltNeck:
    """Return a feature pyramid over a backbone's maps of so many channels."""
    neck = FeaturePyramid(
        channels,
        request.depth(pyramid.additional_layer_depth),
        request.neck_settings(),
        extra_levels=_extra_levels(pyramid),
        use_depthwise=use_depthwise,
        padding=request.padding,
        hand_down=hand_down,
    )
    return BuiltNeck(neck, neck.channels)


def build_bifpn(
    pyramid: m.BidirectionalFeaturePyramidNetworks, channels: tuple[int, ...], request: BackboneRequest
) -> BuiltNeck:
    """Return a bidirectional pyramid over a backbone's maps of so many channels."""
    neck = BiFpn(
        channels,
        max(pyramid.num_filters, request.config.min_depth),
        request.neck_settings(),
        extra_levels=_extra_levels(pyramid),
        iterations=pyramid.num_iterations,
        combiner=COMBINERS[pyramid.combine_method],
        padding=request.padding,
    )
    return BuiltNeck(neck, neck.channels)


def build_extra_maps(
    widths: tuple[int, ...], channels: tuple[int, ...], request: BackboneRequest, kernels: tuple[int, ...] = ()
) -> BuiltNeck:
    """Return smaller maps appended to a backbone's; `widths` are the channels between and after two convolutions.

    Strided convolutions have kernels of side 3 unless `kernels` gives another.
    """
    neck = MultiResolutionFeatureMaps(
        channels,
        [request.depth(width) for width in widths],
        request.neck_settings(),
        kernels=kernels,
        use_depthwise=request.use_depthwise,
        padding=request.padding,
    )
    return BuiltNeck(neck, neck.channels)


def build_pooling_pyramid(depth: int, channels: tuple[int, ...], request: BackboneRequest, levels: int) -> BuiltNeck:
    """Return a pooling pyramid over a backbone's single map; a depth of 0 keeps its channels."""
    neck = PoolingPyramid(channels[-1], depth, request.neck_settings(), levels=levels)
    return BuiltNeck(neck, neck.channels)
