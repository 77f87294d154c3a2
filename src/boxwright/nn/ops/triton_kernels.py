"""Kernels for GPUs, written in Triton: suppression by a matrix of bits, and matching at the least cost.

Imported only where they can be used (`nn.ops.gpu_kernels`). On a CPU they run in Triton's interpreter alone.

Dimensions: B batch, n candidates, w words of 32 candidates, S sets of outputs, Q queries, G objects (padded).
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

_BLOCK = 128  # candidates that a program compares with those of a word
_CHECKED = 1024  # candidates of the check, as many as most detectors suppress


@torch.library.custom_op("boxwright_triton::compare_pairs", mutates_args=(), device_types=("cuda", "cpu"))
def compare_pairs(boxes: Tensor, labels: Tensor, iou_threshold: float) -> Tensor:
    """Return the later candidates that each one overlaps by more than a threshold, int32 [B, n, w].

    Bit b of word w is set for candidate 32 · w + b, if it has the same label. Overlaps are rounded like those of
    `fixed_shape`.

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


@torch.library.custom_op("boxwright_triton::assign", mutates_args=(), device_types=("cuda", "cpu"))
def assign(costs: Tensor, valid: Tensor, impossible: float) -> Tensor:
    """Return the object that each query is matched with, int64 [S, B, Q], -1 for none, at the least cost of each set.

    By shortest augmenting paths in float64, as SciPy does on the CPU (Crouse, "On implementing 2D rectangular
    assignment algorithms", 2016), a problem in each program. Of matchings of equal cost it may be another than SciPy's.

    Args:
        costs: float32 [S, B, Q, G], contiguous.
        valid: bool [B, G], contiguous; objects that count.
        impossible: What infinite costs and NaN count as, negative for minus infinity.
    """
    sets, batch, queries, objects = costs.shape
    matches = torch.full((sets, batch, queries), -1, dtype=torch.int64, device=costs.device)
    if not matches.numel() or not objects:
        return matches
    padded = triton.next_power_of_2(max(queries, objects))
    options = {"num_warps": 2, "enable_fp_fusion": False}  # in each reduction, more warps would wait for each other
    with torch.cuda.device_of(costs):
        _assign[(batch, sets)](costs, valid, matches, queries, objects, impossible, padded=padded, **options)
    return matches


@assign.register_fake
def _(costs: Tensor, valid: Tensor, impossible: float) -> Tensor:
    del valid, impossible
    return costs.new_empty(costs.shape[:3], dtype=torch.int64)


def check_answers(device: torch.device) -> None:
    """Compare answers of the kernels with known ones, of the sizes that detectors mostly ask for; waits for a GPU.

    Raises:
        RuntimeError: If an answer is wrong.
    """
    # A chain of boxes, each of which overlaps the next by a quarter: every other one stays.
    left = torch.arange(_CHECKED, device=device)[None] * 6.0
    boxes = torch.stack([left, 0 * left, left + 10, 0 * left + 10], 2)
    one_class = torch.zeros(1, _CHECKED, dtype=torch.int64, device=device)
    kept = keep_greedily(compare_pairs(boxes, one_class, 0.2), one_class == 0)
    if kept[0].nonzero().squeeze(1).tolist() != list(range(0, _CHECKED, 2)):
        raise RuntimeError("its kernels for suppression give wrong answers here")
    # Products of 1, 2, 3: the sum is least where large meets small, 10, and not where each takes its least cost.
    costs = torch.full((1, 1, 300, 3), 100.0, device=device)
    costs[0, 0, :3] = torch.tensor([[1.0, 2.0, 3.0], [2.0, 4.0, 6.0], [3.0, 6.0, 9.0]], device=device)
    matches = assign(costs, torch.ones(1, 3, dtype=torch.bool, device=device), 1e6)
    if matches[0, 0].tolist() != [2, 1, 0, *[-1] * 297]:
        raise RuntimeError("its kernel for matching gives wrong answers here")


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


@triton.jit
def _finite(cost, impossible):
    cost = tl.where(cost != cost, impossible, cost)
    return tl.where(tl.abs(cost) == float("inf"), tl.where(cost > 0, impossible, -impossible), cost)


@triton.jit(do_not_specialize=["queries", "objects"])
def _assign(costs, valid, matches, queries, objects, impossible, padded: tl.constexpr):
    # Each row has a column in the end, so that the fewer of both are the rows.
    image = tl.program_id(0)
    problem = (tl.program_id(1) * tl.num_programs(0) + image).to(tl.int64)
    costs += problem * queries * objects
    matches += problem * queries
    valid += image * objects
    columns = tl.arange(0, padded)
    counts = tl.load(valid + columns, columns < objects, 0) != 0
    queries_are_rows = tl.sum(counts.to(tl.int32), 0) > queries
    if queries_are_rows:
        rows, row_stride, column_stride, exists = queries, objects, 1, counts
    else:
        rows, row_stride, column_stride, exists = objects, 1, objects, columns < queries
    prices = tl.zeros([padded], tl.float64)  # the dual variables of columns
    row_of = tl.full([padded], -1, tl.int32)
    for row in range(rows):
        counted = 1
        if not queries_are_rows:
            counted = tl.load(valid + row).to(tl.int32)
        if counted != 0:
            # Dijkstra's shortest path from the row to a free column, over reduced costs, which are not negative.
            lengths = tl.full([padded], float("inf"), tl.float64)
            reached_from = tl.full([padded], -1, tl.int32)
            settled = ~exists
            shortest = tl.zeros([], tl.float64)
            at_row, column, free_column = row, tl.full([], -1, tl.int32), tl.full([], -1, tl.int32)
            while free_column < 0:
                cost = tl.load(costs + at_row * row_stride + columns * column_stride, exists, 0.0)
                reduced = _finite(cost, impossible).to(tl.float64) - prices
                # The row's own dual variable: a matched row's reduced cost is 0; a row without column has none yet.
                reduced -= tl.sum(tl.where(columns == column, reduced, 0.0), 0)
                shorter = (shortest + reduced < lengths) & ~settled
                lengths = tl.where(shorter, shortest + reduced, lengths)
                reached_from = tl.where(shorter, at_row, reached_from)
                open_lengths = tl.where(settled, float("inf"), lengths)
                shortest = tl.min(open_lengths, 0)
                # The first of the nearest, one without a row if there is any.
                order = tl.where(row_of < 0, columns, columns + padded)
                nearest = tl.min(tl.where((open_lengths == shortest) & ~settled, order, 2 * padded), 0)
                column = nearest % padded
                settled |= columns == column
                if nearest < padded:
                    free_column = column
                else:
                    at_row = tl.sum(tl.where(columns == column, row_of, 0), 0)
            prices = tl.where(settled & exists, prices + lengths - shortest, prices)
            # Along the path, each row leaves its column for the next one.
            while free_column >= 0:
                taker = tl.sum(tl.where(columns == free_column, reached_from, 0), 0)
                left = tl.max(tl.where(row_of == taker, columns, -1), 0)
                row_of = tl.where(columns == free_column, taker, row_of)
                free_column = left
    if queries_are_rows:
        tl.store(matches + row_of, columns.to(tl.int64), row_of >= 0)
    else:
        tl.store(matches + columns, row_of.to(tl.int64), row_of >= 0)
