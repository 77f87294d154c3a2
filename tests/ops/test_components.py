"""Pure functions against what TensorFlow recorded, by way of the builders where there is a message."""

from __future__ import annotations

import pytest
import torch

from boxwright.builders.target_assigner import build_box_coder, build_matcher, build_similarity
from boxwright.config import messages as m
from boxwright.config import parse_message
from boxwright.ops.box_coder import FasterRcnnBoxCoder
from boxwright.ops.boxes import box_area, clip_boxes, pairwise_iou
from boxwright.ops.matcher import IGNORED, UNMATCHED, ArgmaxMatcher
from boxwright.ops.nms import suppress_batch, suppress_classes
from boxwright.ops.resize import resize_bilinear, resize_nearest
from tests.conftest import Components, assert_close, xyxy, yxyx


@pytest.mark.parametrize("case", ["box_coder/0", "box_coder/1"])
def test_faster_rcnn_box_coder(components: Components, case: str) -> None:
    coder = build_box_coder(parse_message(components.cases[case]["text"], m.BoxCoder))
    boxes, anchors = xyxy(components.array(case, "in/boxes")), xyxy(components.array(case, "in/anchors"))
    codes = coder.encode(boxes, anchors)
    assert_close(codes, components.array(case, "out/encoded"))
    assert_close(yxyx(coder.decode(codes, anchors)), components.array(case, "out/decoded"))


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


def test_iou_similarity(components: Components) -> None:
    similarity = build_similarity(parse_message("iou_similarity { }", m.RegionSimilarityCalculator))
    case = "similarity/0"
    boxes, others = xyxy(components.array(case, "in/boxes1")), xyxy(components.array(case, "in/boxes2"))
    assert_close(similarity(boxes, others), components.array(case, "out/similarity"))


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


def test_matchers(components: Components) -> None:
    cases = components.of_kind("matcher")
    assert len(cases) == 5
    for case in cases:
        matcher = build_matcher(parse_message(case["text"], m.Matcher))
        similarity = torch.from_numpy(components.array(case["id"], "in/similarity"))[None]
        match = matcher(similarity, torch.ones(similarity.shape[:2], dtype=torch.bool))
        assert match[0].tolist() == components.array(case["id"], "out/match").tolist(), case["id"]


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
