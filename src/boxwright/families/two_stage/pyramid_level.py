"""The level of a feature pyramid that a region is cropped from.

Dimensions: B batch, R regions of an image, L levels.
"""

from __future__ import annotations

import math
from collections.abc import Callable

import torch
from torch import Tensor

from boxwright.nn.ops.boxes import box_area

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
