"""Which level of a feature pyramid a region is cropped from.

Dimensions: B batch, R regions of an image, L levels.
"""

from __future__ import annotations

import math
from collections.abc import Callable

import torch
from torch import Tensor

from boxwright.ops.boxes import box_area

# From boxes [..., 4] in pixels of the network's input, the input's (height, width) and the number of levels.
LevelRule = Callable[[Tensor, tuple[int, int], int], Tensor]

# The side of a region, in pixels, that has the level of an image classifier's input (Lin et al., 2017, equation 1).
_CANONICAL_SIDE = 224
_CANONICAL_LEVEL = 4


def by_relative_size(boxes: Tensor, input_size: tuple[int, int], count: int) -> Tensor:
    """Return TF's levels: a side of 224 pixels has the second coarsest, one more for each doubling.

    With levels 2 to 6 that is level 5, where the paper has level 4; and the coarsest is cropped from, too.

    Args:
        boxes: float32 [..., 4], xyxy in units of the input (0..1).
        input_size: (height, width) of the input, with padding.

    Returns:
        int64 [...] in 0..L-1; 0 for a region without area.
    """
    ratio = math.sqrt(input_size[0] * input_size[1]) / _CANONICAL_SIDE
    # As written in TF, whose rounding decides at powers of two.
    exponent = torch.log(torch.sqrt(box_area(boxes).clamp(min=0)) * ratio) / math.log(2)
    return (exponent.floor() + (count - 2)).nan_to_num(nan=0.0).clamp(0, count - 1).long()


def by_size(boxes: Tensor, count: int, finest: int = 2) -> Tensor:
    """Return the paper's levels: a side of 224 pixels has level 4, one more for each doubling.

    Args:
        boxes: float32 [..., 4], xyxy in pixels of the input.

    Returns:
        int64 [...] in 0..L-1; 0 for a region without area.
    """
    side = torch.sqrt(box_area(boxes).clamp(min=0))
    # The small number lets 224 pixels be level 4 whatever rounding does, as in kerod and torchvision.
    return (
        (torch.log2(side / _CANONICAL_SIDE + 1e-7) + (_CANONICAL_LEVEL - finest) + 1e-6)
        .floor()
        .nan_to_num(nan=0.0)
        .clamp(0, count - 1)
        .long()
    )
