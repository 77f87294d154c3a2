"""AlignDet: what its later steps look at, and RefineDet++; what is left without them, and what is refused."""

from __future__ import annotations

import pytest
import torch
from torch import nn
from torch.nn import functional as F

import boxwright as bw
from boxwright.base.errors import ConfigError
from boxwright.config.load import parse_message
from boxwright.families.align_det.network import AlignDet
from boxwright.nn.criteria.anchor import AnchorCriterion, CascadeCriterion
from boxwright.nn.criteria.target_assigner import IGNORED
from boxwright.nn.heads.aligned import (
    AlignedHead,
    AlignmentConvHead,
    GuidedConv,
    LearnedConv,
    RoIAlignConv,
    RoIConv,
    WindowConv,
)
from boxwright.nn.heads.convolutional import HeadOutput
from boxwright.nn.layers import ConvSettings
from boxwright.nn.ssd import SSD
from boxwright.pipeline import messages as m
from boxwright.types import AnchorPredictions, Targets

PLAIN = ConvSettings(norm=None, activation="RELU")
EVERY_SAMPLING = ("ROI_CONV", "WINDOW", "LEARNED", "GUIDED", "ROI_ALIGN")


def small(more: str = "step { depth: 12 }", classes: int = 3) -> bw.Detector:
    text = f"""align_det {{ num_classes: {classes} image_resizer {{ identity_resizer {{ }} }} depth: 16
      num_layers_before_predictor: 1 feature_extractor {{ type: "mobilenet_v2" depth_multiplier: 0.1 }}
{more} }}"""
    return bw.build_detector(parse_message(text, m.DetectionModel, file="f"))


def targets_of(images: int, *, objects: bool = True) -> Targets:
    boxes = torch.tensor([[10.0, 12, 60, 58], [70.0, 20, 110, 64]]).expand(images, 2, 4)
    valid = torch.full((images, 2), objects)
    return Targets(boxes * valid[..., None], torch.tensor([[0, 2]]).expand(images, 2) * valid, valid.float(), valid)


def window_boxes(height: int, width: int, stride: int, side: int) -> torch.Tensor:
    """Return the box [1, H × W, 4] of each cell that is the kernel's own window, to its last pixel."""
    rows = [
        [(x - side // 2) * stride, (y - side // 2) * stride, (x + side // 2) * stride + 1, (y + side // 2) * stride + 1]
        for y in range(height)
        for x in range(width)
    ]
    return torch.tensor([rows], dtype=torch.float32)


@pytest.mark.parametrize("side", [1, 3, 7])
def test_roi_conv_of_its_own_window_is_a_plain_convolution(side: int) -> None:
    sampling = RoIConv(4, 5, side, PLAIN, border="zero")
    features = torch.randn(1, 4, 6, 9)
    found = sampling(features, window_boxes(6, 9, 8, side), 8.0)
    assert torch.allclose(
        found, F.conv2d(features, sampling.conv.weight, sampling.conv.bias, padding=side // 2), atol=1e-5
    )


def test_roi_conv_reads_the_centres_of_the_bins() -> None:
    """On a map whose value is its column, a kernel of ones over three sums the centres of three bins, three times."""
    sampling = RoIConv(1, 1, 3, PLAIN)
    with torch.no_grad():
        sampling.conv.weight.fill_(1.0)
    features = torch.arange(16.0).expand(1, 1, 16, 16)
    boxes = torch.tensor([32.0, 32, 97, 97]).expand(1, 256, 4)
    # In cells of 8 pixels the box reaches from 4 to its last pixel at 12: nine cells, bins of three around 5, 8, 11.
    assert torch.allclose(sampling(features, boxes, 8.0), torch.tensor(3.0 * (5 + 8 + 11)))


def test_boxes_beyond_the_map_and_without_area() -> None:
    features = torch.randn(1, 2, 4, 4, requires_grad=True)
    boxes = torch.tensor([[500.0, 500, 600, 600], [5.0, 5, 5, 5], [-90.0, -90, -80, -80], [0.0, 0, 32, 32]])
    for sampling in (RoIConv(2, 3, 3, PLAIN), RoIConv(2, 3, 3, PLAIN, border="zero"), RoIAlignConv(2, 3, 3, PLAIN)):
        found = sampling(features, boxes.repeat(4, 1)[None], 8.0)
        assert found.isfinite().all()
        found.sum().backward()
    assert features.grad is not None
    assert features.grad.isfinite().all()


@pytest.mark.parametrize("kind", [LearnedConv, GuidedConv])
def test_learned_offsets_start_around_the_cell(kind: type[LearnedConv] | type[GuidedConv]) -> None:
    sampling = kind(4, 5, 3, PLAIN)
    features = torch.randn(2, 4, 5, 6)
    boxes = torch.rand(2, 30, 4) * 40
    plain = F.conv2d(features, sampling.conv.weight, sampling.conv.bias, padding=1)
    found = sampling(features, boxes, 8.0)
    assert torch.allclose(found, plain, atol=1e-5)
    found.sum().backward()
    assert sampling.offsets.weight.grad is not None
    assert sampling.offsets.weight.grad.abs().sum() > 0


def test_roi_align_of_a_flat_map() -> None:
    sampling = RoIAlignConv(1, 1, 3, PLAIN)
    with torch.no_grad():
        sampling.conv.weight.fill_(1.0)
    boxes = torch.tensor([16.0, 16, 40, 40]).expand(1, 64, 4)
    assert torch.allclose(sampling(torch.full((1, 1, 8, 8), 2.0), boxes, 8.0), torch.tensor(18.0))
    assert WindowConv(1, 1, 3, PLAIN)(torch.zeros(1, 1, 8, 8), boxes, 8.0).shape == (1, 1, 8, 8)


@pytest.mark.slow_except("ignore_finest: true-GUIDED")
@pytest.mark.parametrize("kind", EVERY_SAMPLING)
@pytest.mark.parametrize("finest", ["", "ignore_finest: true"])
def test_every_sampling_learns_and_detects(kind: str, finest: str) -> None:
    detector = small(f"step {{ depth: 12 kernel_size: 5 sampling: {kind} {finest} }}").train()
    inputs, sizes = detector.preprocess(torch.rand(2, 72, 120, 3) * 255)
    found = detector.predict(inputs, sizes)
    losses = detector.criterion(found, targets_of(2))
    torch.stack([term.value for term in losses.values()]).sum().backward()
    aligned = [p for name, p in detector.network.named_parameters() if name.startswith("aligned.")]
    assert all(p.grad is not None and p.grad.isfinite().all() for p in aligned)
    head = detector.network.aligned[0]  # type: ignore[index, union-attr]
    assert isinstance(head, AlignedHead)
    sides = [sampling.conv.kernel_size for sampling in head.samplings]  # type: ignore[union-attr]
    assert sides == ([(3, 3), (5, 5)] if finest else [(5, 5)])
    assert len(detector.eval().postprocess(found, sizes)) == 2


def test_no_gradient_through_boxes() -> None:
    detector = small().train()
    inputs, sizes = detector.preprocess(torch.rand(1, 64, 128, 3) * 255)
    losses = detector.criterion(detector.predict(inputs, sizes), targets_of(1))
    assert tuple(losses) == (
        "Loss/first_step/localization_loss",
        "Loss/first_step/classification_loss",
        "Loss/localization_loss",
        "Loss/classification_loss",
    )
    (losses["Loss/localization_loss"].value + losses["Loss/classification_loss"].value).backward()
    head = [p.grad for name, p in detector.network.named_parameters() if name.startswith("head.")]
    assert head
    assert all(gradient is None for gradient in head)
    assert any(p.grad is not None for name, p in detector.network.named_parameters() if name.startswith("neck."))


def test_positions_keep_32_bits_where_features_have_fewer() -> None:
    """At column 150 a position of 16 bits would be off by half a cell."""
    sampling = RoIConv(1, 1, 3, PLAIN)
    with torch.no_grad():
        sampling.conv.weight.fill_(1.0)
    features = (torch.arange(200.0) / 200).expand(1, 1, 8, 200)
    boxes = torch.tensor([8 * 150.3, 8.0, 8 * 153.3, 40]).expand(1, 1600, 4)
    with torch.no_grad():
        exact = sampling(features, boxes, 8.0)
        rounded = sampling.to(torch.bfloat16)(features.bfloat16(), boxes, 8.0).float()
    assert (rounded - exact).abs().max() < 0.01 * float(exact.abs().max())


def test_boxes_that_are_not_finite_read_nothing() -> None:
    boxes = torch.tensor(
        [[float("inf")] * 4, [-float("inf")] * 4, [float("nan")] * 4, [-float("inf"), 0, float("inf"), 9]]
    )
    found = RoIConv(2, 3, 3, PLAIN)(torch.randn(1, 2, 2, 2), boxes[None], 8.0)
    assert found.isfinite().all()


def test_boxes_hardly_a_pixel_wide_learn_nothing() -> None:
    """Clipping leaves them of cells in the padding; an object that nothing overlaps would make them positive."""
    criterion = small().criterion
    assert isinstance(criterion, CascadeCriterion)
    anchors = torch.tensor([[[0.0, 0, 40, 40], [100, 0, 100, 40], [50, 50, 90, 90]]])
    valid = torch.tensor([[True]])
    truth = Targets(torch.tensor([[[60.0, 10, 64, 14]]]), torch.tensor([[1]]), valid.float(), valid)
    step = AnchorPredictions(torch.zeros(1, 3, 4), torch.zeros(1, 3, 3), anchors)
    found, _, _ = criterion.steps[1].criterion.assign(step, truth)
    assert found.match.tolist() == [[0, IGNORED, 0]]
    assert found.class_weights[0, :, 0].tolist() == [1, 0, 1]
    assert found.box_codes.abs().max() < 10


def test_boxes_are_clipped_to_what_is_image() -> None:
    detector = small().eval()
    found = detector.predict(torch.zeros(2, 3, 64, 128), torch.tensor([[64, 128], [40, 100]]))
    first, second = found.steps
    assert second.anchors.shape == (2, first.anchors.shape[0], 4)
    assert second.anchors[1].amax(0)[[2, 3]].tolist() == pytest.approx([100, 40])
    assert float(second.anchors.min()) >= 0


def test_three_steps_and_none() -> None:
    three = small("step { depth: 12 } step { depth: 8 kernel_size: 3 }")
    assert isinstance(three.network, AlignDet)
    found = three.predict(torch.zeros(1, 3, 64, 64))
    assert len(found.steps) == 3
    names = list(three.criterion(found, targets_of(1)))
    assert names[2] == "Loss/step_2/localization_loss"
    assert len(names) == 6
    plain = small("")
    assert type(plain.network) is SSD
    assert type(plain.criterion) is AnchorCriterion


def test_of_several_anchors_the_surest_goes_on() -> None:
    anchors = "anchor_generator { multiscale_anchor_generator { min_level: 3 max_level: 7 aspect_ratios: [1, 2] } }"
    detector = small(f"step {{ depth: 8 }} {anchors}").eval()
    found = detector.predict(torch.rand(1, 3, 64, 64))
    first, second = found.steps
    assert first.class_logits.shape[1] == 4 * second.class_logits.shape[1]
    for cell in (0, 5, second.class_logits.shape[1] - 1):
        rows = slice(4 * cell, 4 * cell + 4)
        best = int(first.class_logits[0, rows].amax(1).argmax())
        moved = detector.network.start(first)[0, rows][best]  # type: ignore[operator]
        assert torch.allclose(second.anchors[0, cell], moved.clamp(0, 64), atol=1e-4)
    assert detector.criterion(found, targets_of(1))["Loss/classification_loss"].value.isfinite()


@pytest.mark.slow_cases("2")
@pytest.mark.parametrize("images", [1, 2])
def test_images_without_objects_cost_only_their_negatives(images: int) -> None:
    detector = small().train()
    inputs, sizes = detector.preprocess(torch.rand(images, 64, 64, 3) * 255)
    losses = detector.criterion(detector.predict(inputs, sizes), targets_of(images, objects=False))
    total = torch.stack([term.value for term in losses.values()]).sum()
    total.backward()
    assert total.isfinite()
    boxes = [losses[name].value.detach() for name in ("Loss/localization_loss", "Loss/first_step/localization_loss")]
    assert [float(value) for value in boxes] == [0, 0]


@pytest.mark.parametrize(
    ("more", "problem"),
    [
        ("step { kernel_size: 4 }", r"f:3:\d+: model.align_det.step\[0\].kernel_size: .*odd; found 4"),
        ("step { } step { kernel_size: 2 }", r"step\[1\].kernel_size"),
        ("step { sampling: WINDOW border: ZERO }", r"f:3:\d+: .*only ROI_CONV's taps"),
        (
            "anchor_generator { multiscale_anchor_generator { min_level: 3 max_level: 6 aspect_ratios: 1 } }",
            r"f:3:\d+: model.align_det.anchor_generator: expected as many anchors on each of 5 levels",
        ),
        (
            "anchor_generator { multiscale_anchor_generator { min_level: 4 max_level: 8 aspect_ratios: 1 } }",
            r"f:3:\d+: .*the finest map has stride 8",
        ),
        ("box_coder { square_box_coder { } }", "use faster_rcnn_box_coder"),
        (
            "loss { classification_loss { weighted_softmax { } } localization_loss { weighted_smooth_l1 { } } }",
            "a softmax needs a background",
        ),
    ],
)
def test_what_cannot_be_is_refused_at_its_line(more: str, problem: str) -> None:
    with pytest.raises(ConfigError, match=problem):
        small(more)


def test_alignment_convolution_at_window_boxes_is_the_plain_head() -> None:
    """RefineDet++'s predictors, of two anchor shapes on two levels, where every box is the kernel's own window."""
    head = AlignmentConvHead((4, 4), (2, 2), (8.0, 16.0), HeadOutput(3), PLAIN)
    maps = [torch.randn(1, 4, 4, 6), torch.randn(1, 4, 2, 3)]
    boxes = [window_boxes(4, 6, 8, 3), window_boxes(2, 3, 16, 3)]
    both = torch.cat([level.repeat_interleave(2, 1) for level in boxes], 1)
    codes, logits = head(maps, both)
    assert codes.shape == (1, 2 * (24 + 6), 4)
    assert logits.shape == (1, 2 * (24 + 6), 3)
    start = 0
    for number, level in enumerate(maps):
        shapes = list(head.classes[number].children())
        rows = [F.conv2d(level, s.conv.weight, s.conv.bias, padding=1).flatten(2) for s in shapes]  # type: ignore[union-attr, arg-type]
        wanted = torch.stack(rows, -1).permute(0, 2, 3, 1).reshape(1, -1, 3)
        assert torch.allclose(logits[:, start : start + wanted.shape[1]], wanted, atol=1e-5)
        start += wanted.shape[1]
    assert head.class_layers == tuple(f"classes.{level}.{shape}.conv" for level in (0, 1) for shape in (0, 1))
    assert all(isinstance(head.get_submodule(name), nn.Conv2d) for name in head.class_layers)
