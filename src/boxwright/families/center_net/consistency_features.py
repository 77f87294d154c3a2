"""What DeepMAC's consistency losses compare: colors, features of the network, and other views of a batch.

Colors are in CIE Lab, in which distances are about those that people see. A view is moved, scaled and mirrored, for
self-supervision (TF's `deepmac_meta_arch`).

Dimensions: B batch, G objects (padded), C channels, H W image or grid of cells.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

import torch
from torch import Tensor
from torch.nn import functional as F

from boxwright.base.device import constants
from boxwright.nn.ops.roi import crop_and_resize

# sRGB's primaries and the white of daylight (D65, 2 degrees), in the digits that TensorFlow I/O has.
_TO_XYZ = ((0.412453, 0.357580, 0.180423), (0.212671, 0.715160, 0.072169), (0.019334, 0.119193, 0.950227))
_WHITE = (0.95047, 1.0, 1.08883)


def lab_of_rgb(colors: Tensor) -> Tensor:
    """Return Lab for sRGB in 0..1, float [B, 3, H, W] both: L in 0..100, a and b about 0."""
    # Cubic interpolation and augmentation overshoot; a negative base of a power is NaN.
    colors = colors.clamp(min=0)
    linear = torch.where(colors > 0.04045, ((colors + 0.055) / 1.055) ** 2.4, colors / 12.92)
    matrix = torch.stack([constants(row, colors.device) for row in _TO_XYZ])
    relative = torch.einsum("bchw,oc->bohw", linear, matrix) / constants(_WHITE, colors.device)[:, None, None]
    root = torch.where(relative > 0.008856, relative.clamp(min=1e-6) ** (1 / 3), 7.787 * relative + 16 / 116)
    x, y, z = root.unbind(1)
    return torch.stack([116 * y - 16, 500 * (x - y), 200 * (y - z)], dim=1)


class ConsistencyFeatures(Protocol):
    """Gives each cell what is compared with its neighbors'."""

    def __call__(self, inputs: Tensor, features: Sequence[Tensor]) -> Tensor:
        """Return float [B, C, H, W], without a graph.

        Args:
            inputs: float [B, 3, 4 · H, 4 · W]; red, green and blue as the network reads them.
            features: The maps [B, C, H, W] of each stage.
        """
        ...


@dataclass(frozen=True)
class LabColors:
    """Colors in Lab.

    Attributes:
        scale: Of the network's inputs: `value × scale + offset` of red, green and blue in 0..255.
    """

    scale: tuple[float, float, float]
    offset: tuple[float, float, float]

    @torch.no_grad()
    def __call__(self, inputs: Tensor, features: Sequence[Tensor]) -> Tensor:
        """Return float [B, 3, H, W]."""
        small = F.interpolate(inputs.float(), size=features[-1].shape[-2:], mode="bilinear", align_corners=False)
        scale, offset = (constants(numbers, inputs.device)[:, None, None] for numbers in (self.scale, self.offset))
        return lab_of_rgb((small - offset) / scale / 255)


@dataclass(frozen=True)
class LastFeatures:
    """The last stage's features."""

    @torch.no_grad()
    def __call__(self, inputs: Tensor, features: Sequence[Tensor]) -> Tensor:
        """Return float [B, C, H, W]."""
        del inputs
        return features[-1].detach().float()


@dataclass(frozen=True)
class View:
    """One view of each image.

    Attributes:
        shift: float [B, 2]; x, y in units of the image.
        scale: float [B, 2]; of x, y: above 1 the image gets smaller.
        flipped: bool [B]; whether the image is mirrored first.
    """

    shift: Tensor
    scale: Tensor
    flipped: Tensor

    @property
    def windows(self) -> Tensor:
        """What each view shows, float [B, 4], xyxy in 0..1 of the image."""
        middle, half = 0.5 - self.shift * self.scale, self.scale / 2
        return torch.cat([middle - half, middle + half], dim=-1)

    def of_images(self, images: Tensor) -> Tensor:
        """Return the views of images [B, C, H, W], of the same shape; 0 beyond them."""
        mirrored = torch.where(self.flipped[:, None, None, None], images.flip(-1), images)
        levels = torch.zeros(len(images), 1, dtype=torch.int64, device=images.device)
        size = (images.shape[2], images.shape[3])
        return crop_and_resize([mirrored], self.windows[:, None], levels, size, fade=True)[:, 0]

    def of_boxes(self, boxes: Tensor) -> Tensor:
        """Return boxes [B, G, 4], xyxy in 0..1 of the image, in the view."""
        left, top, right, bottom = boxes.unbind(-1)
        mirrored = torch.stack([1 - right, top, 1 - left, bottom], dim=-1)
        boxes = torch.where(self.flipped[:, None, None], mirrored, boxes)
        low, high = self.windows[:, None, :2], self.windows[:, None, 2:]
        return (boxes - low.repeat(1, 1, 2)) / (high - low).repeat(1, 1, 2)

    def undone(self, masks: Tensor) -> Tensor:
        """Return masks [B, G, H, W] of a view in the image.

        As in TF, which mirrors before it moves here too: not exact where a view is mirrored or scaled, and moved.
        """
        repeated = (
            parameter.repeat_interleave(masks.shape[1], 0) for parameter in (-self.shift, 1 / self.scale, self.flipped)
        )
        return View(*repeated).of_images(masks.flatten(0, 1)[:, None]).view(masks.shape)


@dataclass(frozen=True)
class RandomView:
    """Draws views.

    Attributes:
        max_shift: In units of the image's sides.
        scales: The least and the largest, drawn for x and y each.
        flip_probability: That of a mirrored view.
    """

    max_shift: float = 0.0
    scales: tuple[float, float] = (1.0, 1.0)
    flip_probability: float = 0.0

    def draw(self, count: int, device: torch.device, generator: torch.Generator | None = None) -> View:
        """Return a view of each of `count` images, drawn from a generator; without one, from PyTorch's own."""
        drawn, (low, high) = torch.rand(count, 5, device=device, generator=generator), self.scales
        return View(
            (2 * drawn[:, :2] - 1) * self.max_shift,
            low + (high - low) * drawn[:, 2:4],
            drawn[:, 4] < self.flip_probability,
        )
