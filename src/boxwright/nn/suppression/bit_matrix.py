"""Suppression of a whole batch on a GPU, exactly, by a matrix of bits: two kernels, written in Triton.

Imported only where Triton compiles (`base.device.has_triton`). A pair of candidates takes one bit, where tensors of
comparisons take 4 bytes and are read many times.

Dimensions: B batch, n candidates, w words of 32 candidates.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

_BLOCK = 128  # of a program of the first kernel
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
    return kept & (_rank_in_class(kept, labels) < max_per_class), exact


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


def _rank_in_class(kept: Tensor, labels: Tensor) -> Tensor:
    """Return how many earlier candidates of each one's class are kept, int64 [B, n]."""
    by_class, order = labels.sort(dim=1, stable=True)
    kept_by_class = kept.gather(1, order)
    before = kept_by_class.cumsum(1) - kept_by_class.long()
    first = torch.searchsorted(by_class, by_class)
    return torch.zeros_like(labels).scatter_(1, order, before - before.gather(1, first))


@torch.library.custom_op("boxwright_triton::compare_pairs", mutates_args=(), device_types=("cuda", "cpu"))
def compare_pairs(boxes: Tensor, labels: Tensor, iou_threshold: float) -> Tensor:
    """Return the later candidates that each one overlaps by more than a threshold, int32 [B, n, w].

    Bit b of word w is set for candidate 32 · w + b, if it has the same label. Overlaps are rounded like those of
    `fixed_shape`. On a CPU it runs in Triton's interpreter only.

    Args:
        boxes: float32 [B, n, 4], xyxy, contiguous.
        labels: int64 [B, n], contiguous.
        iou_threshold: The overlap that must be exceeded.
    """
    batch, count = labels.shape
    words = triton.cdiv(count, 32)
    bits = torch.empty(batch, count, words, dtype=torch.int32, device=boxes.device)
    grid = (batch, triton.cdiv(count, _BLOCK), words)
    with torch.cuda.device_of(boxes):
        # Fused products would round overlaps otherwise than PyTorch does.
        _compare_pairs[grid](boxes, labels, bits, iou_threshold, count, words, block=_BLOCK, enable_fp_fusion=False)
    return bits


@compare_pairs.register_fake
def _(boxes: Tensor, labels: Tensor, iou_threshold: float) -> Tensor:
    del iou_threshold
    return boxes.new_empty((*labels.shape, (labels.shape[1] + 31) // 32), dtype=torch.int32)


@torch.library.custom_op("boxwright_triton::keep_greedily", mutates_args=(), device_types=("cuda", "cpu"))
def keep_greedily(beaten: Tensor, passing: Tensor) -> Tensor:
    """Return which candidates stay, bool [B, n]: those that pass and that none which stays beats.

    Args:
        beaten: int32 [B, n, w], of `compare_pairs`.
        passing: bool [B, n], contiguous.
    """
    batch, count, words = beaten.shape
    kept = torch.empty_like(passing)
    with torch.cuda.device_of(beaten):
        _keep_greedily[(batch,)](beaten, passing, kept, count, words, padded=triton.next_power_of_2(words))
    return kept


@keep_greedily.register_fake
def _(beaten: Tensor, passing: Tensor) -> Tensor:
    del beaten
    return torch.empty_like(passing)


@triton.jit
def _either(left, right):
    return left | right


@triton.jit(do_not_specialize=["count", "words"])
def _compare_pairs(boxes, labels, bits, iou_threshold, count, words, block: tl.constexpr):
    # A program compares some candidates with those of one word.
    image, word = tl.program_id(0).to(tl.int64), tl.program_id(2)
    boxes += image * count * 4
    labels += image * count
    rows = tl.program_id(1) * block + tl.arange(0, block)
    columns = word * 32 + tl.arange(0, 32)
    row_exists, column_exists = rows < count, columns < count
    left = tl.load(boxes + rows * 4, row_exists, 0.0)[:, None]
    top = tl.load(boxes + rows * 4 + 1, row_exists, 0.0)[:, None]
    right = tl.load(boxes + rows * 4 + 2, row_exists, 0.0)[:, None]
    bottom = tl.load(boxes + rows * 4 + 3, row_exists, 0.0)[:, None]
    other_left = tl.load(boxes + columns * 4, column_exists, 0.0)[None]
    other_top = tl.load(boxes + columns * 4 + 1, column_exists, 0.0)[None]
    other_right = tl.load(boxes + columns * 4 + 2, column_exists, 0.0)[None]
    other_bottom = tl.load(boxes + columns * 4 + 3, column_exists, 0.0)[None]
    width = tl.maximum(tl.minimum(right, other_right) - tl.maximum(left, other_left), 0.0)
    height = tl.maximum(tl.minimum(bottom, other_bottom) - tl.maximum(top, other_top), 0.0)
    shared = width * height
    area = (right - left) * (bottom - top)
    other_area = (other_right - other_left) * (other_bottom - other_top)
    union = tl.where(shared > 0, area + other_area - shared, 1.0)
    overlaps = tl.div_rn(shared, union)
    label = tl.load(labels + rows, row_exists, -1)[:, None]
    other_label = tl.load(labels + columns, column_exists, -2)[None]
    beaten = (overlaps > iou_threshold) & (label == other_label) & (rows[:, None] < columns[None])
    packed = tl.reduce(tl.where(beaten, 1 << tl.arange(0, 32)[None], 0), 1, _either)
    tl.store(bits + (image * count + rows) * words + word, packed, row_exists)


@triton.jit(do_not_specialize=["count", "words"])
def _keep_greedily(bits, passing, kept, count, words, padded: tl.constexpr):
    # A program decides an image, word by word: when a word's turn comes, all that can beat its candidates is decided.
    image = tl.program_id(0).to(tl.int64)
    bits += image * count * words
    passing += image * count
    kept += image * count
    lanes, columns = tl.arange(0, 32), tl.arange(0, padded)
    beaten = tl.zeros([padded], tl.int32)
    for word in range(words):
        rows = word * 32 + lanes
        exists = rows < count
        beaten_before = tl.reduce(tl.where(columns == word, beaten, 0), 0, _either)
        waiting = (tl.load(passing + rows, exists, 0) != 0) & (((beaten_before >> lanes) & 1) == 0)
        within = tl.load(bits + rows * words + word, exists, 0)
        stays, changed = waiting, 1
        # Of the word's own candidates, each round decides at least one more for good.
        while changed > 0:
            beaten_within = tl.reduce(tl.where(stays, within, 0), 0, _either)
            decided = waiting & (((beaten_within >> lanes) & 1) == 0)
            changed = tl.sum((stays != decided).to(tl.int32), 0)
            stays = decided
        tl.store(kept + rows, stays, exists)
        chosen = (exists & stays)[:, None] & (columns < words)[None]
        beaten |= tl.reduce(tl.load(bits + rows[:, None] * words + columns[None], chosen, 0), 0, _either)
