"""Instance masks between their boxes and the image.

Dimensions: D masks, K classes, h w mask within its box, H W image.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import torch
from torch import Tensor

from boxwright.ops.roi import Size, Taps, corners, taps

__all__ = ["MaskWindow", "mask_windows", "masks_of_classes", "paste_masks", "reframe_masks"]

_LEAST_SIDE = 1e-4  # of a box, in 0..1 of the image


@dataclass(frozen=True)
class MaskWindow:
    """The part of an image in which a mask lies; elsewhere it is 0.

    Attributes:
        top: First row.
        left: First column.
        values: float32 [h, w].
    """

    top: int
    left: int
    values: Tensor


def reframe_masks(masks: Tensor, boxes: Tensor, size: Size, *, nearest: bool = False) -> Tensor:
    """Bring masks from their boxes to the image, as TF's `reframe_box_masks_to_image_masks`.

    The centres of a mask's corner pixels lie on the box's corners.

    Args:
        masks: float32 [D, h, w].
        boxes: float32 [D, 4], xyxy in 0..1 of the image.
        size: (H, W).
        nearest: Whether a pixel takes the nearest value, rather than one between its neighbours'.

    Returns:
        float32 [D, H, W]; 0 outside the boxes.
    """
    rows, columns = _axes(boxes, (masks.shape[1], masks.shape[2]), size, nearest=nearest)
    return _matrix(rows, masks.shape[1]) @ masks @ _matrix(columns, masks.shape[2]).transpose(1, 2)


def mask_windows(masks: Tensor, boxes: Tensor, size: Size) -> Iterator[MaskWindow]:
    """Yield each mask as `reframe_masks` has it, where it is not 0 for certain.

    Args:
        masks: float32 [D, h, w].
        boxes: float32 [D, 4], xyxy in pixels of the image.
        size: (H, W).

    Yields:
        D windows.
    """
    scale = boxes.new_tensor([size[1], size[0]] * 2)
    rows, columns = _axes(boxes / scale, (masks.shape[1], masks.shape[2]), size, nearest=False)
    reached = [(axis.weights.sum(-1) > 0) for axis in (rows, columns)]
    firsts, counts = ([part.byte().argmax(1).tolist() for part in reached], [part.sum(1).tolist() for part in reached])
    for number, mask in enumerate(masks):
        parts = []
        for axis, side, first, count in zip((rows, columns), mask.shape, firsts, counts, strict=True):
            cells = slice(first[number], first[number] + count[number])
            part = Taps(axis.places[number : number + 1, cells], axis.weights[number : number + 1, cells])
            parts.append(_matrix(part, side)[0])
        yield MaskWindow(firsts[0][number], firsts[1][number], parts[0] @ mask @ parts[1].T)


def paste_masks(masks: Tensor, boxes: Tensor, size: Size, threshold: float = 0.5) -> Tensor:
    """Return what belongs to each object of an image.

    Args:
        masks: float32 [D, h, w]; probabilities.
        boxes: float32 [D, 4], xyxy in pixels of the image.
        size: (H, W).
        threshold: What is above it belongs to the object.

    Returns:
        uint8 [D, H, W] of 0 and 1.
    """
    pasted = torch.zeros(len(masks), *size, dtype=torch.uint8, device=masks.device)
    for into, window in zip(pasted, mask_windows(masks, boxes, size), strict=True):
        height, width = window.values.shape
        place = into[window.top : window.top + height, window.left : window.left + width]
        place.copy_(window.values > threshold)
    return pasted


def masks_of_classes(logits: Tensor, labels: Tensor) -> Tensor:
    """Return the masks of the classes that were found.

    Args:
        logits: float [..., K or 1, h, w].
        labels: int64 [...], 0-based.

    Returns:
        float [..., h, w].
    """
    if logits.shape[-3] == 1:
        return logits.squeeze(-3)
    index = labels[..., None, None, None].expand(*labels.shape, 1, *logits.shape[-2:])
    return torch.gather(logits, logits.ndim - 3, index).squeeze(-3)


def _axes(boxes: Tensor, mask_size: Size, size: Size, *, nearest: bool) -> tuple[Taps, Taps]:
    """Return what the rows and the columns of an image read of each mask."""
    axes = []
    for side, extent, count in zip((1, 0), mask_size, size, strict=True):
        start = boxes[:, side]
        length = (boxes[:, side + 2] - start).clamp(min=_LEAST_SIDE)
        extents = torch.full((len(boxes),), extent, device=boxes.device)
        positions = corners((0 - start) / length, (1 - start) / length, extents - 1, count)
        axes.append(taps(positions, extents, border="drop", nearest=nearest))
    return axes[0], axes[1]


def _matrix(axis: Taps, extent: int) -> Tensor:
    """Write taps as matrices [D, n, extent]."""
    matrix = axis.weights.new_zeros(*axis.weights.shape[:2], extent)
    return matrix.scatter_add_(2, axis.places, axis.weights)
