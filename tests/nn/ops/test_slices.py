"""Large comparisons slice by slice: the same bits, in little memory."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch import Tensor

from boxwright.nn.ops import boxes as geometry
from boxwright.nn.ops.boxes import rows_at_once


def test_rows_at_once() -> None:
    cpu, gpu = torch.device("cpu"), torch.device("cuda", 0)
    assert rows_at_once(128, 16 * 76725, cpu) == 13, "a tenth of 128, rounded up"
    assert rows_at_once(5, 1 << 20, cpu) == 2, "of 2^20 numbers each, 2^21 at a time"
    assert rows_at_once(5, 1 << 20, gpu) == 8, "and 2^23"
    assert rows_at_once(0, 10, cpu) >= 1
    assert rows_at_once(3, 0, cpu) >= 3
    assert rows_at_once(3, 1 << 40, cpu) == 1


def boxes_of(*shape: int) -> Tensor:
    generator = torch.Generator().manual_seed(sum(shape))
    corners = torch.rand(*shape, 4, generator=generator) * 100
    corners[..., 2:] += corners[..., :2] - 20  # some turned inside out
    corners[..., ::7, :] = corners[..., :1, :]
    corners[..., 1::11, 2] = torch.nan
    corners[..., 2::13, :] = 0
    return corners


def one_pair(box: list[float], other: list[float], *, union: bool) -> float:
    """Compare two boxes in Python's numbers."""
    width = max(min(box[2], other[2]) - max(box[0], other[0]), 0.0)
    height = max(min(box[3], other[3]) - max(box[1], other[1]), 0.0)
    common = width * height
    area = (other[2] - other[0]) * (other[3] - other[1])
    whole = (box[2] - box[0]) * (box[3] - box[1]) + area - common if union else area
    return common / whole if common > 0 else 0.0


@pytest.mark.parametrize(("compare", "union"), [(geometry.pairwise_iou, True), (geometry.pairwise_ioa, False)])
@pytest.mark.parametrize("leading", [(), (2,)])
def test_slices_are_the_whole(
    compare: Callable[[Tensor, Tensor], Tensor],
    union: bool,
    leading: tuple[int, ...],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    boxes, anchors = boxes_of(*leading, 17), boxes_of(29)
    whole = compare(boxes, anchors)
    sizes = []

    def few(rows: int, numbers: int, device: torch.device) -> int:
        sizes.append((rows, numbers, device))
        return 4

    monkeypatch.setattr(geometry, "rows_at_once", few)
    assert torch.equal(compare(boxes, anchors), whole)
    assert sizes == [(17, 29 * (leading or (1,))[0], torch.device("cpu"))]
    flat = whole.view(-1, 17, 29)[0]
    first = boxes.view(-1, 17, 4)[0]
    known = [
        (row, column)
        for row in range(17)
        for column in range(29)
        if not (first[row].isnan().any() or anchors[column].isnan().any())
    ]
    for row, column in known:
        wanted = one_pair(first[row].tolist(), anchors[column].tolist(), union=union)
        assert float(flat[row, column]) == pytest.approx(wanted, rel=1e-4, abs=1e-6)
    assert len(known) > 300
