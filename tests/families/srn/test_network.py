"""SRN: its two rules on their own levels, what is left without them, and what is refused."""

from __future__ import annotations

import math
from dataclasses import replace

import pytest
import torch
from torch import Tensor

import boxwright as bw
from boxwright.base.errors import ConfigError
from boxwright.config.load import parse_message
from boxwright.families.srn.network import SRN, ReceptiveFieldEnhancement
from boxwright.nn.criteria.anchor import AnchorCriterion, CascadeCriterion
from boxwright.nn.layers import ConvSettings
from boxwright.nn.ops.boxes import AnchorFilter, PixelCenterBoxCoder, RefinedStart, SecondStep
from boxwright.nn.postprocessing.anchor import BestOfLevel, CascadePostprocessor
from boxwright.nn.ssd import SSD
from boxwright.pipeline import messages as m
from boxwright.types import AnchorPredictions, Targets

BOTH = "two_step_classification { } two_step_regression { }"
FIRST = ("Loss/first_step/localization_loss", "Loss/first_step/classification_loss")
SECOND = ("Loss/localization_loss", "Loss/classification_loss")


def small(more: str = BOTH, classes: int = 1) -> bw.Detector:
    text = f"""srn {{ num_classes: {classes} image_resizer {{ identity_resizer {{ }} }} depth: 16
      feature_extractor {{ type: "mobilenet_v2" depth_multiplier: 0.1 }}
{more} }}"""
    return bw.build_detector(parse_message(text, m.DetectionModel, file="f"))


def count(detector: bw.Detector) -> int:
    return sum(parameter.numel() for parameter in detector.network.parameters())


def faces(*images: list[list[float]]) -> Targets:
    most = max(map(len, images))
    boxes, valid = torch.zeros(len(images), most, 4), torch.zeros(len(images), most, dtype=torch.bool)
    for number, rows in enumerate(images):
        boxes[number, : len(rows)] = torch.tensor(rows).reshape(-1, 4)
        valid[number, : len(rows)] = True
    return Targets(boxes, torch.zeros(len(images), most, dtype=torch.int64), valid.float(), valid)


# Each lies where an anchor lies: on levels 2, 5 and 3.
FACES = faces([[18.0, 17, 26, 27], [19.0, 12, 77, 84]], [[61.0, 59, 75, 77]])


@pytest.mark.slow_except("two_step_regression { }-SRN-terms2")
@pytest.mark.parametrize(
    ("more", "network", "terms"),
    [
        ("", SSD, SECOND),
        ("two_step_classification { }", SRN, (FIRST[1], *SECOND)),
        ("two_step_regression { }", SRN, (FIRST[0], *SECOND)),
        (BOTH, SRN, (*FIRST, *SECOND)),
    ],
)
def test_each_rule_by_itself(more: str, network: type, terms: tuple[str, ...]) -> None:
    detector = small(more)
    assert type(detector.network) is network
    assert type(detector.criterion) is (AnchorCriterion if network is SSD else CascadeCriterion)
    inputs, sizes = detector.preprocess(torch.rand(2, 128, 160, 3) * 255)
    found = detector.predict(inputs)
    last = found if isinstance(found, AnchorPredictions) else found.detection
    anchors = 2 * sum(math.ceil(128 / s) * math.ceil(160 / s) for s in (4, 8, 16, 32, 64, 128))
    assert last.class_logits.shape == (2, anchors, 1)
    assert tuple(detector.criterion(found, FACES)) == terms
    assert len(detector.postprocess(found, sizes)) == 2


def test_sharing_of_heads_and_enhancement_in_parameters() -> None:
    """A head is two towers of two 3×3 convolutions, twice the enhancement, and 10 predictors of 1×1."""
    width = 16
    enhancement = 4 * (width * 4 + 4 + 4 * 4 + 4) + 2 * (5 * 16 + 4) + 2 * (3 * 16 + 4) + width * width + width
    predictors = (2 + 8) * (width + 1)
    head = 4 * (9 * width * width + width) + 2 * enhancement + predictors
    assert count(small(f"{BOTH} share_head: false")) - count(small()) == head
    assert count(small()) - count(small(f"{BOTH} receptive_field_enhancement: false")) == 2 * enhancement


def test_enhancement_by_hand() -> None:
    """One of four channels a branch, every kernel 1: a pixel sees 5 in its row or column, 3, or so many as there are."""
    block = ReceptiveFieldEnhancement(4, ConvSettings(norm=None, activation="RELU"))
    with torch.no_grad():
        for parameter in block.parameters():
            parameter.fill_(1.0 if parameter.ndim == 4 else 0.0)
    image = torch.zeros(1, 4, 7, 7)
    image[0, 0, 3, 3] = 1
    added = (block(image) - image)[0, 0].detach()
    # The centre is seen by all four branches, its neighbours by two, those two away by one.
    assert added[3].tolist() == [0, 1, 2, 4, 2, 1, 0]
    assert added[:, 3].tolist() == [0, 1, 2, 4, 2, 1, 0]
    assert added[2, 2] == 0


def focal(logit: float, positive: bool) -> float:
    p = 1 / (1 + math.exp(-logit))
    return -0.25 * (1 - p) ** 2 * math.log(p) if positive else -0.75 * p**2 * math.log(1 - p)


def overlap(a: list[float], b: list[float]) -> float:
    width, height = min(a[2], b[2]) - max(a[0], b[0]), min(a[3], b[3]) - max(a[1], b[1])
    if width <= 0 or height <= 0:
        return 0.0
    areas = [(box[2] - box[0]) * (box[3] - box[1]) for box in (a, b)]
    return width * height / (sum(areas) - width * height)


def plain_classes(step: AnchorPredictions, chosen: Tensor, high: float, low: float) -> float:
    """The focal loss of some anchors over their positives, one at a time."""
    total, positives = 0.0, 0
    for image in range(2):
        truth = FACES.boxes[image][FACES.valid[image]].tolist()
        anchors = step.anchors if step.anchors.ndim == 2 else step.anchors[image]
        for anchor in chosen.nonzero().flatten().tolist():
            best = max(overlap(box, anchors[anchor].tolist()) for box in truth)
            left_out = step.filtered is not None and bool(step.filtered[image, anchor])
            if best >= high:
                positives += 1
            elif best >= low or left_out:
                continue
            total += focal(float(step.class_logits[image, anchor, 0]), best >= high)
    assert positives
    return total / positives


@pytest.mark.slow
def test_each_term_has_its_own_levels_and_divisor() -> None:
    detector = small().eval()
    inputs, _ = detector.preprocess(torch.rand(2, 128, 128, 3) * 255)
    with torch.no_grad():
        found = detector.predict(inputs)
        random = torch.Generator().manual_seed(0)
        # Fresh weights say the same everywhere; the filter is to have something to do.
        logits = found.refinement.class_logits + 2 * torch.randn(found.refinement.class_logits.shape, generator=random)
        first = replace(found.refinement, class_logits=logits)
        assert isinstance(detector.network, SRN)
        start, filtered = detector.network.second_step(first)
        second = replace(found.detection, anchors=start, filtered=filtered)
        losses = detector.criterion(replace(found, steps=(first, second)), FACES)
    assert second.filtered is not None
    fine, coarse = first.on_levels((0, 1, 2)), first.on_levels((3, 4, 5))
    assert second.filtered[:, fine].any()
    assert not second.filtered[:, coarse].any()
    wanted = plain_classes(first, fine, 0.7, 0.3)
    assert float(losses[FIRST[1]].value) == pytest.approx(wanted, rel=1e-4)
    every = torch.ones(len(fine), dtype=torch.bool)
    assert float(losses[SECOND[1]].value) == pytest.approx(plain_classes(second, every, 0.5, 0.4), rel=1e-4)
    # Of two faces one is large: its anchor on a coarse level alone learns to move.
    assert float(losses[FIRST[0]].count) == sum(
        overlap(box, anchor) >= 0.7
        for image in range(2)
        for box in FACES.boxes[image][FACES.valid[image]].tolist()
        for anchor in first.anchors[coarse].tolist()
    )


def test_rules_act_on_their_levels_alone() -> None:
    coder = PixelCenterBoxCoder()
    anchors = torch.tensor([[0.0, 0, 8, 10], [0.0, 0, 58, 72]])
    codes = torch.full((1, 2, 4), 0.1)
    first = AnchorPredictions(codes, torch.full((1, 2, 1), -9.0), anchors, level_sizes=(1, 0, 0, 1))
    rule = SecondStep(RefinedStart(coder, (3,)), AnchorFilter(0.01, torch.sigmoid, 0, (0,)))
    start, filtered = rule(first)
    assert torch.equal(start[0, 0], anchors[0])
    # By hand: sides of 57 and 71; the centre moves by a tenth of them, and they grow by e^0.1.
    wide, tall = 57 * math.exp(0.1) / 2, 71 * math.exp(0.1) / 2
    x, y = 57 * 0.6, 71 * 0.6
    assert start[0, 1].tolist() == pytest.approx([x - wide, y - tall, x + wide + 1, y + tall + 1], rel=1e-5)
    assert filtered is not None
    assert filtered.tolist() == [[True, False]]


def test_box_coder_is_inverted() -> None:
    boxes = torch.tensor([[3.0, 4, 20, 30], [5.0, 5, 6.5, 9]])
    anchors = torch.tensor([[0.0, 0, 14, 18], [4.0, 4, 12, 14]])
    coder = PixelCenterBoxCoder()
    assert torch.allclose(coder.decode(coder.encode(boxes, anchors), anchors), boxes, atol=1e-4)
    assert coder.encode(torch.tensor([[5.0, 5, 5.2, 5.2]]), anchors[:1]).isfinite().all()


@pytest.mark.slow_cases("images0", "images1")
@pytest.mark.parametrize("images", [[[]], [[], []], [[], [[20.0, 20, 28, 30]]]])
def test_images_without_faces(images: list[list[list[float]]]) -> None:
    detector = small().train()
    inputs, sizes = detector.preprocess(torch.rand(len(images), 64, 64, 3) * 255)
    losses = detector.criterion(detector.predict(inputs, sizes), faces(*images))
    total = torch.stack([term.value for term in losses.values()]).sum()
    total.backward()
    assert total.isfinite()
    if not any(images):
        assert float(losses[SECOND[0]].value.detach()) == 0


@pytest.mark.slow
@pytest.mark.parametrize("rule", ["two_step_classification { }", "two_step_regression { }"])
def test_every_weight_gets_a_gradient_whatever_is_judged(rule: str) -> None:
    """Processes wait for each other's: one that never comes would stop them."""
    detector = small(f"{rule} share_head: false").train()
    inputs, sizes = detector.preprocess(torch.rand(2, 128, 128, 3) * 255)
    losses = detector.criterion(detector.predict(inputs, sizes), FACES)
    torch.stack([term.value for term in losses.values()]).sum().backward()
    heads = {name: p.grad for name, p in detector.network.named_parameters() if "head" in name}
    assert [name for name, gradient in heads.items() if gradient is None] == []


def test_fields_of_candidates_that_are_left_out_are_the_presets() -> None:
    post = small(f"{BOTH} level_candidates {{ per_level: 9 }}").postprocessor
    assert isinstance(post, CascadePostprocessor)
    assert post.detection.candidates == BestOfLevel(9, 0.05, any_score_below_cells=120)


def test_several_classes_filter_by_the_likeliest() -> None:
    first = AnchorPredictions(
        torch.zeros(1, 2, 4), torch.tensor([[[-9.0, 2.0], [-9.0, -8.0]]]), torch.zeros(2, 4), level_sizes=(2,)
    )
    assert AnchorFilter(0.01, torch.sigmoid, 0)(first).tolist() == [[False, True]]
    assert small(classes=3).predict(torch.zeros(1, 3, 64, 64)).detection.class_logits.shape[2] == 3


@pytest.mark.parametrize(
    ("more", "problem"),
    [
        (
            "two_step_classification { levels: 8 }",
            r"f:3:\d+: .*two_step_classification.levels\[0\]: .* equal to 7, found 8",
        ),
        (
            "two_step_regression { levels: [5, 1] }",
            r"f:3:\d+: .*two_step_regression.levels\[1\]: .* equal to 2, found 1",
        ),
        ("two_step_regression { levels: [5, 5] }", "expected each number once, found 5 twice"),
        (
            f"{BOTH} anchor_generator {{ multiscale_anchor_generator {{ min_level: 2 max_level: 6 aspect_ratios: 1 }} }}",
            r"f:3:\d+: model.srn.anchor_generator: expected as many anchors on each of 6 levels",
        ),
        (
            f"{BOTH} anchor_generator {{ multiscale_anchor_generator {{ min_level: 3 max_level: 8 aspect_ratios: 1 }} }}",
            r"f:3:\d+: .*the finest map has stride 4",
        ),
        ("box_coder { mean_stddev_box_coder { } }", "use faster_rcnn_box_coder"),
        (
            "inference_preset: PAPER post_processing { batch_non_max_suppression { } }",
            "inference_preset: excludes post_processing",
        ),
    ],
)
def test_what_cannot_be_is_refused_at_its_line(more: str, problem: str) -> None:
    with pytest.raises(ConfigError, match=problem):
        small(more)
