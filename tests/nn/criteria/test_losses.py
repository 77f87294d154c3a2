from __future__ import annotations

import math

import pytest
import torch

from boxwright.nn.criteria.anchor import AnchorCriterion, LossNormalizer
from boxwright.nn.criteria.classification_losses import (
    NO_COLUMN,
    SigmoidCrossEntropy,
    SigmoidFocal,
    SoftmaxCrossEntropy,
)
from boxwright.nn.criteria.localization_losses import SmoothL1, SquaredError
from boxwright.nn.criteria.target_assigner import ArgmaxMatcher, ClassColumns, TargetAssigner
from boxwright.nn.ops.box_coder import FasterRcnnBoxCoder
from boxwright.types import AnchorPredictions, Targets


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


@pytest.mark.parametrize("padding", [0, 3], ids=["no rows", "padding only"])
def test_criterion_on_images_without_objects(padding: int) -> None:
    """All anchors are background; the loss is finite and pulls every class logit down."""
    assigner = TargetAssigner(
        ClassColumns(2, 1, NO_COLUMN), ArgmaxMatcher(force_match_for_each_row=True), FasterRcnnBoxCoder()
    )
    criterion = AnchorCriterion(assigner, SigmoidFocal(), SmoothL1(), LossNormalizer())
    logits = torch.zeros(2, 3, 3, requires_grad=True)
    anchors = torch.tensor([[0.0, 0, 8, 8], [8, 0, 16, 8], [0, 8, 8, 16]])
    targets = Targets(
        torch.zeros(2, padding, 4),
        torch.zeros(2, padding, dtype=torch.int64),
        torch.zeros(2, padding),
        torch.zeros(2, padding) > 0,
    )
    losses = criterion(AnchorPredictions(torch.randn(2, 3, 4), logits, anchors), targets)
    assert losses["Loss/localization_loss"].value.item() == 0
    losses["Loss/classification_loss"].value.backward()  # type: ignore[no-untyped-call]
    assert logits.grad is not None
    assert (logits.grad > 0).all()


def test_padding_changes_nothing() -> None:
    generator = torch.Generator().manual_seed(1)
    anchors = torch.tensor([[float(x), float(y), x + 8.0, y + 8.0] for x in range(0, 32, 4) for y in range(0, 32, 4)])
    predictions = AnchorPredictions(
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
    criterion = AnchorCriterion(assigner, SigmoidCrossEntropy(), SmoothL1(), LossNormalizer())
    assert criterion(predictions, plain) == criterion(predictions, padded)
