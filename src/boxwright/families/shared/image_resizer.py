"""`ImageResizer`: the resizing of images to the network's input."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from boxwright.config import messages as m
from boxwright.config.build import build_chosen
from boxwright.nn.ops.resize import (
    resize_antialiased,
    resize_area,
    resize_bicubic,
    resize_bilinear,
    resize_half_pixel,
    resize_nearest,
)
from boxwright.nn.preprocessing import (
    ConditionalShapeResizer,
    FixedShapeResizer,
    IdentityResizer,
    ImageResizer,
    KeepAspectRatioResizer,
    PadToMultipleResizer,
    Resize,
)

_METHODS: dict[str, Resize] = {
    "BILINEAR": resize_bilinear,
    "NEAREST_NEIGHBOR": resize_nearest,
    "BICUBIC": resize_bicubic,
    "AREA": resize_area,
    "BILINEAR_ANTIALIASED": resize_antialiased,
}


def build_image_resizer(config: m.ImageResizer, image_channels: int = 3) -> ImageResizer:
    """Build a resizer of images of so many channels."""
    return build_chosen(config, "image_resizer_oneof", _RESIZERS, image_channels)


def _method(config: m.FixedShapeResizer | m.KeepAspectRatioResizer | m.ConditionalShapeResizer) -> Resize:
    return _METHODS[config.resize_method.name]


def _fixed_shape(config: m.FixedShapeResizer, channels: int) -> ImageResizer:
    return FixedShapeResizer(config.height, config.width, _method(config), config.convert_to_grayscale, channels)


def _keep_aspect_ratio(config: m.KeepAspectRatioResizer, channels: int) -> ImageResizer:
    return KeepAspectRatioResizer(
        min_dimension=config.min_dimension,
        max_dimension=config.max_dimension,
        resize=resize_half_pixel if config.half_pixel_centers else _method(config),
        to_whole=np.trunc if config.half_pixel_centers else np.rint,
        pad_to_max_dimension=config.pad_to_max_dimension,
        per_channel_pad_value=tuple(config.per_channel_pad_value),
        convert_to_grayscale=config.convert_to_grayscale,
        image_channels=channels,
    )


def _conditional(config: m.ConditionalShapeResizer, channels: int) -> ImageResizer:
    shrink = config.condition.name == "GREATER"
    return ConditionalShapeResizer(
        config.size_threshold, shrink, _method(config), config.convert_to_grayscale, channels
    )


_RESIZERS: dict[str, Callable[..., ImageResizer]] = {
    "fixed_shape_resizer": _fixed_shape,
    "keep_aspect_ratio_resizer": _keep_aspect_ratio,
    "identity_resizer": lambda _, channels: IdentityResizer(channels),
    "conditional_shape_resizer": _conditional,
    "pad_to_multiple_resizer": lambda config, channels: PadToMultipleResizer(
        config.multiple, config.convert_to_grayscale, channels
    ),
}
