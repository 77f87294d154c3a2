"""Instance masks of detections, in the image.

Dimensions: D detections, H W image.
"""

from __future__ import annotations

import torch
from torch import Tensor

from boxwright.nn.ops.pasted_masks import whole_masks
from boxwright.types import Detections


def instance_masks(found: Detections[Tensor], threshold: float = 0.5) -> Tensor:
    """Return which pixels of the image belong to each detection.

    Args:
        found: Detections with masks.
        threshold: Values above it belong to the object.

    Returns:
        uint8 [D, H, W] of 0 and 1.

    Raises:
        ValueError: If no masks were predicted.
    """
    return torch.from_numpy(whole_masks(found.arrays(), threshold)).to(found.boxes.device)
