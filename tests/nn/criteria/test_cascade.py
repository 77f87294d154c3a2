"""The losses of two steps (RefineDet's) against a slow, plain computation, and the mistakes that known ports make."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace

import numpy as np
import pytest
import torch
from torch import Tensor

import boxwright as bw
from boxwright.config.load import parse_message
from boxwright.families.refinedet.network import RefineDet
from boxwright.nn.criteria.anchor import AnchorCriterion, CascadeCriterion
from boxwright.nn.criteria.criterion import Description, LossTerm
from boxwright.nn.criteria.target_assigner import IGNORED, UNMATCHED
from boxwright.nn.ops.boxes import SecondStep
from boxwright.pipeline import messages as m
from boxwright.types import AnchorPredictions, CascadePredictions, Targets

SIDE = 64.0
CLASSES = 3
TERMS = (
    "Loss/refinement/localization_loss",
    "Loss/refinement/objectness_loss",
    "Loss/localization_loss",
    "Loss/classification_loss",
)


@dataclass(frozen=True)
class Judge:
    """RefineDet's criterion, for predictions that the second step has yet to begin."""

    criterion: CascadeCriterion
    rule: SecondStep

    @property
    def refinement(self) -> AnchorCriterion:
        return self.criterion.steps[0].criterion

    @property
    def detection(self) -> AnchorCriterion:
        return self.criterion.steps[1].criterion

    def begun(self, predictions: CascadePredictions) -> CascadePredictions:
        return CascadePredictions((predictions.refinement, self.second_step(predictions)))

    def second_step(self, predictions: CascadePredictions) -> AnchorPredictions:
        anchors, filtered = self.rule(predictions.refinement)
        return replace(predictions.detection, anchors=anchors, filtered=filtered)

    def __call__(self, predictions: CascadePredictions, targets: Targets) -> dict[str, LossTerm]:
        return self.criterion(self.begun(predictions), targets)

    def describe(self, predictions: CascadePredictions, targets: Targets) -> Description:
        return self.criterion.describe(self.begun(predictions), targets)


def criterion_of(refinement: str = "", more: str = "") -> Judge:
    text = f"""refinedet {{ num_classes: {CLASSES} anchor_refinement {{ {refinement} }} {more}
      image_resizer {{ fixed_shape_resizer {{ height: 64 width: 64 }} }}
      feature_extractor {{ type: "refinedet_mobilenet_v2" depth_multiplier: 0.1 }} }}"""
    return judge_of(bw.build_detector(parse_message(text, m.DetectionModel)))


def judge_of(detector: bw.Detector) -> Judge:
    assert isinstance(detector.criterion, CascadeCriterion)
    assert isinstance(detector.network, RefineDet)
    return Judge(detector.criterion, detector.network.second_step)


def targets_of(images: list[tuple[list[list[float]], list[int]]]) -> Targets:
    most = max(len(boxes) for boxes, _ in images)
    boxes, labels = torch.zeros(len(images), most, 4), torch.zeros(len(images), most, dtype=torch.int64)
    valid = torch.zeros(len(images), most, dtype=torch.bool)
    for i, (rows, classes) in enumerate(images):
        boxes[i, : len(rows)] = torch.tensor(rows).reshape(-1, 4)
        labels[i, : len(rows)] = torch.tensor(classes, dtype=torch.int64)
        valid[i, : len(rows)] = True
    return Targets(boxes, labels, valid.float(), valid)


def refinedet_predictions(
    codes: Tensor, logits: Tensor, anchors: Tensor, *, input_size: tuple[int, int], refinement: tuple[Tensor, Tensor]
) -> CascadePredictions:
    """Put both steps' codes and logits together."""
    first = AnchorPredictions(*refinement, anchors, input_size=input_size)
    return CascadePredictions((first, AnchorPredictions(codes, logits, anchors, input_size=input_size)))


def random_case(seed: int, images: int = 3, anchors: int = 40) -> tuple[CascadePredictions, Targets]:
    random = torch.Generator().manual_seed(seed)
    centre = torch.rand(anchors, 2, generator=random) * SIDE
    size = 8 + 24 * torch.rand(anchors, 2, generator=random)
    tiled = torch.cat([centre - size / 2, centre + size / 2], -1)
    groundtruth = []
    for count in (4, 1, 0)[:images]:
        corner = torch.rand(count, 2, generator=random) * 40
        extent = 6 + torch.rand(count, 2, generator=random) * 30
        boxes = torch.cat([corner, corner + extent], -1)
        groundtruth.append((boxes.tolist(), torch.randint(CLASSES, (count,), generator=random).tolist()))
    predictions = refinedet_predictions(
        torch.randn(images, anchors, 4, generator=random),
        torch.randn(images, anchors, CLASSES + 1, generator=random),
        tiled,
        input_size=(64, 64),
        # Wide logits, so that the filter finds something below 0.01.
        refinement=(
            0.5 * torch.randn(images, anchors, 4, generator=random),
            4 * torch.randn(images, anchors, 2, generator=random),
        ),
    )
    return predictions, targets_of(groundtruth)


# A plain reading of section 3.4 and of the facts of the Caffe code, one number at a time.


def iou(a: list[float], b: list[float]) -> float:
    width, height = min(a[2], b[2]) - max(a[0], b[0]), min(a[3], b[3]) - max(a[1], b[1])
    if width <= 0 or height <= 0:
        return 0.0
    inner = width * height
    return inner / ((a[2] - a[0]) * (a[3] - a[1]) + (b[2] - b[0]) * (b[3] - b[1]) - inner)


def decode(code: list[float], anchor: list[float]) -> list[float]:
    ty, tx, th, tw = code
    width, height = anchor[2] - anchor[0], anchor[3] - anchor[1]
    x, y = (anchor[0] + anchor[2]) / 2 + 0.1 * tx * width, (anchor[1] + anchor[3]) / 2 + 0.1 * ty * height
    half_w, half_h = width * math.exp(0.2 * tw) / 2, height * math.exp(0.2 * th) / 2
    return [x - half_w, y - half_h, x + half_w, y + half_h]


def encode(box: list[float], anchor: list[float]) -> list[float]:
    width, height = anchor[2] - anchor[0], anchor[3] - anchor[1]
    return [
        ((box[1] + box[3]) - (anchor[1] + anchor[3])) / 2 / height / 0.1,
        ((box[0] + box[2]) - (anchor[0] + anchor[2])) / 2 / width / 0.1,
        math.log((box[3] - box[1]) / height) / 0.2,
        math.log((box[2] - box[0]) / width) / 0.2,
    ]


def match(anchors: list[list[float]], boxes: list[list[float]]) -> list[int]:
    result = [-1] * len(anchors)
    pool = set(range(len(boxes)))
    while pool:
        best = max((iou(anchors[a], boxes[g]), -a, -g) for a in range(len(anchors)) for g in pool if result[a] < 0)
        if best[0] <= 1e-6:
            break
        result[-best[1]] = -best[2]
        pool.remove(-best[2])
    for a, anchor in enumerate(anchors):
        if result[a] < 0 and boxes:
            overlaps = [iou(anchor, box) for box in boxes]
            if max(overlaps) >= 0.5:
                result[a] = overlaps.index(max(overlaps))
    return result


def cross_entropy(logits: list[float], column: int) -> float:
    return math.log(sum(math.exp(value) for value in logits)) - logits[column]


def smooth_l1(difference: float) -> float:
    return 0.5 * difference**2 if abs(difference) < 1 else abs(difference) - 0.5


def step(
    anchors: list[list[list[float]]],
    codes: Tensor,
    logits: Tensor,
    truth: list[tuple[list[list[float]], list[int]]],
    filtered: list[list[bool]],
) -> tuple[float, float]:
    boxes_sum = classes_sum = 0.0
    positives = 0
    for image, (boxes, labels) in enumerate(truth):
        matched = match(anchors[image], boxes)
        rows = logits[image].double().tolist()
        pool = []
        for a, g in enumerate(matched):
            if g >= 0:
                positives += 1
                wanted = encode(boxes[g], anchors[image][a])
                boxes_sum += sum(
                    smooth_l1(c - w) for c, w in zip(codes[image, a].double().tolist(), wanted, strict=True)
                )
                classes_sum += cross_entropy(rows[a], labels[g] + 1)
            elif not filtered[image][a]:
                pool.append(cross_entropy(rows[a], 0))
        count = min(3 * sum(g >= 0 for g in matched), len(pool))
        classes_sum += sum(sorted(pool, reverse=True)[:count])
    return boxes_sum / max(1, positives), classes_sum / max(1, positives)


def plain(predictions: CascadePredictions, targets: Targets, threshold: float) -> list[float]:
    refinement = predictions.refinement
    truth = [
        (targets.boxes[i][targets.valid[i]].double().tolist(), targets.labels[i][targets.valid[i]].tolist())
        for i in range(len(targets.boxes))
    ]
    tiled = refinement.anchors.double().tolist()
    every = [tiled] * len(truth)
    refined = [
        [decode(code, anchor) for code, anchor in zip(refinement.box_codes[i].double().tolist(), tiled, strict=True)]
        for i in range(len(truth))
    ]
    objectness = torch.softmax(refinement.class_logits.double(), -1)[..., 1]
    objects = [(boxes, [0] * len(labels)) for boxes, labels in truth]
    none = [[False] * len(tiled)] * len(truth)
    first = step(every, refinement.box_codes, refinement.class_logits, objects, none)
    second = step(
        refined,
        predictions.detection.box_codes,
        predictions.detection.class_logits,
        truth,
        (objectness < threshold).tolist(),
    )
    return [*first, *second]


@pytest.mark.slow_cases("1-0.0", "3-0.0", "5-0.01")
@pytest.mark.parametrize("threshold", [0.0, 0.01, 0.4])
@pytest.mark.parametrize("seed", range(6))
def test_every_term_against_the_plain_computation(seed: int, threshold: float) -> None:
    predictions, targets = random_case(seed)
    losses = criterion_of(f"objectness_threshold: {threshold}")(predictions, targets)
    assert tuple(losses) == TERMS
    wanted = plain(predictions, targets, threshold)
    assert min(wanted) > 0
    assert [float(losses[name].value) for name in TERMS] == pytest.approx(wanted, rel=1e-4)


def test_no_gradient_reaches_the_first_step_through_the_second() -> None:
    predictions, targets = random_case(0)
    refinement = predictions.refinement
    leaves = [refinement.box_codes.requires_grad_(), refinement.class_logits.requires_grad_()]
    leaves += [predictions.detection.box_codes.requires_grad_(), predictions.detection.class_logits.requires_grad_()]
    losses = LossTerm.values(criterion_of()(predictions, targets))
    through_second = torch.autograd.grad(
        losses[TERMS[2]] + losses[TERMS[3]], leaves, allow_unused=True, retain_graph=True
    )
    assert [gradient is None for gradient in through_second] == [True, True, False, False]
    through_first = torch.autograd.grad(losses[TERMS[0]] + losses[TERMS[1]], leaves, allow_unused=True)
    assert [gradient is None for gradient in through_first] == [False, False, True, True]


@pytest.mark.parametrize("images", [[([], [])], [([], []), ([], [])]])
def test_images_without_objects_cost_nothing(images: list[tuple[list[list[float]], list[int]]]) -> None:
    """Some ports divide by the number of positives as it is, and give NaN."""
    predictions, _ = random_case(1, images=len(images))
    leaf = predictions.detection.class_logits.requires_grad_()
    losses = criterion_of()(predictions, targets_of(images))
    assert [float(losses[name].value.detach()) for name in TERMS] == [0.0] * 4
    LossTerm.sum(losses).backward()
    assert leaf.grad is not None
    assert not leaf.grad.any()


def two_anchors(objectness: list[float]) -> tuple[CascadePredictions, Targets]:
    """Give one object under the first anchor, and four anchors far away."""
    anchors = torch.tensor([[10.0, 10, 30, 30], *[[40.0, 40, 60 - i, 60] for i in range(4)]])
    logits = torch.zeros(1, 5, 2)
    logits[0, :, 1] = torch.logit(torch.tensor(objectness))
    predictions = refinedet_predictions(
        torch.zeros(1, 5, 4),
        torch.zeros(1, 5, CLASSES + 1),
        anchors,
        input_size=(64, 64),
        refinement=(torch.zeros(1, 5, 4), logits),
    )
    return predictions, targets_of([([[11.0, 11, 30, 30]], [2])])


def test_filtering_drops_negatives_only() -> None:
    """One port drops positives too, keeps filtered negatives in the pool, and mines them with a class of their own."""
    predictions, targets = two_anchors([0.001, 0.5, 0.005, 0.009, 0.0101])
    criterion = criterion_of()
    assigned, _, _ = criterion.detection.assign(criterion.second_step(predictions), targets)
    assert assigned.match.tolist() == [[0, UNMATCHED, IGNORED, IGNORED, UNMATCHED]]
    assert assigned.class_weights.squeeze(-1).tolist() == [[1, 1, 0, 0, 1]]
    losses = criterion(predictions, targets)
    # The positive and two negatives (three are allowed) of four equal logits each.
    assert float(losses["Loss/classification_loss"].value) == pytest.approx(3 * math.log(4))
    everything = criterion_of("objectness_threshold: 0")(predictions, targets)
    assert float(everything["Loss/classification_loss"].value) == pytest.approx(4 * math.log(4))


def test_two_objects_that_like_one_anchor_best_get_two() -> None:
    """Some ports let the later object take it, and leave the other without any."""
    anchors = torch.tensor([[10.0, 10, 30, 30], [4.0, 4, 20, 20], [50.0, 50, 60, 60]])
    predictions = refinedet_predictions(
        torch.zeros(1, 3, 4),
        torch.zeros(1, 3, CLASSES + 1),
        anchors,
        input_size=(64, 64),
        refinement=(torch.zeros(1, 3, 4), torch.zeros(1, 3, 2)),
    )
    targets = targets_of([([[10.0, 10, 30, 30], [10.0, 10, 28, 30]], [0, 1])])
    criterion = criterion_of()
    assigned, _, _ = criterion.detection.assign(criterion.second_step(predictions), targets)
    assert assigned.match.tolist() == [[0, 1, UNMATCHED]]


def test_second_step_matches_and_measures_from_refined_boxes() -> None:
    """An anchor that misses the object is moved onto it by the first step: then it is positive, and nothing is left to do."""
    predictions, targets = two_anchors([0.5] * 5)
    refinement = predictions.refinement
    criterion = criterion_of()
    coder = criterion.detection.assigner.box_coder
    moved = refinement.box_codes.clone()
    moved[0, 3] = coder.encode(targets.boxes[0], refinement.anchors[3:4])[0]
    predictions = CascadePredictions((replace(refinement, box_codes=moved), predictions.detection))
    second = criterion.second_step(predictions)
    assigned, _, _ = criterion.detection.assign(second, targets)
    assert assigned.match[0, 3] == 0
    assert torch.allclose(assigned.box_codes[0, 3], torch.zeros(4), atol=1e-4)
    tiled = criterion_of("object_anchors: TILED")
    assert torch.equal(tiled.second_step(predictions).anchors, refinement.anchors)
    assigned, _, _ = tiled.detection.assign(tiled.second_step(predictions), targets)
    assert assigned.match[0, 3] == UNMATCHED


def test_thresholds_of_the_first_step_can_leave_anchors_between() -> None:
    criterion = criterion_of("matcher { bipartite_argmax_matcher { matched_threshold: 0.7 unmatched_threshold: 0.3 } }")
    anchors = torch.tensor([[10.0, 10, 30, 30], [10.0, 10, 30, 28], [10.0, 10, 30, 20], [40.0, 40, 60, 60]])
    targets = targets_of([([[10.0, 10, 30, 30]], [0])])
    predictions = AnchorPredictions(torch.zeros(1, 4, 4), torch.zeros(1, 4, 2), anchors, input_size=(64, 64))
    assigned, _, _ = criterion.refinement.assign(predictions, targets)
    assert assigned.match.tolist() == [[0, 0, IGNORED, UNMATCHED]]


def test_description_has_both_steps() -> None:
    predictions, targets = random_case(2)
    found = criterion_of().describe(predictions, targets)
    tag = "TargetAssignment/Loss/TargetAssignment/AvgNumPositiveAnchorsPerImage"
    assert float(found.scalars[tag]) > 0
    assert float(found.scalars[f"Refinement/{tag}"]) > 0
    refinement = predictions.refinement
    below = (torch.softmax(refinement.class_logits, -1)[..., 1] < 0.01).sum(1).float().mean()
    assert float(found.scalars["Refinement/AvgNumFilteredAnchorsPerImage"]) == float(below) > 0
    assert set(found.distributions) == {
        f"{prefix}Loss/{sign}AnchorLossCDF" for prefix in ("", "Refinement/") for sign in ("Positive", "Negative")
    }


def test_terms_of_parts_add_up() -> None:
    """Totals and both steps' counts."""
    predictions, targets = random_case(1)
    criterion = criterion_of()
    whole = criterion(predictions, targets)
    assert not LossTerm.share_count(whole)
    assert len({id(term.count) for term in whole.values()}) == 2
    totals, sums = dict.fromkeys(TERMS, 0.0), dict.fromkeys(TERMS, 0.0)
    for i in range(3):
        part = CascadePredictions((row(predictions.refinement, i), row(predictions.detection, i)))
        for name, term in criterion(part, targets.rows(i, i + 1)).items():
            totals[name] += float(term.total)
            sums[name] += float(term.count)  # type: ignore[arg-type]
    assert [totals[name] for name in TERMS] == pytest.approx([float(whole[name].total) for name in TERMS], rel=1e-5)
    assert [sums[name] for name in TERMS] == [float(whole[name].count) for name in TERMS]  # type: ignore[arg-type]
    assert np.isfinite(list(totals.values())).all()


def row(predictions: AnchorPredictions, number: int) -> AnchorPredictions:
    return replace(
        predictions,
        box_codes=predictions.box_codes[number : number + 1],
        class_logits=predictions.class_logits[number : number + 1],
    )
