"""A moved, scaled and mirrored view of a batch, for self-supervision, and the way back (TF's `deepmac_meta_arch`).

Dimensions: B batch, G objects (padded), C channels, H W image.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from boxwright.nn.ops.roi import crop_and_resize


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
