"""Position-sensitive cropping (R-FCN, Dai et al., 2016, section 2.2): each part of a region reads separate channels.

Dimensions: B batch, R regions of an image, C channels, H W feature map, h w crop, n bins.
"""

from __future__ import annotations

import torch
from torch import Tensor

from boxwright.nn.ops.constants import constants
from boxwright.nn.ops.roi import Size, crop_and_resize


def position_sensitive_crop(features: Tensor, boxes: Tensor, size: Size, bins: Size, *, fade: bool = False) -> Tensor:
    """Return crops whose bins are each read from separate channels.

    Args:
        features: float [B, n·C, H, W]; the channels of the first bin, then of the next to the right, and so on.
        boxes: float32 [B, R, 4], xyxy in units of the map (0..1 spans the centers of its corner pixels).
        fade: As for `crop_and_resize`.

    Returns:
        float [B, R, C, h, w].
    """
    rows, columns = bins
    levels = torch.zeros(boxes.shape[:2], dtype=torch.int64, device=boxes.device)
    start, step = boxes[..., :2], (boxes[..., 2:] - boxes[..., :2]) / constants([columns, rows], boxes.device)
    cells = (size[0] // rows, size[1] // columns)
    blocks = features.chunk(rows * columns, dim=1)

    def bin_of(row: int, column: int) -> Tensor:
        place = constants([column, row], boxes.device)
        part = torch.cat([start + place * step, start + (place + 1) * step], dim=-1)
        return crop_and_resize([blocks[row * columns + column]], part, levels, cells, fade=fade)

    lines = [torch.cat([bin_of(row, column) for column in range(columns)], dim=-1) for row in range(rows)]
    return torch.cat(lines, dim=-2)
