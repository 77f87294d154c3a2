"""RefineDet's network: sizes and anchors against published facts, and what is left when parts are left out."""

from __future__ import annotations

import math

import pytest
import torch
from torch import nn

import boxwright as bw
from boxwright.config.load import parse_message
from boxwright.families.refinedet.network import RefineDet, TransferConnection
from boxwright.nn.backbones.vgg16 import L2Norm
from boxwright.nn.criteria.anchor import AnchorCriterion, CascadeCriterion
from boxwright.nn.criteria.criterion import LossTerm
from boxwright.nn.regularization import add_penalty_gradients, regularization_loss
from boxwright.nn.ssd import SSD
from boxwright.pipeline import messages as m
from boxwright.types import Targets

NORMED = "conv_hyperparams { activation: RELU batch_norm { } }"
RESNET = f"transfer_connection {{ {NORMED} }} residual_body {{ {NORMED} }}"
BOTH = "anchor_refinement { } transfer_connection { }"


def build(
    kind: str, more: str = BOTH, classes: int = 20, size: str = "height: 320 width: 320", extractor: str = ""
) -> bw.Detector:
    text = f"""refinedet {{ num_classes: {classes} image_resizer {{ fixed_shape_resizer {{ {size} }} }}
      feature_extractor {{ type: "{kind}" {extractor} }} {more} }}"""
    return bw.build_detector(parse_message(text, m.DetectionModel))


def small(more: str = BOTH, extractor: str = "depth_multiplier: 0.1") -> bw.Detector:
    text = f"""refinedet {{ num_classes: 3 image_resizer {{ fixed_shape_resizer {{ height: 64 width: 128 }} }}
      feature_extractor {{ type: "refinedet_mobilenet_v2" {extractor} {NORMED} }} {more} }}"""
    return bw.build_detector(parse_message(text, m.DetectionModel))


def count(module: object) -> int:
    assert isinstance(module, nn.Module)
    return sum(parameter.numel() for parameter in module.parameters())


# Counts of the authors' network (VGG), and of the graph of their Caffe files (ResNet-101), part by part.
@pytest.mark.slow_cases("resnet101-20-75815348-parts2", "resnet101-80-82451588-parts3")
@pytest.mark.parametrize(
    ("kind", "classes", "total", "parts"),
    [
        ("vgg16", 20, 34_440_884, (20_483_904 + 1_024, 1_442_560, 276_528 + 138_264, 11_407_104, 110_640 + 580_860)),
        ("vgg16", 80, 36_100_484, (20_483_904 + 1_024, 1_442_560, 276_528 + 138_264, 11_407_104, 110_640 + 2_240_460)),
        ("resnet101", 20, 75_815_348, (42_500_160, 1_526_272, 9_334_856, 14_949_888, 7_504_172)),
        ("resnet101", 80, 82_451_588, (42_500_160, 1_526_272, 9_334_856, 14_949_888, 14_140_412)),
    ],
)
def test_parameters(kind: str, classes: int, total: int, parts: tuple[int, ...]) -> None:
    more = f"anchor_refinement {{ }} {RESNET if kind == 'resnet101' else 'transfer_connection { }'}"
    with torch.device("meta"):
        network = build(f"refinedet_{kind}", more, classes).network
    assert isinstance(network, RefineDet)
    found = (network.backbone, network.neck, network.refinement, network.transfer, network.head)
    assert tuple(count(part) for part in found) == parts
    assert count(network) == total == sum(parts)


ROWS = {
    320: {
        0: (0.0125, 0.0125, 0.1, 0.1),
        1: (0.0125, 0.0125, 0.1414214, 0.0707107),
        2: (0.0125, 0.0125, 0.0707107, 0.1414214),
        3: (0.0375, 0.0125, 0.1, 0.1),
        4800: (0.025, 0.025, 0.2, 0.2),
        6000: (0.05, 0.05, 0.4, 0.4),
        6300: (0.1, 0.1, 0.8, 0.8),
        -2: (0.9, 0.9, 1.1313709, 0.5656855),
    },
    512: {
        0: (0.0078125, 0.0078125, 0.0625, 0.0625),
        1: (0.0078125, 0.0078125, 0.0883883, 0.0441942),
        12288: (0.015625, 0.015625, 0.125, 0.125),
        15360: (0.03125, 0.03125, 0.25, 0.25),
        16128: (0.0625, 0.0625, 0.5, 0.5),
        -1: (0.9375, 0.9375, 0.3535534, 0.7071068),
    },
}


@pytest.mark.parametrize(("side", "number", "total"), [(320, 6375, 8247.792271), (512, 16320, 19316.467495)])
def test_anchors(side: int, number: int, total: float) -> None:
    """Not clipped, as Caffe's: one port clips their centres and sizes, which sums to 8241.22 at 320."""
    with torch.device("meta"):
        network = build("refinedet_vgg16").network
    assert isinstance(network, RefineDet)
    grids = [(side // stride, side // stride) for stride in (8, 16, 32, 64)]
    anchors = torch.cat(network.anchors.generator(grids, (side, side))) / side
    centred = torch.cat([(anchors[:, :2] + anchors[:, 2:]) / 2, anchors[:, 2:] - anchors[:, :2]], 1)
    assert centred.shape == (number, 4)
    for row, wanted in ROWS[side].items():
        assert centred[row].tolist() == pytest.approx(wanted, abs=1e-6)
    assert float(centred.double().sum()) == pytest.approx(total, abs=1e-3)


@pytest.mark.slow
def test_start_values() -> None:
    """Scales of 10 and 8; Caffe's xavier counts inputs alone: 0.02552 for the first predictor, where PyTorch's has 0.03567."""
    network = build("refinedet_vgg16").network
    assert isinstance(network, RefineDet)
    scales = [module.scale for module in network.modules() if isinstance(module, L2Norm)]
    assert [(float(scale.detach().min()), float(scale.detach().max())) for scale in scales] == [(10, 10), (8, 8)]
    kernel = network.refinement.boxes[0][0].weight  # type: ignore[union-attr, index]
    bound = math.sqrt(3 / (512 * 9))
    assert bound == pytest.approx(0.02552, abs=1e-5)
    assert 0.98 * bound < float(kernel.detach().abs().max()) <= bound
    biases = [value for name, value in network.named_parameters() if name.endswith("bias")]
    assert len(biases) > 40
    assert not any(bias.any() for bias in biases)


@pytest.mark.slow
def test_only_the_transfer_connection_and_bodies_are_normalized_beyond_the_backbone() -> None:
    with torch.device("meta"):
        network = build("refinedet_resnet101", f"anchor_refinement {{ }} {RESNET}").network
    assert isinstance(network, RefineDet)
    norms = {n for n, module in network.named_modules() if isinstance(module, nn.BatchNorm2d)}
    assert len({n for n in norms if n.startswith("transfer.")}) == 15
    assert len({n for n in norms if n.startswith(("refinement.shared", "head.shared"))}) == 2 * 4 * 4
    assert not {n for n in norms if ".boxes." in n or ".classes." in n}
    kernels = [module for module in network.transfer.modules() if isinstance(module, nn.ConvTranspose2d)]
    assert all(kernel.bias is None for kernel in kernels)


@pytest.mark.slow_except("-SSD-AnchorCriterion-False")
@pytest.mark.parametrize(
    ("more", "network", "criterion", "has_transfer"),
    [
        ("", SSD, AnchorCriterion, False),
        ("transfer_connection { depth: 32 }", SSD, AnchorCriterion, True),
        ("anchor_refinement { }", RefineDet, CascadeCriterion, False),
        ("anchor_refinement { } transfer_connection { depth: 32 }", RefineDet, CascadeCriterion, True),
    ],
)
def test_parts_that_are_left_out(more: str, network: type, criterion: type, has_transfer: bool) -> None:
    detector = small(more)
    assert type(detector.network) is network
    assert type(detector.criterion) is criterion
    assert any(isinstance(part, TransferConnection) for part in detector.network.modules()) == has_transfer
    inputs, sizes = detector.preprocess(torch.rand(2, 50, 70, 3) * 255)
    found = detector.predict(inputs)
    predictions = getattr(found, "detection", found)
    anchors = 3 * (8 * 16 + 4 * 8 + 2 * 4 + 1 * 2)
    assert predictions.box_codes.shape == (2, anchors, 4)
    assert predictions.class_logits.shape == (2, anchors, 4)
    assert predictions.anchors.shape[-2:] == (anchors, 4)
    assert len(detector.postprocess(detector.predict(inputs), sizes)) == 2


@pytest.mark.slow
def test_kernels_of_the_deconvolution() -> None:
    two, four = small(), small("anchor_refinement { } transfer_connection { deconvolution_kernel_size: 4 }")
    assert count(four.network) - count(two.network) == 3 * 256 * 256 * (16 - 4)
    inputs, _ = four.preprocess(torch.rand(1, 64, 128, 3) * 255)
    assert four.predict(inputs).detection.class_logits.shape == two.predict(inputs).detection.class_logits.shape


def test_transfer_by_hand() -> None:
    """Two levels of one channel, every kernel the identity: the coarse value is added to each of four fine ones."""
    from boxwright.nn.layers import ConvSettings

    transfer = TransferConnection((1, 1), 1, ConvSettings(norm=None, activation="RELU"))
    with torch.no_grad():
        for module in transfer.modules():
            if isinstance(module, nn.Conv2d):
                module.weight.zero_()
                module.weight[0, 0, 1, 1] = 1
            elif isinstance(module, nn.ConvTranspose2d):
                module.weight.fill_(2)
    fine, coarse = torch.tensor([[[[1.0, -2.0], [3.0, 4.0]]]]), torch.tensor([[[[10.0]]]])
    results = transfer([fine, coarse])
    assert results[1].tolist() == [[[[10]]]]
    # -2 does not pass the first activation.
    assert results[0].tolist() == [[[[21, 20], [23, 24]]]]


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"size": "height: 320 width: 300"}, "sides must be multiples of 64.*found 320×300"),
        ({"kind": "ssd_vgg16"}, "'ssd_vgg16' is not known; known: refinedet_vgg16"),
        ({"kind": "refinedet_vgg"}, "did you mean refinedet_vgg16"),
        ({"classes": 0}, "num_classes: expected at least 1"),
        ({"more": "transfer_connection { deconvolution_kernel_size: 3 }"}, r"expected 2 \(as released\) or 4"),
        ({"more": "transfer_connection { depth: 0 }"}, "depth"),
        ({"more": "residual_body { width: -1 }"}, "width"),
        ({"extractor": "num_layers: 2"}, "num_layers: unknown field"),
        ({"extractor": "fpn { }"}, "fpn: unknown field"),
        ({"extractor": "pad_to_multiple: 64"}, "pad_to_multiple: unknown field"),
        ({"kind": "timm/resnet18", "extractor": "bifpn { }"}, "bifpn: unknown field"),
        ({"kind": "refinedet_vgg16", "extractor": "min_depth: 9"}, "feature_extractor.min_depth"),
        ({"kind": "refinedet_resnet101", "extractor": "depth_multiplier: 2"}, "feature_extractor.depth_multiplier"),
        ({"kind": "refinedet_vgg16", "extractor": "conv_hyperparams { batch_norm { } }"}, "is not normalized"),
        (
            {"more": "anchor_generator { multiscale_anchor_generator { min_level: 4 max_level: 7 aspect_ratios: 1 } }"},
            "level 3; found 4",
        ),
        ({"more": "matcher { bipartite_argmax_matcher { matched_threshold: 5 } }"}, "matched_threshold"),
        (
            {"more": "anchor_refinement { objectness_threshold: 1.5 }"},
            "objectness_threshold: should be less than 1, found 1.5",
        ),
        ({"more": "inference_preset: PAPER post_processing { }"}, "inference_preset: excludes post_processing"),
        ({"more": "box_coder { mean_stddev_box_coder { stddev: 0.1 } }"}, "use faster_rcnn_box_coder"),
        (
            {
                "more": "anchor_generator { multiscale_anchor_generator { min_level: 3 max_level: 4 aspect_ratios: 1.0 } }"
            },
            "the anchors are for 2",
        ),
        (
            {"more": "anchor_refinement { matcher { bipartite_argmax_matcher { matched_threshold: 0.3 } } }"},
            "model.refinedet.anchor_refinement.*unmatched_threshold: 0.5 is over",
        ),
    ],
)
def test_errors(change: dict[str, object], message: str) -> None:
    arguments: dict[str, object] = {"kind": "refinedet_mobilenet_v2", **change}
    with pytest.raises(bw.ConfigError, match=message):
        build(**arguments)  # type: ignore[arg-type]


def test_lengths_are_1_in_any_precision_and_nothing_stays_nothing() -> None:
    norm = L2Norm(4, 10.0)
    features = torch.tensor([[3e-4, 4e-4, 0, 0], [0, 0, 0, 0], [3e4, 4e4, 0, 0]]).T[None, :, :, None]
    wanted = torch.tensor([[6.0, 8, 0, 0], [0, 0, 0, 0], [6.0, 8, 0, 0]]).T[None, :, :, None]
    assert torch.allclose(norm(features), wanted)
    assert torch.allclose(norm.half()(features.half()).float(), wanted, rtol=2e-3)
    assert norm(features.half()).dtype == torch.float16


def test_the_extractors_own_levels_follow_its_hyperparams() -> None:
    own = "conv_hyperparams { activation: SWISH batch_norm { decay: 0.5 } }"
    with torch.device("meta"):
        neck = build("refinedet_resnet101", extractor=own).network.neck
    assert isinstance(neck, nn.Module)
    assert {module.momentum for module in neck.modules() if isinstance(module, nn.BatchNorm2d)} == {0.5}
    assert any(isinstance(module, nn.SiLU) for module in neck.modules())


def test_a_size_that_halves_unevenly_is_an_error_when_it_comes() -> None:
    detector = small()
    with pytest.raises(bw.DataError, match="sides must be multiples"):
        detector.predict(torch.zeros(1, 3, 100, 128))


@pytest.mark.slow
def test_any_backbone_of_timm() -> None:
    detector = build("timm/resnet18", BOTH, 2, "height: 128 width: 64")
    inputs, _ = detector.preprocess(torch.rand(1, 64, 64, 3) * 255)
    assert detector.predict(inputs).detection.class_logits.shape == (1, 3 * (16 * 8 + 8 * 4 + 4 * 2 + 2), 3)


@pytest.mark.slow
def test_every_parameter_learns() -> None:
    detector = small().train()
    inputs, _ = detector.preprocess(torch.rand(2, 64, 128, 3) * 255)
    targets = some_targets()
    losses = LossTerm.values(detector.criterion(detector.predict(inputs), targets))
    torch.stack(list(losses.values())).sum().backward()
    without = [name for name, value in detector.named_parameters() if value.requires_grad and value.grad is None]
    assert without == []


def some_targets() -> Targets:
    boxes = torch.tensor([[[10.0, 10, 40, 40]], [[20.0, 20, 60, 60]]])
    return Targets(boxes, torch.zeros(2, 1, dtype=torch.int64), torch.ones(2, 1), torch.ones(2, 1, dtype=torch.bool))


def padded(targets: Targets, boxes: int) -> Targets:
    """Pad to so many boxes, as a batch that has a crowded image is."""
    more = boxes - targets.boxes.shape[1]
    pad = nn.functional.pad
    return Targets(
        pad(targets.boxes, (0, 0, 0, more)),
        pad(targets.labels, (0, more)),
        pad(targets.weights, (0, more)),
        pad(targets.valid, (0, more)),
    )


@pytest.mark.slow
def test_network_and_criterion_compile_into_one_graph() -> None:
    """Whatever the number of boxes, which are padded to multiples of eight: the graph is made anew but once."""
    detector = small("anchor_refinement { } transfer_connection { depth: 32 }").train()
    inputs, _ = detector.preprocess(torch.rand(2, 64, 128, 3) * 255)
    torch._dynamo.reset()
    step = torch.compile(lambda x, t: LossTerm.values(detector.criterion(detector.predict(x), t)), fullgraph=True)
    state = {name: value.clone() for name, value in detector.state_dict().items()}
    for number, boxes in enumerate((1, 8, 16, 24, 72, 104, 200)):
        targets = padded(some_targets(), boxes)
        with torch.compiler.set_stance("default" if number < 3 else "fail_on_recompile"):
            compiled = step(inputs, targets)
        detector.load_state_dict(state)
        plain = LossTerm.values(detector.criterion(detector.predict(inputs), targets))
        detector.load_state_dict(state)
        assert {n: float(v.detach()) for n, v in compiled.items()} == pytest.approx(
            {n: float(v.detach()) for n, v in plain.items()}, rel=1e-3
        )


FACE = """anchor_refinement { } transfer_connection { depth: 32 }
  anchor_generator { multiscale_anchor_generator { min_level: 2 max_level: 7 anchor_scale: 4 aspect_ratios: 1.0
    scales_per_octave: 1 } }"""


@pytest.mark.slow_except("refinedet_mobilenet_v2-depth_multiplier: 0.1-None")
@pytest.mark.parametrize(
    ("kind", "extractor", "channels"),
    [
        ("refinedet_vgg16", "", [256, 512, 512, 1024, 512, 512]),
        ("refinedet_mobilenet_v2", "depth_multiplier: 0.1", None),
        ("timm/resnet18", "", [64, 128, 256, 512, 512, 512]),
    ],
)
@torch.no_grad()
def test_maps_and_anchors_of_faces(kind: str, extractor: str, channels: list[int] | None) -> None:
    """Six maps of strides 4 to 128, and one square of 4 strides at each cell: S³FD's anchors of 16 to 512 pixels."""
    detector = build(kind, FACE, 1, "height: 128 width: 256", f"min_level: 2 {extractor}")
    network = detector.network
    assert isinstance(network, RefineDet)
    inputs, _ = detector.preprocess(torch.rand(1, 128, 256, 3) * 255)
    maps = network.feature_maps(inputs)
    grids = [(32, 64), (16, 32), (8, 16), (4, 8), (2, 4), (1, 2)]
    assert [tuple(level.shape[-2:]) for level in maps] == grids
    if channels is not None:
        assert [level.shape[1] for level in maps] == channels
    predictions = detector.predict(inputs)
    anchors = predictions.refinement.anchors
    assert anchors.shape == (2048 + 512 + 128 + 32 + 8 + 2, 4)
    assert predictions.detection.class_logits.shape == (1, len(anchors), 2)
    assert anchors[0].tolist() == [2 - 8, 2 - 8, 2 + 8, 2 + 8]
    assert anchors[65].tolist() == [6 - 8, 6 - 8, 6 + 8, 6 + 8]  # second row, second column
    assert anchors[2048].tolist() == [4 - 16, 4 - 16, 4 + 16, 4 + 16]
    assert anchors[-1].tolist() == [192 - 256, 64 - 256, 192 + 256, 64 + 256]


@pytest.mark.slow
def test_scales_of_the_maps_of_faces() -> None:
    """S³FD scales conv3_3, conv4_3 and conv5_3 to 10, 8 and 5; the network continues from what is not scaled."""
    with torch.random.fork_rng():
        network = build("refinedet_vgg16", FACE, 1, "height: 128 width: 128", "min_level: 2").network
    assert isinstance(network, RefineDet)
    inputs = torch.rand(1, 3, 128, 128) * 100
    with torch.no_grad():
        found = network.backbone(inputs)
        stages = list(network.backbone.stages.children())  # type: ignore[union-attr, operator]
        third = stages[2](network.backbone.pool(stages[1](network.backbone.pool(stages[0](inputs)))))  # type: ignore[operator]
    lengths = [level.square().sum(1).sqrt().mean().item() for level in found[:3]]
    assert lengths == pytest.approx([10, 8, 5], rel=1e-4)
    length = third.square().sum(1, keepdim=True).sqrt()
    torch.testing.assert_close(found[0], 10 * third / length, rtol=1e-4, atol=1e-5)


def test_levels_of_faces_are_named_from_2() -> None:
    """The levels of the two rules; without an anchor generator, levels 2 to 6 with the usual three shapes."""
    more = "anchor_refinement { filter_levels: [2, 3] refine_levels: [5, 6] }"
    with torch.device("meta"):
        detector = build("refinedet_vgg16", more, 1, "height: 64 width: 64", "min_level: 2")
    assert isinstance(detector.network, RefineDet)
    assert detector.network.anchors.generator.anchors_per_location == (3,) * 5
    assert detector.network.second_step.filter.levels == (0, 1)
    with pytest.raises(bw.ConfigError, match="there is no level 2; there are 3 to 6"):
        small("anchor_refinement { filter_levels: 2 }")


HEADS = "convolutional_body { }"
PREDICTORS = (
    """conv_hyperparams { activation: RELU batch_norm { decay: 0.99 scale: true } } normalize_predictors: true"""
)


@pytest.mark.slow
def test_heads_of_four_convolutions() -> None:
    """3×3 with 256 channels, each activated, before both predictors; the first sees the map's channels."""
    with torch.device("meta"):
        network = build("refinedet_vgg16", f"{BOTH} {HEADS}").network
    assert isinstance(network, RefineDet)
    for head, widths in ((network.refinement, (512, 512, 1024, 512)), (network.head, (256,) * 4)):
        for level, width in enumerate(widths):
            body = head.shared[level]  # type: ignore[union-attr, index]
            layers = [one for one in body.modules() if isinstance(one, nn.Conv2d | nn.ReLU)]  # type: ignore[union-attr]
            assert [isinstance(one, nn.Conv2d) for one in layers] == [True, False] * 4
            convs = [one for one in layers if isinstance(one, nn.Conv2d)]
            assert [(one.in_channels, one.out_channels) for one in convs] == [(width, 256)] + [(256, 256)] * 3
            assert {(one.kernel_size, one.stride, one.padding) for one in convs} == {((3, 3), (1, 1), (1, 1))}
            assert {one.bias is not None for one in convs} == {True}
            for predictors in (head.boxes, head.classes):
                assert predictors[level][-1].in_channels == 256  # type: ignore[union-attr, index]
    plain = build("refinedet_vgg16")
    more = 4 * (256 * 256 * 9 * 3 + 4 * 256) * 2 + 256 * 9 * (512 * 3 + 1024 + 4 * 256)
    predictors = 9 * (512 * 3 + 1024 - 4 * 256) * (12 + 6)  # of the first step, which now see 256 channels
    assert count(network) - count(plain.network) == more - predictors


def test_other_heads_than_four() -> None:
    network = small(f"{BOTH} convolutional_body {{ num_layers: 2 depth: 24 {NORMED} }}").network
    assert isinstance(network, RefineDet)
    for head in (network.refinement, network.head):
        for body in head.shared.children():  # type: ignore[union-attr, operator]
            convs = [one for one in body.modules() if isinstance(one, nn.Conv2d)]
            assert [one.out_channels for one in convs] == [24, 24]
            assert sum(isinstance(one, nn.BatchNorm2d) for one in body.modules()) == 2


@pytest.mark.slow
def test_normalized_predictors() -> None:
    """Convolution without bias, then normalization with its decay; no activation, so logits of both signs."""
    detector = small(f"{BOTH} {PREDICTORS}").train()
    network = detector.network
    assert isinstance(network, RefineDet)
    for head in (network.refinement, network.head):
        for predictors in (*head.boxes.children(), *head.classes.children()):  # type: ignore[union-attr, operator]
            conv, norm = predictors
            assert isinstance(conv, nn.Conv2d)
            assert isinstance(norm, nn.BatchNorm2d)
            assert conv.bias is None
            assert norm.num_features == conv.out_channels
            assert (norm.momentum, norm.eps) == (pytest.approx(0.01), 0.001)
            assert norm.weight.requires_grad
            assert norm.bias.requires_grad
    inputs, _ = detector.preprocess(torch.rand(2, 64, 128, 3) * 255)
    codes = detector.predict(inputs).detection.box_codes
    # Of the finest level: 8 × 16 cells of two images, normalized for each of 3 shapes and 4 numbers.
    finest = codes[:, : 3 * 8 * 16].reshape(2, -1, 12).flatten(0, 1)
    torch.testing.assert_close(finest.mean(0), torch.zeros(12), rtol=0, atol=1e-3)
    torch.testing.assert_close(finest.std(0, correction=0), torch.ones(12), rtol=0.05, atol=0.05)
    keeps = small(f"{BOTH} {PREDICTORS.replace('scale: true }', 'scale: true } force_use_bias: true')}").network
    assert keeps.head.boxes[0][0].bias is not None  # type: ignore[union-attr, index]


@pytest.mark.slow_cases("two steps")
@pytest.mark.parametrize("steps", ["", BOTH], ids=["one step", "two steps"])
def test_the_penalty_on_all_that_learns(steps: str) -> None:
    """0.5 · 0.25 · Σ v² over every parameter that learns, once; a fixed gain of 1 is no variable."""
    more = f"{steps} {PREDICTORS.replace('scale: true', 'scale: false')} regularizer {{ l2_regularizer {{ weight: 0.25 }} }}"
    for kind, extractor in (("refinedet_mobilenet_v2", "depth_multiplier: 0.1"), ("timm/test_resnet", "")):
        network = build(kind, more, 2, "height: 64 width: 64", extractor).network
        learning = [one for one in network.parameters() if one.requires_grad]
        assert len(learning) < len(list(network.parameters()))
        with torch.no_grad():
            for one in learning:
                one.uniform_(-1, 1)
        wanted = 0.125 * sum(float(one.detach().double().square().sum()) for one in learning)
        assert regularization_loss(network).item() == pytest.approx(wanted, rel=1e-4)
        add_penalty_gradients(network)
        for one in learning:
            assert one.grad is not None
            torch.testing.assert_close(one.grad, 0.25 * one.detach())


@pytest.mark.slow
def test_the_penalty_on_scales_and_of_kernels_alone() -> None:
    """As released, kernels have 0.0005 and nothing else has any; the penalty on all takes in the scales of VGG-16."""
    all_of_them = f"{BOTH} regularizer {{ l2_regularizer {{ weight: 0.0001 }} }}"
    small_size = "height: 64 width: 64"
    kernels, everything = (build("refinedet_vgg16", more, 1, small_size).network for more in (BOTH, all_of_them))
    with torch.no_grad():
        for name, one in [*kernels.named_parameters(), *everything.named_parameters()]:
            one.fill_(0.01 if name.endswith("weight") else 1.0)
    sizes = {name: one.numel() for name, one in kernels.named_parameters()}
    squares = 1e-4 * sum(size for name, size in sizes.items() if name.endswith("weight"))
    others = sum(size for name, size in sizes.items() if not name.endswith("weight"))
    assert others > 10000
    # Sums of float32, over kernels of millions.
    assert regularization_loss(kernels).item() == pytest.approx(0.5 * 0.0005 * squares, rel=2e-3)
    assert regularization_loss(everything).item() == pytest.approx(0.5 * 0.0001 * (squares + others), rel=2e-3)
    add_penalty_gradients(everything)
    scale = everything.get_parameter("backbone.norms.0.scale")
    assert scale.grad is not None
    torch.testing.assert_close(scale.grad, torch.full((512,), 0.0001))


def test_the_penalty_on_kernels_of_timm() -> None:
    """Only where conv_hyperparams are said to be the backbone's too."""
    penalty = "conv_hyperparams { regularizer { l2_regularizer { weight: 0.5 } } }"
    networks = [
        build("timm/test_resnet", "", 1, "height: 64 width: 64", f"{penalty} {more}").network.backbone
        for more in ("", "override_base_feature_extractor_hyperparams: true")
    ]
    kernels = [one.weight for one in networks[1].modules() if isinstance(one, nn.Conv2d)]  # type: ignore[union-attr]
    wanted = 0.25 * sum(float(one.detach().square().sum()) for one in kernels)
    found = [regularization_loss(network).item() for network in networks]  # type: ignore[arg-type]
    assert found == [0, pytest.approx(wanted, rel=1e-5)]


@pytest.mark.parametrize(
    ("more", "message"),
    [
        (f"{BOTH} {HEADS} residual_body {{ }}", "convolutional_body: excludes residual_body"),
        (f"{BOTH} {HEADS} align_second_step: true", "align_second_step: .* remove convolutional_body"),
        (f"{BOTH} {PREDICTORS} align_second_step: true", "align_second_step: .* remove normalize_predictors"),
        (f"{BOTH} normalize_predictors: true", "normalize_predictors: set the batch_norm"),
        (f"{BOTH} convolutional_body {{ num_layers: 0 }}", "num_layers"),
        (FACE, "level 3; found 2"),
    ],
)
def test_errors_of_variants(more: str, message: str) -> None:
    with pytest.raises(bw.ConfigError, match=message):
        build("refinedet_mobilenet_v2", more)


@pytest.mark.parametrize(
    ("kind", "extractor", "more", "message"),
    [
        ("refinedet_vgg16", "min_level: 1", "", "min_level"),
        ("refinedet_vgg16", "min_level: 4", "", "min_level"),
        ("refinedet_resnet101", "min_level: 2", FACE, "has 5 maps, of stride 4 and up; the anchors are for 6"),
        ("refinedet_vgg16", "min_level: 2", FACE.replace("7", "8"), "has 4 or 5 or 6 maps, of stride 4 and up"),
        ("refinedet_vgg16", "min_level: 2", FACE, "sides must be multiples of 128"),
    ],
)
def test_errors_of_levels(kind: str, extractor: str, more: str, message: str) -> None:
    size = "height: 320 width: 320" if "multiples" in message else "height: 512 width: 512"
    with pytest.raises(bw.ConfigError, match=message), torch.device("meta"):
        build(kind, more, extractor=extractor, size=size)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("more", "extractor"),
    [
        (FACE, "min_level: 2 depth_multiplier: 0.1"),
        (f"{BOTH} convolutional_body {{ depth: 16 }}", "depth_multiplier: 0.1"),
        (f"{BOTH} {PREDICTORS}", "depth_multiplier: 0.1"),
    ],
    ids=["face", "heads", "normalized"],
)
def test_every_parameter_of_a_variant_learns(more: str, extractor: str) -> None:
    detector = build("refinedet_mobilenet_v2", more, 1, "height: 128 width: 128", extractor).train()
    inputs, _ = detector.preprocess(torch.rand(2, 128, 128, 3) * 255)
    losses = LossTerm.values(detector.criterion(detector.predict(inputs), some_targets()))
    torch.stack(list(losses.values())).sum().backward()
    without = [name for name, value in detector.named_parameters() if value.requires_grad and value.grad is None]
    assert without == []
    assert all(loss.isfinite() for loss in losses.values())
