"""The mask head's targets: groundtruth masks cropped to regions (TF's FasterRCNNMetaArch).

Dimensions: B batch, D regions, h w mask, N = B·D.
"""

from __future__ import annotations

import torch
from torch import Tensor

from boxwright.nn.ops.boxes import normalized
from boxwright.nn.ops.roi import corner_taps
from boxwright.types.masks import InstanceMasks


def mask_targets(
    masks: InstanceMasks,
    match: Tensor,
    boxes: Tensor,
    size: tuple[int, int],
    input_size: tuple[int, int],
    *,
    fade: bool = False,
) -> Tensor:
    """Return each region's crop of its object's mask, float32 [B, D, h, w] in 0..1; 0 for regions without an object.

    Args:
        masks: The groundtruth's, in the frame of the network's input.
        match: int64 [B, D]; the object of each region, below 0 for none.
        boxes: float32 [B, D, 4], xyxy in pixels of the input.
        fade: As for `crop_and_resize`.
    """
    if not masks.windows.shape[1]:
        return boxes.new_zeros(*match.shape, *size)
    object_of = match.clamp(min=0)
    windows = masks.windows.gather(1, object_of[..., None].expand(-1, -1, 4)).flatten(0, 1)
    starts = masks.starts.gather(1, object_of).flatten()
    # A window without height and width, in which no sample lies.
    windows = windows * (match.flatten() >= 0)[:, None]
    rows, columns = corner_taps(normalized(boxes, input_size).flatten(0, 1), input_size, size, fade=fade)
    top, left, height, width = (side[:, None, None] for side in windows.unbind(1))
    row, column = rows.places - top, columns.places - left
    row_weights = rows.weights * ((row >= 0) & (row < height))
    column_weights = columns.weights * ((column >= 0) & (column < width))
    row, column = row.clamp(min=0), column.clamp(min=0)
    places = starts[:, None, None, None, None] + (row * width)[:, :, None, :, None] + column[:, None, :, None, :]
    weights = row_weights[:, :, None, :, None] * column_weights[:, None, :, None, :]
    if not len(masks.values):
        return weights.new_zeros(*match.shape, *size)
    # Samples outside the window have weight 0, so their indices are arbitrary.
    picked = masks.values[places.clamp(max=len(masks.values) - 1)]
    return (picked * weights).sum((-2, -1)).view(*match.shape, *size)


def whole_masks(masks: InstanceMasks, size: tuple[int, int]) -> Tensor:
    """Return every mask of a batch in a frame at least as large as the input's, float32 [B, G, H, W] of 0 and 1."""
    batch, count = masks.starts.shape
    device = masks.windows.device
    top, left, height, width = (side[..., None, None] for side in masks.windows.unbind(-1))
    row = torch.arange(size[0], device=device)[:, None] - top
    column = torch.arange(size[1], device=device) - left
    inside = (row >= 0) & (row < height) & (column >= 0) & (column < width)
    if not len(masks.values):
        return torch.zeros(batch, count, *size, device=device)
    # Outside of the window the place is arbitrary.
    places = masks.starts[..., None, None] + row * width + column
    return (masks.values[places.clamp(0, len(masks.values) - 1)] * inside).float()
