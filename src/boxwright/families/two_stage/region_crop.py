"""Cropping regions of feature maps for a second stage.

The level of a feature pyramid that a region is cropped from.

Dimensions: B batch, R regions of an image, C channels, h w crop, L levels.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Protocol

import torch
from torch import Tensor

from boxwright.nn.ops.boxes import box_area, normalized
from boxwright.nn.ops.roi import Pool, crop_and_resize, roi_align

# From boxes [..., 4] in pixels of the network's input, the input's (height, width) and the number of levels.
LevelRule = Callable[[Tensor, tuple[int, int], int], Tensor]

# The side of a region, in pixels, equal to an image classifier's input (Lin et al., 2017, equation 1).
_CANONICAL_SIDE = 224
_CANONICAL_LEVEL = 4


def by_relative_size(boxes: Tensor, input_size: tuple[int, int], count: int) -> Tensor:
    """Return TF's levels: the second coarsest for a side of 224 pixels, one more for each doubling.

    With levels 2 to 6 that is level 5, where the paper has level 4; the coarsest level is also used.

    Args:
        boxes: float32 [..., 4], xyxy in units of the input (0..1).
        input_size: (height, width) of the input, with padding.

    Returns:
        int64 [...] in 0..L-1; 0 for a region without area.
    """
    ratio = math.sqrt(input_size[0] * input_size[1]) / _CANONICAL_SIDE
    # TF's order of operations, whose rounding decides at powers of two.
    exponent = torch.log(torch.sqrt(box_area(boxes).clamp(min=0)) * ratio) / math.log(2)
    return (exponent.floor() + (count - 2)).nan_to_num(nan=0.0).clamp(0, count - 1).long()


def by_size(boxes: Tensor, count: int, finest: int = 2) -> Tensor:
    """Return the paper's levels: 4 for a side of 224 pixels, one more for each doubling.

    Args:
        boxes: float32 [..., 4], xyxy in pixels of the input.

    Returns:
        int64 [...] in 0..L-1; 0 for a region without area.
    """
    side = torch.sqrt(box_area(boxes).clamp(min=0))
    # The epsilon makes 224 pixels level 4 despite rounding, as in kerod and torchvision.
    return (
        (torch.log2(side / _CANONICAL_SIDE + 1e-7) + (_CANONICAL_LEVEL - finest) + 1e-6)
        .floor()
        .nan_to_num(nan=0.0)
        .clamp(0, count - 1)
        .long()
    )


Size = tuple[int, int]


class RegionCrop(Protocol):
    """Crops regions of a batch's feature maps."""

    @property
    def side(self) -> int:
        """Height and width of a crop."""
        ...

    def __call__(self, maps: Sequence[Tensor], boxes: Tensor, input_size: Size) -> Tensor:
        """Crop.

        Args:
            maps: Levels, finest first, float [B, C, H, W] each.
            boxes: float32 [B, R, 4], xyxy in pixels of the network's input.

        Returns:
            float [B · R, C, h, w], ordered by image, then by region.
        """
        ...


@dataclass(frozen=True)
class CornerCrop:
    """TF's crop, from the corners of a region, followed by max pooling.

    Maps of padded inputs are sampled as if they had no padding, as in TF; trained networks rely on it.

    Attributes:
        fade: As for `crop_and_resize`.
    """

    size: int
    pool: Pool
    fade: bool = False

    @property
    def side(self) -> int:
        """Height and width of a crop."""
        return self.pool.size(self.size)

    def __call__(self, maps: Sequence[Tensor], boxes: Tensor, input_size: Size) -> Tensor:
        """Return float [B · R, C, h, w]."""
        # By the padded size, in float32 and in TF's order: at the border a rounding decides whether a sample counts.
        places = normalized(boxes, input_size)
        levels = by_relative_size(places, input_size, len(maps))
        crops = crop_and_resize(maps, places, levels, (self.size, self.size), fade=self.fade, pool=self.pool)
        return crops.flatten(0, 1)


@dataclass(frozen=True)
class RoiAlign:
    """The paper's crop: the average of samples at the centers of equal parts; levels by the region's size alone.

    Attributes:
        samples: Samples per cell in each direction.
        aligned: As for `roi_align`.
        levels: The number of levels to crop from.
        finest: The first level, whose map has a stride of 2 to that power.
    """

    size: int
    samples: int = 2
    aligned: bool = True
    levels: int = 4
    finest: int = 2

    @property
    def side(self) -> int:
        """Height and width of a crop."""
        return self.size

    def __call__(self, maps: Sequence[Tensor], boxes: Tensor, input_size: Size) -> Tensor:
        """Return float [B · R, C, h, w]."""
        del input_size
        used = maps[: self.levels]
        # The extent of the maps: the input with its padding.
        stride = 2**self.finest
        height, width = used[0].shape[-2] * stride, used[0].shape[-1] * stride
        crops = roi_align(
            used,
            boxes,
            by_size(boxes, len(used), self.finest),
            (self.size, self.size),
            input_size=(height, width),
            samples=self.samples,
            aligned=self.aligned,
        )
        return crops.flatten(0, 1)
