"""Options of SSD's criterion that no recording covers, worked by hand."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch

from boxwright.base.errors import ConfigError
from boxwright.config.load import parse_message
from boxwright.families.shared.criterion import build_criterion
from boxwright.families.ssd.build import build_target_assigner
from boxwright.nn.criteria.anchor import AnchorCriterion, Balance, ExpectedSampling, LossNormalizer, ReweightUnmatched
from boxwright.nn.criteria.criterion import LossTerm
from boxwright.nn.criteria.example_selection import BalancedSampler
from boxwright.nn.criteria.losses import (
    NO_COLUMN,
    AbsoluteError,
    Dice,
    GeneralizedIouLoss,
    IouLoss,
    SigmoidCrossEntropy,
    SmoothL1,
)
from boxwright.nn.criteria.target_assigner import (
    ArgmaxMatcher,
    BipartiteMatcher,
    ClassColumns,
    ConfidenceTargets,
    TargetAssigner,
)
from boxwright.nn.ops.boxes import (
    FasterRcnnBoxCoder,
    KeypointBoxCoder,
    MeanStddevBoxCoder,
    ThresholdedIou,
    negative_squared_distance,
)
from boxwright.pipeline import messages as m
from boxwright.pipeline.detector import build_detector
from boxwright.types import AnchorPredictions, Targets
from tests.conftest import SMALL_MODEL

ANCHORS = torch.tensor([[0.0, 0, 10, 10], [20, 20, 40, 40], [60, 60, 70, 70]])
BOX = torch.tensor([[[0.0, 0, 10, 10]]])
SUM = LossNormalizer(by_num_matches=False)


def targets(**more: torch.Tensor) -> Targets:
    one = torch.ones(1, 1)
    return Targets(BOX, torch.tensor([[1]]), one, one > 0, **more)


def predictions(codes: int = 4, columns: int = 3) -> AnchorPredictions:
    return AnchorPredictions(torch.zeros(1, 3, codes), torch.zeros(1, 3, columns), ANCHORS, input_size=(100, 200))


def assigner(**more: object) -> TargetAssigner:
    return TargetAssigner(ClassColumns(2, 1, NO_COLUMN), ArgmaxMatcher(0.5, 0.5), FasterRcnnBoxCoder(), **more)  # type: ignore[arg-type]


LOG2 = 0.6931472


def test_iou_losses_compare_boxes() -> None:
    """Zero codes are the anchor itself: where the box is the anchor nothing is lost, whatever is unmatched."""
    for loss in (IouLoss(), GeneralizedIouLoss()):
        criterion = AnchorCriterion(assigner(), SigmoidCrossEntropy(), loss, SUM)
        assert criterion(predictions(), targets())["Loss/localization_loss"].value.item() == pytest.approx(0)
        shifted = replace(predictions(), box_codes=torch.tensor([[[0.0, 5, 0, 0]] * 3]))
        # Half the anchor's width to the right: IoU 1/3, and the hull has no more than the union.
        value = criterion(shifted, targets())["Loss/localization_loss"].value.item()
        assert value == pytest.approx(2 / 3, abs=1e-5)


def test_generalized_iou_by_hand() -> None:
    """Two unit squares one apart: IoU 0, hull 3, union 2."""
    one, other = torch.tensor([[0.0, 0, 1, 1]]), torch.tensor([[2.0, 0, 3, 1]])
    assert GeneralizedIouLoss()(one, other, torch.ones(1)).item() == pytest.approx(1 + 1 / 3)
    assert IouLoss()(one, other, torch.ones(1)).item() == 1
    assert AbsoluteError()(one[None], other[None], torch.tensor([[0.5]])).item() == pytest.approx(2.0)


def test_dice_of_nothing_costs_one_a_class() -> None:
    zero = torch.zeros(1, 4, 3)
    assert Dice(from_probabilities=True)(zero, zero, torch.zeros(1, 4, 1)).tolist() == [[1, 1, 1]]


def test_sampler_counts() -> None:
    """One positive at a share of a quarter takes three negatives; no positives take none."""
    torch.manual_seed(0)
    positive = torch.zeros(2, 50) > 0
    positive[0, 7] = True
    candidates = torch.ones(2, 50) > 0
    candidates[0, :5] = False
    chosen = BalancedSampler(0.25)(positive, candidates)
    assert chosen[0, 7]
    assert chosen.sum(1).tolist() == [4, 0]
    assert not chosen[0, :5].any()
    assert BalancedSampler(0.01)(positive, candidates).sum(1).tolist() == [45, 0]


def test_sampled_loss_counts_only_what_was_chosen() -> None:
    criterion = AnchorCriterion(assigner(), SigmoidCrossEntropy(), SmoothL1(), SUM, sampler=BalancedSampler(0.5))
    # One positive and one negative anchor, three columns of log 2 each.
    assert criterion(predictions(), targets())["Loss/classification_loss"].value.item() == pytest.approx(6 * LOG2)


@pytest.mark.parametrize("kind", [ExpectedSampling, ReweightUnmatched])
def test_expected_weights(kind: type) -> None:
    """One positive and two negatives: at one negative per positive each counts half."""
    criterion = AnchorCriterion(assigner(), SigmoidCrossEntropy(), SmoothL1(), SUM, expected=kind(Balance(0.0, 1.0)))
    value = criterion(predictions(), targets())["Loss/classification_loss"].value.item()
    assert value == pytest.approx((1 + 2 * 0.5) * 3 * LOG2)
    nothing = Targets(BOX, torch.tensor([[1]]), torch.zeros(1, 1), torch.zeros(1, 1) > 0)
    assert criterion(predictions(), nothing)["Loss/classification_loss"].value.item() == 0
    few = AnchorCriterion(assigner(), SigmoidCrossEntropy(), SmoothL1(), SUM, expected=kind(Balance(1.5, 1.0)))
    assert few(predictions(), nothing)["Loss/classification_loss"].value.item() == pytest.approx(1.5 * 3 * LOG2)


def test_images_that_nobody_looked_at_cost_nothing() -> None:
    criterion = AnchorCriterion(assigner(), SigmoidCrossEntropy(), SmoothL1(), SUM)
    two = Targets(BOX.repeat(2, 1, 1), torch.tensor([[1], [1]]), torch.ones(2, 1), torch.ones(2, 1) > 0)
    twice = replace(predictions(), box_codes=torch.ones(2, 3, 4), class_logits=torch.ones(2, 3, 3))
    whole = criterion(twice, two)
    half = criterion(twice, replace(two, annotated=torch.tensor([True, False])))
    for name, value in half.items():
        assert value.total.item() == pytest.approx(whole[name].total.item() / 2)


def test_confidences_without_any_are_one_hot() -> None:
    wrapped = assigner(adjust=ConfidenceTargets(0.25))
    found = wrapped(ANCHORS, targets())
    assert found.classes[0].tolist() == [[0, 0, 1], [1, 0, 0], [1, 0, 0]]
    assert found.class_weights[0].tolist() == [[1, 0.25, 1], [0.25] * 3, [0.25] * 3]
    stated = wrapped(ANCHORS, targets(confidences=torch.tensor([[[-1.0, 0.4]]])))
    torch.testing.assert_close(stated.classes[0, 0], torch.tensor([0, 0, 0.4]))
    assert stated.class_weights[0, 0].tolist() == [1, 1, 1]
    refuted = wrapped(ANCHORS, targets(confidences=torch.tensor([[[-1.0, 0.0]]])))
    assert refuted.classes[0, 0].tolist() == [1, 0, 0]
    assert refuted.class_weights[0, 0].tolist() == [0.25, 1, 0.25]
    assert refuted.box_weights[0].tolist() == [0, 0, 0]
    nothing = wrapped(
        ANCHORS, Targets(BOX[:, :0], torch.zeros(1, 0, dtype=torch.int64), torch.zeros(1, 0), torch.zeros(1, 0) > 0)
    )
    assert nothing.classes[0].tolist() == [[1, 0, 0]] * 3


def test_hidden_keypoints_cost_nothing() -> None:
    """A shown keypoint one anchor's width right of the centre costs |10| - 0.5; a hidden one nothing."""
    keypoints = torch.tensor([[[[15.0, 5.0], [torch.nan, torch.nan]]]])
    coder = KeypointBoxCoder(2)
    criterion = AnchorCriterion(replace(assigner(), box_coder=coder), SigmoidCrossEntropy(), SmoothL1(), SUM)
    loss = criterion(predictions(codes=8), targets(keypoints=keypoints))["Loss/localization_loss"]
    assert loss.value.item() == pytest.approx(9.5, abs=1e-4)
    assert criterion(predictions(codes=8), targets())["Loss/localization_loss"].value.item() == 0


def test_units_matter_to_some_coders() -> None:
    """A box 2 px right of an anchor on an input 200 px wide is 0.01 off, one deviation of 0.01."""
    moved = Targets(BOX + torch.tensor([2.0, 0, 2, 0]), torch.tensor([[1]]), torch.ones(1, 1), torch.ones(1, 1) > 0)
    criterion = AnchorCriterion(
        replace(assigner(), box_coder=MeanStddevBoxCoder(0.01)), SigmoidCrossEntropy(), AbsoluteError(), SUM
    )
    assert criterion(predictions(), moved)["Loss/localization_loss"].value.item() == pytest.approx(2.0, abs=1e-4)


def test_similarities_by_hand() -> None:
    boxes, others = torch.tensor([[[0.0, 0, 1, 1]]]), torch.tensor([[0.0, 0, 1, 1], [1, 0, 2, 1], [0, 0, 1, 2]])
    assert negative_squared_distance(boxes, others).tolist() == [[[0, -2, -1]]]
    assert ThresholdedIou(0.5)(boxes, others).tolist() == [[[1, 0, 0]]]
    far = replace(assigner(similarity=negative_squared_distance), matcher=BipartiteMatcher())
    assert not far.unit_free
    # Padding never matches, however unlike everything else is.
    padded = Targets(
        BOX.repeat(1, 2, 1), torch.zeros(1, 2, dtype=torch.int64), torch.ones(1, 2), torch.tensor([[True, False]])
    )
    assert far(ANCHORS, padded).match.tolist() == [[0, -1, -1]]


@pytest.mark.parametrize(
    ("change", "wanted"),
    [
        (
            ("matcher", "add_background_class: true explicit_background_class: true matcher"),
            "explicit_background_class: excludes add_background_class",
        ),
        (("faster_rcnn_box_coder { }", "keypoint_box_coder { num_keypoints: 3 }"), "box_code_size is 4"),
        (("faster_rcnn_box_coder { }", "keypoint_box_coder { }"), "at least 1"),
        (("faster_rcnn_box_coder { }", "mean_stddev_box_coder { stddev: 0 }"), "greater than 0"),
        (("    loss {", "    loss { hard_example_miner { }"), "focal loss weighs hard examples itself"),
        (
            ("    loss {", "    loss { random_example_sampler { positive_sample_fraction: 2 }"),
            "less than or equal to 1",
        ),
        (
            (
                "weighted_sigmoid_focal { gamma: 2.0 alpha: 0.25 } }",
                "weighted_dice_classification_loss { } } hard_example_miner { }",
            ),
            "judges all anchors",
        ),
        (
            (
                "weighted_sigmoid_focal { gamma: 2.0 alpha: 0.25 } }",
                "weighted_sigmoid { } } hard_example_miner { } expected_loss_weights: EXPECTED_SAMPLING",
            ),
            "excludes hard_example_miner; it takes its place",
        ),
    ],
)
def test_contradictions(change: tuple[str, str], wanted: str) -> None:
    assert change[0] in SMALL_MODEL
    with pytest.raises(ConfigError, match=wanted):
        build_detector(parse_message(SMALL_MODEL.replace(*change, 1), m.TrainEvalPipelineConfig))


@pytest.mark.slow_except("-5-4-0")
@pytest.mark.parametrize(
    ("flags", "columns", "classes", "unmatched"),
    [
        ("", 5, 4, 0),
        ("encode_background_as_zeros: true", 5, 4, NO_COLUMN),
        # As in TF, whose label of "nothing" falls on the first class then.
        ("add_background_class: false", 4, 4, 0),
        ("add_background_class: false encode_background_as_zeros: true", 4, 4, NO_COLUMN),
        ("add_background_class: false explicit_background_class: true", 4, 3, 0),
    ],
)
def test_background(flags: str, columns: int, classes: int, unmatched: int) -> None:
    text = SMALL_MODEL.replace("encode_background_as_zeros: true", flags)
    detector = build_detector(parse_message(text, m.TrainEvalPipelineConfig))
    assert detector.num_classes == classes
    criterion = detector.criterion
    assert isinstance(criterion, AnchorCriterion)
    assert criterion.assigner.columns.unmatched == unmatched
    inputs, sizes = detector.preprocess(torch.zeros(1, 64, 64, 3))
    with torch.no_grad():
        found = detector.predict(inputs)
    assert found.class_logits.shape[2] == columns
    assert detector.postprocess(found, sizes)[0].labels.max() < classes


@pytest.mark.slow_cases("random_example_sampler { }")
@pytest.mark.parametrize("name", ["random_example_sampler { }", "expected_loss_weights: REWEIGHTING_UNMATCHED_ANCHORS"])
def test_every_selection_trains(name: str) -> None:
    text = SMALL_MODEL.replace("    loss {", f"    loss {{ {name}", 1)
    config = parse_message(text, m.TrainEvalPipelineConfig)
    assert config.model is not None
    assert config.model.ssd is not None
    assert config.model.ssd.loss is not None
    assigner = build_target_assigner(config.model.ssd, ClassColumns(4, 1, NO_COLUMN))
    criterion = build_criterion(config.model.ssd.loss, assigner)
    detector = build_detector(config)
    inputs, _ = detector.preprocess(torch.rand(1, 64, 64, 3) * 255)
    losses = criterion(
        detector.train().predict(inputs), Targets(BOX * 3, torch.tensor([[1]]), torch.ones(1, 1), torch.ones(1, 1) > 0)
    )
    torch.autograd.backward(LossTerm.sum(losses))
    assert all(term.value.isfinite() for term in losses.values())


@pytest.mark.parametrize(
    "matcher",
    [
        ArgmaxMatcher(None),
        ArgmaxMatcher(0.7, 0.3, negatives_lower_than_unmatched=False),
        ArgmaxMatcher(0.5, 0.5, True, True),
    ],
)
def test_an_image_without_objects_beside_one_with(matcher: ArgmaxMatcher) -> None:
    """TF calls every anchor of it unmatched, whatever the matcher's thresholds."""
    boxes = torch.cat([BOX, torch.zeros_like(BOX)])
    valid = torch.tensor([[True], [False]])
    both = Targets(boxes, torch.zeros(2, 1, dtype=torch.int64), valid.float(), valid)
    found = replace(assigner(), matcher=matcher)(ANCHORS, both)
    assert found.match[1].tolist() == [-1, -1, -1]
    assert found.class_weights[1].flatten().tolist() == [1, 1, 1]
    assert found.box_weights[1].tolist() == [0, 0, 0]
    assert found.match[0, 0] == 0
