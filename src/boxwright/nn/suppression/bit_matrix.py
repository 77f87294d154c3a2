"""Suppression of a whole batch on a GPU, exactly, by a matrix of bits.

A pair of candidates takes one bit, where tensors of comparisons take 4 bytes and are read many times. Imported only
where Triton's kernels can be used (`nn.ops.gpu_kernels`).

Dimensions: B batch, n candidates.
"""

from __future__ import annotations

import torch
from torch import Tensor

from boxwright.nn.ops.triton_kernels import compare_pairs, keep_greedily
from boxwright.nn.suppression.image_by_image import rank_of_kept

_MOST_BITS = 1 << 31  # of the images that are suppressed together: 256 MiB


def suppress_by_bits(
    boxes: Tensor, scores: Tensor, labels: Tensor, num_classes: int, iou_threshold: float, max_per_class: int
) -> tuple[Tensor, Tensor]:
    """Return `boxwright::suppress_pairs`'s result and bool [B], all True: it is exact for any chain of overlaps.

    The signature is that of `fixed_shape.suppress_in_checked_rounds`.
    """
    kept = suppress_sorted(boxes, labels, scores >= 0, iou_threshold)
    exact = torch.ones_like(kept[:, 0])
    if max_per_class >= scores.shape[1]:
        return kept, exact
    return kept & (rank_of_kept(kept, labels) < max_per_class), exact


def suppress_sorted(boxes: Tensor, labels: Tensor, passing: Tensor, iou_threshold: float) -> Tensor:
    """Return the boxes that stay, bool [B, n], where each drops later ones of its class.

    Args:
        boxes: float [B, n, 4], xyxy, best first, finite.
        labels: int64 [B, n].
        passing: bool [B, n]; others take no part.
        iou_threshold: Boxes that overlap a kept one of their class by more are dropped.
    """
    batch, count = labels.shape
    if not batch * count:
        return passing
    boxes, labels, passing = boxes.float().contiguous(), labels.contiguous(), passing.contiguous()
    parts = []
    at_once = max(_MOST_BITS // count**2, 1)
    for first in range(0, batch, at_once):
        images = slice(first, first + at_once)
        parts.append(keep_greedily(compare_pairs(boxes[images], labels[images], iou_threshold), passing[images]))
    return torch.cat(parts)
