"""Pure functions, against what TensorFlow returned or what a hand can work out."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from boxwright.nn.criteria.example_selection import suppress_batch
from boxwright.nn.criteria.target_assigner import (
    IGNORED,
    UNMATCHED,
    ArgmaxMatcher,
    BipartiteArgmaxMatcher,
    BipartiteMatcher,
)
from boxwright.nn.ops.boxes import (
    BoxCoder,
    FasterRcnnBoxCoder,
    KeypointBoxCoder,
    MeanStddevBoxCoder,
    SquareBoxCoder,
    box_area,
    clip_boxes,
    pairwise_iou,
)
from boxwright.nn.ops.resize import resize_area, resize_bicubic, resize_bilinear, resize_nearest
from boxwright.nn.suppression.image_by_image import suppress_classes
from tests.conftest import GOLDEN, assert_close


def test_box_coder_by_hand() -> None:
    """Anchor centre (10, 20), 10 wide, 20 high; box moved by (1, 4) and doubled in width."""
    anchor, box = torch.tensor([[5.0, 10, 15, 30]]), torch.tensor([[1.0, 14, 21, 34]])
    codes = FasterRcnnBoxCoder(10, 10, 5, 5).encode(box, anchor)
    torch.testing.assert_close(codes, torch.tensor([[2.0, 1.0, 0.0, 5 * 0.6931472]]))


def test_box_coder_is_its_own_inverse_even_for_one_pixel() -> None:
    generator = torch.Generator().manual_seed(0)
    corner, side = torch.rand(50, 2, generator=generator) * 100, torch.rand(50, 2, generator=generator) * 60 + 1
    side[0] = 1
    boxes = torch.cat([corner, corner + side], 1)
    anchors = boxes.roll(7, 0)
    coder = FasterRcnnBoxCoder()
    torch.testing.assert_close(coder.decode(coder.encode(boxes, anchors), anchors), boxes, atol=1e-3, rtol=1e-4)


@pytest.mark.parametrize(
    ("other", "wanted", "why"),
    [
        ([0, 0, 10, 10], 1.0, "the same"),
        ([5, 0, 15, 10], 1 / 3, "half overlaps half"),
        ([10, 0, 20, 10], 0.0, "touching"),
        ([2, 2, 4, 4], 0.04, "nested"),
        ([3, 3, 3, 3], 0.0, "without area"),
        ([30, 30, 40, 40], 0.0, "apart"),
    ],
)
def test_iou_by_hand(other: list[float], wanted: float, why: str) -> None:
    value = pairwise_iou(torch.tensor([[0.0, 0, 10, 10]]), torch.tensor([other], dtype=torch.float32))
    assert value.item() == pytest.approx(wanted), why


def test_iou_of_nothing() -> None:
    assert pairwise_iou(torch.zeros(2, 0, 4), torch.zeros(5, 4)).shape == (2, 0, 5)
    assert pairwise_iou(torch.zeros(1, 4), torch.zeros(1, 4)).item() == 0


def test_area_and_clipping() -> None:
    boxes = torch.tensor([[-5.0, -5, 5, 5], [20, 20, 30, 30], [2, 3, 4, 5]])
    clipped = clip_boxes(boxes, height=10, width=8)
    assert clipped.tolist() == [[0, 0, 5, 5], [8, 10, 8, 10], [2, 3, 4, 5]]
    assert box_area(clipped).tolist() == [25, 0, 4]


def test_matcher_by_hand() -> None:
    """Two boxes, four anchors: matched, between, negative, and an anchor forced on the second box."""
    similarity = torch.tensor([[[0.8, 0.5, 0.1, 0.2], [0.0, 0.1, 0.0, 0.3]]])
    valid = torch.tensor([[True, True]])
    plain = ArgmaxMatcher(0.7, 0.4)(similarity, valid)
    assert plain.tolist() == [[0, IGNORED, UNMATCHED, UNMATCHED]]
    forced = ArgmaxMatcher(0.7, 0.4, force_match_for_each_row=True)(similarity, valid)
    assert forced.tolist() == [[0, IGNORED, UNMATCHED, 1]]
    padded = ArgmaxMatcher(0.7, 0.4, force_match_for_each_row=True)(similarity, torch.tensor([[True, False]]))
    assert padded.tolist() == plain.tolist()


def test_matcher_gives_a_contested_anchor_to_the_first_box() -> None:
    similarity = torch.tensor([[[0.1, 0.3], [0.1, 0.35]]])
    match = ArgmaxMatcher(force_match_for_each_row=True)(similarity, torch.ones(1, 2, dtype=torch.bool))
    assert match.tolist() == [[UNMATCHED, 0]]


def test_matcher_without_boxes() -> None:
    assert ArgmaxMatcher()(torch.zeros(2, 0, 3), torch.zeros(2, 0, dtype=torch.bool)).tolist() == [[UNMATCHED] * 3] * 2


def test_resize_by_hand() -> None:
    """Enlarging 2 pixels to 4 samples at 0, 0.5, 1, 1.5; shrinking 4 to 2 takes pixels 0 and 2."""
    row = torch.tensor([0.0, 10.0]).view(1, 2, 1)
    assert resize_bilinear(row, 1, 4).flatten().tolist() == [0, 5, 10, 10]
    row = torch.tensor([0, 1, 2, 3], dtype=torch.uint8).view(1, 4, 1)
    assert resize_bilinear(row, 1, 2).flatten().tolist() == [0, 2]
    assert resize_nearest(row, 1, 8).flatten().tolist() == [0, 0, 1, 1, 2, 2, 3, 3]


def test_suppression_by_hand() -> None:
    boxes = torch.tensor([[0.0, 0, 10, 10], [1, 0, 11, 10], [20, 20, 30, 30]])
    scores = torch.tensor([0.9, 0.8, 0.7])
    assert suppress_classes(boxes, scores, torch.tensor([0, 0, 0]), 0.5).tolist() == [0, 2]
    assert suppress_classes(boxes, scores, torch.tensor([0, 1, 0]), 0.5).tolist() == [0, 1, 2]
    assert suppress_classes(boxes[:0], scores[:0], torch.zeros(0, dtype=torch.int64), 0.5).tolist() == []
    assert suppress_batch(boxes[None], scores[None], 0.5, 1).tolist() == [[True, False, False]]


RECORDED = np.load(GOLDEN / "tensorflow_ops.npz")
METHODS = {"bilinear": resize_bilinear, "nearest": resize_nearest, "bicubic": resize_bicubic, "area": resize_area}
RESIZES = sorted(name for name in RECORDED.files if name.startswith("resize/") and name != "resize/image")


@pytest.mark.parametrize("name", RESIZES)
def test_resizing_is_tensorflows(name: str) -> None:
    assert len(RESIZES) == 24
    _, method, aligned, size = name.split("/")
    height, width = map(int, size.split("x"))
    found = METHODS[method](torch.from_numpy(RECORDED["resize/image"]), height, width, align_corners=aligned == "1")
    assert_close(found, RECORDED[name], absolute=1e-3)


def test_bipartite_by_hand() -> None:
    """The best pair first (row 1, column 0), then the best of what is left for row 0 (column 2)."""
    alike = torch.tensor([[[0.8, 0.1, 0.3, 0.0], [0.9, 0.7, 0.2, 0.0], [0.99, 0.99, 0.99, 0.99]]])
    valid = torch.tensor([[True, True, False]])
    assert BipartiteMatcher()(alike, valid).tolist() == [[1, -1, 0, -1]]
    assert BipartiteMatcher()(alike[:, :0], valid[:, :0]).tolist() == [[-1] * 4]
    assert BipartiteMatcher()(alike[:, :, :1], valid).tolist() == [[1]]


@pytest.mark.parametrize("coder", [MeanStddevBoxCoder(0.1), KeypointBoxCoder(2)])
def test_other_coders_are_their_own_inverse(coder: BoxCoder) -> None:
    boxes, anchors = torch.tensor([[0.1, 0.2, 0.5, 0.9]]), torch.tensor([[0.0, 0.1, 0.4, 0.7]])
    torch.testing.assert_close(coder.decode(coder.encode(boxes, anchors), anchors), boxes)
    assert coder.encode(boxes, anchors).shape == (1, coder.code_size)


def test_square_coder_keeps_centre_and_area() -> None:
    boxes, anchors = torch.tensor([[0.0, 0, 4, 1]]), torch.tensor([[0.0, 0, 2, 2]])
    coder = SquareBoxCoder()
    torch.testing.assert_close(coder.decode(coder.encode(boxes, anchors), anchors), torch.tensor([[1.0, -0.5, 3, 1.5]]))
    assert coder.code_size == 3


def test_keypoints_by_hand() -> None:
    """An anchor 10 wide around (5, 5): a point 5 right of its centre is half a width, ten times over."""
    coder, anchor = KeypointBoxCoder(1), torch.tensor([[0.0, 0, 10, 20]])
    codes = coder.encode(anchor, anchor, torch.tensor([[[10.0, 5.0]]]))
    torch.testing.assert_close(codes[0, 4:], torch.tensor([-2.5, 5.0]))
    assert coder.decode_keypoints(codes, anchor)[0, 0].tolist() == pytest.approx([10, 5], abs=1e-4)
    assert coder.encode(anchor, anchor)[0, 4:].isnan().all()


def test_bipartite_argmax_matcher() -> None:
    """Pairs first, the best of all; then thresholds; what does not overlap at all gets no anchor of its own."""
    similarity = torch.tensor(
        [
            [[0.9, 0.6, 0.0, 0.2], [0.8, 0.1, 0.0, 0.55], [0.0, 0.0, 0.0, 0.0]],
            [[0.0, 0.0, 0.3, 0.1], [-torch.inf] * 4, [-torch.inf] * 4],
        ]
    )
    valid = torch.tensor([[True, True, True], [True, False, False]])
    # The second box's best anchor is taken by the first; its next best is its own, with 0.55.
    assert BipartiteArgmaxMatcher(0.5, 0.5)(similarity, valid).tolist() == [[0, 0, -1, 1], [-1, -1, 0, -1]]
    # Pairs hold below every threshold; an anchor of the first image lies between.
    assert BipartiteArgmaxMatcher(0.7, 0.3)(similarity, valid).tolist() == [[0, -2, -1, 1], [-1, -1, 0, -1]]


def test_bipartite_argmax_matcher_without_boxes() -> None:
    matcher = BipartiteArgmaxMatcher()
    assert matcher(torch.zeros(2, 0, 3), torch.zeros(2, 0, dtype=torch.bool)).tolist() == [[-1] * 3] * 2
    padded = matcher(torch.full((1, 2, 3), -torch.inf), torch.zeros(1, 2, dtype=torch.bool))
    assert padded.tolist() == [[-1] * 3]
