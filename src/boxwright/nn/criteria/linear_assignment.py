"""The linear assignment problem on a GPU: each row gets a column of its own, at the least sum of costs.

One kernel, written in Triton, solves a problem per program by shortest augmenting paths in float64, as SciPy does on
the CPU (Crouse, "On implementing 2D rectangular assignment algorithms", 2016). Imported only where Triton compiles
(`base.device.has_triton`).

Dimensions: S sets of outputs, B batch, Q queries, G objects (padded).
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor


@torch.library.custom_op("boxwright_triton::assign", mutates_args=(), device_types=("cuda", "cpu"))
def assign(costs: Tensor, valid: Tensor, impossible: float) -> Tensor:
    """Return the object that each query is matched with, int64 [S, B, Q], -1 for none, at the least cost of each set.

    Of matchings of equal cost, which one it is may differ from SciPy's. On a CPU it runs in Triton's interpreter only.

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
