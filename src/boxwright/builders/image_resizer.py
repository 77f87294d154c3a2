"""`ImageResizer`: how images reach the network's size."""

from __future__ import annotations

from collections.abc import Callable

from boxwright.builders.choice import build_chosen
from boxwright.config import messages as m
from boxwright.errors import ConfigError
from boxwright.ops.resize import resize_bilinear, resize_nearest
from boxwright.preprocessing.image_resizer import FixedShapeResizer, ImageResizer, KeepAspectRatioResizer, Resize

__all__ = ["build_image_resizer"]

_METHODS: dict[str, Resize] = {"BILINEAR": resize_bilinear, "NEAREST_NEIGHBOR": resize_nearest}


def build_image_resizer(config: m.ImageResizer) -> ImageResizer:
    """Build a resizer.

    Args:
        config: The message.

    Returns:
        The resizer.

    Raises:
        ConfigError: For a kind or a method that is not supported, or sizes that cannot be.
    """
    return build_chosen(config, "image_resizer_oneof", _RESIZERS)


def _method(config: m.FixedShapeResizer | m.KeepAspectRatioResizer) -> Resize:
    name = config.resize_method.name
    if name not in _METHODS:
        raise ConfigError(f"resize_method {name} is not supported; supported: {', '.join(_METHODS)}")
    return _METHODS[name]


def _fixed_shape(config: m.FixedShapeResizer) -> ImageResizer:
    if config.height < 1 or config.width < 1:
        raise ConfigError(f"fixed_shape_resizer: expected positive sides, found {config.height}×{config.width}")
    return FixedShapeResizer(config.height, config.width, _method(config), config.convert_to_grayscale)


def _keep_aspect_ratio(config: m.KeepAspectRatioResizer) -> ImageResizer:
    if config.min_dimension > config.max_dimension:
        raise ConfigError(
            f"keep_aspect_ratio_resizer: min_dimension {config.min_dimension} is over "
            f"max_dimension {config.max_dimension}"
        )
    return KeepAspectRatioResizer(
        min_dimension=config.min_dimension,
        max_dimension=config.max_dimension,
        resize=_method(config),
        pad_to_max_dimension=config.pad_to_max_dimension,
        per_channel_pad_value=tuple(config.per_channel_pad_value),
        convert_to_grayscale=config.convert_to_grayscale,
    )


_RESIZERS: dict[str, Callable[..., ImageResizer]] = {
    "fixed_shape_resizer": _fixed_shape,
    "keep_aspect_ratio_resizer": _keep_aspect_ratio,
}
