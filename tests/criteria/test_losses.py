from __future__ import annotations

import math

import pytest
import torch

from boxwright.builders.losses import (
    build_classification_loss,
    build_hard_example_miner,
    build_localization_loss,
)
from boxwright.config import messages as m
from boxwright.config import parse_message
from boxwright.criteria.classification_losses import SigmoidCrossEntropy, SigmoidFocal, SoftmaxCrossEntropy
from boxwright.criteria.localization_losses import SmoothL1, SquaredError
from boxwright.criteria.ssd import LossNormalizer, SSDCriterion
from boxwright.criteria.target_assigner import ClassColumns, TargetAssigner
from boxwright.ops.box_coder import FasterRcnnBoxCoder
from boxwright.ops.matcher import ArgmaxMatcher
from boxwright.types import Predictions, Targets
from tests.conftest import Components, assert_close, xyxy

SUPPORTED = ("weighted_sigmoid ", "weighted_sigmoid_focal", "weighted_softmax ")


def test_classification_losses(components: Components) -> None:
    checked = 0
    for case in components.of_kind("classification_loss"):
        if not case["text"].startswith(SUPPORTED):
            continue  # refused: see the support table
        loss = build_classification_loss(parse_message(case["text"], m.ClassificationLoss))
        logits, targets, weights = (
            torch.from_numpy(components.array(case["id"], f"in/{name}")) for name in ("prediction", "target", "weights")
        )
        expected = components.array(case["id"], "out/loss")
        expected = expected.sum(-1) if expected.ndim == 3 else expected
        assert_close(loss(logits, targets, weights[..., 0]), expected)
        checked += 1
    assert checked == 5


def test_localization_losses(components: Components) -> None:
    checked = 0
    for case in components.of_kind("localization_loss"):
        if not case["text"].startswith(("weighted_l2", "weighted_smooth_l1")):
            continue  # refused: see the support table
        loss = build_localization_loss(parse_message(case["text"], m.LocalizationLoss))
        codes, targets, weights = (
            torch.from_numpy(components.array(case["id"], f"in/{name}")) for name in ("prediction", "target", "weights")
        )
        assert_close(loss(codes, targets, weights), components.array(case["id"], "out/loss"))
        checked += 1
    assert checked == 3


def test_losses_by_hand() -> None:
    zero, one, weight = torch.zeros(1, 1, 2), torch.tensor([[[1.0, 0.0]]]), torch.tensor([[2.0]])
    log2 = math.log(2)
    assert SigmoidCrossEntropy()(zero, one, weight).item() == pytest.approx(2 * 2 * log2)
    assert SoftmaxCrossEntropy()(zero, one, weight).item() == pytest.approx(2 * log2)
    # p = 0.5: (1 − p_t)² = 0.25; α = 0.25 for the positive column and 0.75 for the negative one.
    assert SigmoidFocal()(zero, one, weight).item() == pytest.approx(2 * 0.25 * log2 * (0.25 + 0.75))
    codes = torch.tensor([[[0.5, 3.0]]])
    assert SmoothL1(1.0)(codes, torch.zeros(1, 1, 2), weight).item() == pytest.approx(2 * (0.125 + 2.5))
    assert SquaredError()(codes, torch.zeros(1, 1, 2), weight).item() == pytest.approx(0.5 * 4 * (0.25 + 9))


def test_hard_example_miner(components: Components) -> None:
    cases = components.of_kind("hard_example_miner")
    assert len(cases) == 4
    for case in cases:
        params = case["params"]
        miner = build_hard_example_miner(
            parse_message(case["text"], m.HardExampleMiner), params["cls_loss_weight"], params["loc_loss_weight"]
        )
        boxes = xyxy(components.array(case["id"], "in/decoded_boxes"))
        class_losses = torch.from_numpy(components.array(case["id"], "in/cls_losses"))
        box_losses = torch.from_numpy(components.array(case["id"], "in/location_losses"))
        match = torch.from_numpy(components.array(case["id"], "in/match")).long()
        chosen = miner(class_losses, box_losses, boxes, match)
        assert_close((class_losses * chosen).sum(), components.array(case["id"], "out/mined_cls_loss"))
        assert_close((box_losses * chosen).sum(), components.array(case["id"], "out/mined_location_loss"))


def test_target_assigner(components: Components) -> None:
    cases = components.of_kind("target_assigner")
    assert len(cases) == 3
    for case in cases:
        params, id = case["params"], case["id"]
        rows = [
            [components.array(id, f"in/groundtruth_{what}_{image}") for image in (0, 1)]
            for what in ("boxes", "classes", "weights")
        ]
        count = max(map(len, rows[0]))
        targets = Targets(
            torch.zeros(2, count, 4),
            torch.zeros(2, count, dtype=torch.int64),
            torch.zeros(2, count),
            torch.zeros(2, count) > 0,
        )
        for image, (boxes, classes, weights) in enumerate(zip(*rows, strict=True)):
            targets.boxes[image, : len(boxes)] = xyxy(boxes)
            targets.labels[image, : len(boxes)] = torch.from_numpy(classes.argmax(-1)) - 1
            targets.weights[image, : len(boxes)] = torch.from_numpy(weights)
            targets.valid[image, : len(boxes)] = True
        assigner = TargetAssigner(
            ClassColumns(5),
            ArgmaxMatcher(
                params["matched_threshold"],
                params["unmatched_threshold"],
                force_match_for_each_row=params["force_match_for_each_row"],
            ),
            FasterRcnnBoxCoder(*params["scale_factors"]),
            negative_class_weight=params["negative_class_weight"],
        )
        found = assigner(xyxy(components.array(id, "in/anchors")), targets)
        assert found.match.tolist() == components.array(id, "out/match").tolist()
        assert_close(found.box_codes, components.array(id, "out/reg_targets"))
        assert_close(found.box_weights, components.array(id, "out/reg_weights"))
        assert_close(found.classes, components.array(id, "out/cls_targets"))
        weights = components.array(id, "out/cls_weights")
        assert_close(found.class_weights[..., None].expand(weights.shape), weights)


@pytest.mark.parametrize("padding", [0, 3], ids=["no rows", "padding only"])
def test_criterion_on_images_without_objects(padding: int) -> None:
    """All anchors are background; the loss is finite and pulls every class logit down."""
    assigner = TargetAssigner(
        ClassColumns(2, 1, 0.0), ArgmaxMatcher(force_match_for_each_row=True), FasterRcnnBoxCoder()
    )
    criterion = SSDCriterion(assigner, SigmoidFocal(), SmoothL1(), LossNormalizer())
    logits = torch.zeros(2, 3, 3, requires_grad=True)
    anchors = torch.tensor([[0.0, 0, 8, 8], [8, 0, 16, 8], [0, 8, 8, 16]])
    targets = Targets(
        torch.zeros(2, padding, 4),
        torch.zeros(2, padding, dtype=torch.int64),
        torch.zeros(2, padding),
        torch.zeros(2, padding) > 0,
    )
    losses = criterion(Predictions(torch.randn(2, 3, 4), logits, anchors), targets)
    assert losses["Loss/localization_loss"].item() == 0
    losses["Loss/classification_loss"].backward()  # type: ignore[no-untyped-call]
    assert logits.grad is not None
    assert (logits.grad > 0).all()


def test_padding_changes_nothing() -> None:
    generator = torch.Generator().manual_seed(1)
    anchors = torch.tensor([[float(x), float(y), x + 8.0, y + 8.0] for x in range(0, 32, 4) for y in range(0, 32, 4)])
    predictions = Predictions(
        torch.randn(1, len(anchors), 4, generator=generator),
        torch.randn(1, len(anchors), 4, generator=generator),
        anchors,
    )
    boxes, labels = torch.tensor([[[3.0, 3, 12, 12], [20, 16, 28, 30]]]), torch.tensor([[1, 2]])
    plain = Targets(boxes, labels, torch.ones(1, 2), torch.ones(1, 2) > 0)
    padded = Targets(
        torch.cat([boxes, torch.zeros(1, 6, 4)], 1),
        torch.cat([labels, torch.zeros(1, 6, dtype=torch.int64)], 1),
        torch.cat([torch.ones(1, 2), torch.zeros(1, 6)], 1),
        torch.cat([torch.ones(1, 2), torch.zeros(1, 6)], 1) > 0,
    )
    assigner = TargetAssigner(ClassColumns(3), ArgmaxMatcher(force_match_for_each_row=True), FasterRcnnBoxCoder())
    criterion = SSDCriterion(assigner, SigmoidCrossEntropy(), SmoothL1(), LossNormalizer())
    assert criterion(predictions, plain) == criterion(predictions, padded)
