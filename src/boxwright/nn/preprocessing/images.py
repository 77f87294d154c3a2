"""Conversion of arrays, tensors and PIL images to tensors.

Dimensions: B batch, H W image, C channels.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Literal

import numpy as np
import torch
from numpy.typing import NDArray
from PIL import Image
from torch import Tensor

from boxwright.base.errors import DataError

Images = Sequence[NDArray[np.uint8] | Tensor | Image.Image] | NDArray[np.uint8] | Tensor
Scale = Literal["guess", "pixels", "unit"]
_SCALES = ("guess", "pixels", "unit")
_IMAGE, _BATCH = 3, 4
_COLORS = 3


def image_tensors(images: Images, scale: Scale = "guess", channels: int = 3) -> list[Tensor]:
    """Return each image as a tensor [H, W, 3], or of more channels, in 0..255.

    Args:
        images: HWC arrays, CHW tensors or PIL images, RGB or of one channel, which is repeated; alpha is dropped. A
            four-dimensional array or tensor is also accepted.
        scale: The scale of floats: "pixels" for 0..255, "unit" for 0..1, as in torchvision, which is multiplied.
            "guess" assumes pixels, and rejects a call whose largest float is no more than 1.
        channels: Where more than 3, images have exactly so many.

    Raises:
        DataError: For an argument that is not a list of images, an image that is empty or has not three dimensions
            with 1, 3 or 4 channels, and floats on another scale.
    """
    if scale not in _SCALES:
        raise DataError(f"scale: expected {' or '.join(_SCALES)}, found {scale!r}")
    tensors = list(_tensors(images, channels))
    largest = max((float(one.amax()) for one in tensors if one.is_floating_point()), default=0.0)
    if scale == "unit" and largest > 1:
        raise DataError(f'scale="unit": expected floats in 0..1, found {largest:g}; without it, floats are in 0..255')
    if scale == "guess" and 0 < largest <= 1:
        raise DataError(
            f"the images are floats of which none is above {largest:g}, as if they were in 0..1; expected uint8, or "
            'floats in 0..255. Say scale="unit" where they are in 0..1, and scale="pixels" where they are so dark'
        )
    return [one * 255 if scale == "unit" and one.is_floating_point() else one for one in tensors]


def _tensors(images: Images, channels: int) -> Iterator[Tensor]:
    if isinstance(images, np.ndarray | Tensor):
        if images.ndim != _BATCH:
            raise DataError(f"expected a list of images, found one of shape {tuple(images.shape)}; write [image]")
    elif not isinstance(images, Sequence) or isinstance(images, str | bytes):
        raise DataError(f"expected a list of images, found {type(images).__name__}; of one image, write [image]")
    for number, image in enumerate(images):
        yield _as_hwc(image, number, channels)


def _as_hwc(image: object, number: int, channels: int) -> Tensor:
    if isinstance(image, Image.Image):
        image = np.array(image.convert("RGB"))
    if isinstance(image, Tensor):
        tensor = image.permute(1, 2, 0) if image.ndim == _IMAGE else image
    elif isinstance(image, np.ndarray) and image.dtype.kind in "uif":
        # Copied if strides are negative, as in image[..., ::-1], or bytes are swapped or read-only: torch rejects
        # those.
        odd = min(image.strides, default=0) < 0 or not image.flags.writeable
        tensor = torch.from_numpy(image.astype(image.dtype.newbyteorder("="), copy=odd))
    elif isinstance(image, np.ndarray):
        raise DataError(f"image {number}: expected numbers in 0..255, found an array of {image.dtype}")
    else:
        raise DataError(
            f"image {number}: expected an array, a tensor or a PIL image, found {type(image).__name__}; "
            "boxwright.data.image_io.read_image reads a file"
        )
    if tensor.ndim == _IMAGE - 1:
        tensor = tensor[..., None]
    accepted = (1, 3, 4) if channels == _COLORS else (channels,)
    if tensor.ndim != _IMAGE or tensor.shape[2] not in accepted or tensor.numel() == 0:
        kind = "CHW tensor" if isinstance(image, Tensor) else "HWC array"
        wanted = "1, 3 or 4 channels" if channels == _COLORS else f"the detector's {channels} channels"
        raise DataError(
            f"image {number}: expected a {kind} with {wanted} and some pixels, found shape {tuple(image.shape)}"
        )
    if tensor.is_floating_point() and not tensor.isfinite().all():
        raise DataError(f"image {number}: some of its pixels are not finite")
    # A view: gray pixels are copied when images are resized, not before.
    return tensor.expand(-1, -1, 3) if tensor.shape[2] == 1 else tensor[..., :channels]
