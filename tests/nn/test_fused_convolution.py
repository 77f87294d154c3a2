"""Convolutions that add and activate while they write, against layers one after another."""

from __future__ import annotations

import copy
from collections.abc import Iterator

import pytest
import torch
from torch import nn
from torch.testing import assert_close

from boxwright.base.c_compiler import CompilerError
from boxwright.nn.backbones.mobilenet_v2 import InvertedResidual
from boxwright.nn.backbones.resnet_v1 import Bottleneck
from boxwright.nn.folding import fold_batch_norms
from boxwright.nn.fused_convolution import (
    DepthwiseConv2d,
    FusedBottleneck,
    FusedConvAct,
    FusedInvertedResidual,
    FusedTower,
    FusedWeightSharedHead,
    fuse_convolutions,
)
from boxwright.nn.heads.outputs import HeadOutput
from boxwright.nn.heads.weight_shared import Tower, TowerShape, WeightSharedHead
from boxwright.nn.input_sizes import input_sizes
from boxwright.nn.layers import ConvNormAct, ConvSettings, KernelRule, conv_norm_act, make_conv
from boxwright.nn.onednn_convolution import convolve_add_and_activate, convolve_and_activate
from boxwright.nn.ops import add_act, winograd_tiles
from boxwright.nn.ops.depthwise import depthwise_act
from boxwright.nn.winograd import WinogradConv2d, replace_by_winograd

CALLED = "boxwright.nn.fused_convolution"
INPUTS = torch.randn(2, 16, 21, 18, generator=torch.Generator().manual_seed(0)).to(memory_format=torch.channels_last)


def folded(module: nn.Module) -> nn.Module:
    """Return a module in evaluation mode, channels last, whose random statistics are folded."""
    torch.manual_seed(0)
    for norm in module.modules():
        if isinstance(norm, nn.BatchNorm2d):
            norm.running_mean.normal_()
            norm.running_var.uniform_(0.5, 2)
    module.eval().requires_grad_(False)
    fold_batch_norms(module, lambda: module(INPUTS))
    return module.to(memory_format=torch.channels_last)


@pytest.fixture
def calls(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[str]]:
    """The names of the fused functions that run, in order."""
    seen: list[str] = []
    for function in (convolve_and_activate, convolve_add_and_activate, depthwise_act, add_act.add_act_):

        def noted(*given: object, function: object = function) -> object:
            seen.append(function.__name__)
            return function(*given)

        place = "boxwright.nn.ops.add_act" if function is add_act.add_act_ else CALLED
        monkeypatch.setattr(f"{place}.{function.__name__}", noted)
    return seen


LAYERS = {
    "1x1": {"kernel_size": 1},
    "strided, TF's padding": {"kernel_size": 3, "stride": 2},
    "depthwise": {"kernel_size": 3, "depthwise": True},
    "depthwise, strided": {"kernel_size": 3, "stride": 2, "depthwise": True},
    "depthwise, strided, explicit": {"kernel_size": 5, "stride": 2, "depthwise": True, "padding": "explicit"},
    "depthwise, dilated": {"kernel_size": 3, "depthwise": True, "dilation": 2},
    "7x7, explicit": {"kernel_size": 7, "stride": 2, "padding": "explicit"},
    "2x2, uneven": {"kernel_size": 2, "padding": "explicit"},
    "dilated": {"kernel_size": 3, "dilation": 2},
}


@pytest.mark.parametrize("activation", ["RELU", "RELU_6", "SWISH"])
@pytest.mark.parametrize("kind", LAYERS)
def test_layers(kind: str, activation: str, calls: list[str]) -> None:
    by_kernel = "depthwise" in kind and "dilated" not in kind
    expected = ["depthwise_act" if by_kernel else "convolve_and_activate"]
    outs = 16 if "depthwise" in kind else 40
    layers = folded(conv_norm_act(16, outs, settings=ConvSettings(activation=activation), **LAYERS[kind]))
    fused = copy.deepcopy(layers)
    assert fuse_convolutions(fused) == 1 + by_kernel
    with torch.no_grad():
        assert_close(fused(INPUTS), layers(INPUTS), rtol=1e-5, atol=1e-6)
        assert calls == expected
        assert_close(copy.deepcopy(fused)(INPUTS), layers(INPUTS), rtol=1e-5, atol=1e-6)
    assert calls == expected * 2
    assert list(fused.state_dict()) == list(layers.state_dict())


@pytest.mark.parametrize("compiler", [True, False])
@pytest.mark.parametrize("activation", ["RELU", "RELU_6"])
@pytest.mark.parametrize("project", [True, False])
def test_a_bottleneck_adds_its_shortcut(
    project: bool, activation: str, compiler: bool, calls: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    if not compiler:
        monkeypatch.setattr(add_act, "kernels", lambda: CompilerError("no C compiler: cc is not found"))
    outs = 24 if project else 16
    settings = ConvSettings(activation=activation)
    block = folded(Bottleneck(16, 8, outs, 2 if project else 1, settings, project=project))
    fused = copy.deepcopy(block)
    assert fuse_convolutions(fused) == 3  # two layers and the block
    assert type(fused) is FusedBottleneck
    given = INPUTS.clone()
    with torch.no_grad():
        assert_close(fused(given), block(INPUTS), rtol=1e-5, atol=1e-6)
    assert calls == ["convolve_and_activate"] * 2 + ["add_act_" if compiler else "convolve_add_and_activate"]
    assert torch.equal(given, INPUTS)  # the shortcut, which others may read


@pytest.mark.parametrize("outs", [16, 24])
def test_an_inverted_residual_adds_its_input(outs: int, calls: list[str]) -> None:
    block = folded(InvertedResidual(16, 48, outs, 1, ConvSettings(), "same"))
    fused = copy.deepcopy(block)
    assert fuse_convolutions(fused) == 3 + (outs == 16)
    assert (type(fused) is FusedInvertedResidual) == (outs == 16)
    with torch.no_grad():
        assert_close(fused(INPUTS), block(INPUTS), rtol=1e-5, atol=1e-6)
    assert calls == ["convolve_and_activate", "depthwise_act"] + ["add_act_"] * (outs == 16)


def test_a_depthwise_convolution_alone(calls: list[str]) -> None:
    layers = nn.Sequential(make_conv(16, 16, 3, KernelRule(), groups=16, bias=True), nn.Conv2d(16, 8, 1))
    layers = layers.requires_grad_(False).to(memory_format=torch.channels_last)
    fused = copy.deepcopy(layers)
    assert fuse_convolutions(fused) == 1
    assert isinstance(fused[0], DepthwiseConv2d)
    assert list(fused.state_dict()) == list(layers.state_dict())
    with torch.no_grad():
        assert_close(fused(INPUTS), layers(INPUTS), rtol=1e-5, atol=1e-6)
        assert calls == ["depthwise_act"]
        assert_close(fused(INPUTS.contiguous()), layers(INPUTS), rtol=1e-5, atol=1e-6)
    assert calls == ["depthwise_act"]


def test_without_a_compiler_depthwise_convolutions_stay(monkeypatch: pytest.MonkeyPatch, calls: list[str]) -> None:
    monkeypatch.setattr(f"{CALLED}.kernels", lambda: CompilerError("none"))
    layers = folded(conv_norm_act(16, 16, 3, ConvSettings(), depthwise=True))
    assert fuse_convolutions(layers) == 1
    with torch.no_grad():
        layers(INPUTS)
    assert calls == ["convolve_and_activate"]


@pytest.mark.parametrize("activation", ["RELU", "RELU_6", "SWISH"])
def test_winograds_convolutions_activate_themselves(activation: str, calls: list[str]) -> None:
    layers = folded(conv_norm_act(16, 40, 3, ConvSettings(activation=activation)))
    direct = copy.deepcopy(layers)
    assert replace_by_winograd(layers, input_sizes(layers, lambda: layers(INPUTS))) == 1
    fused = copy.deepcopy(layers)
    assert fuse_convolutions(fused) == 1
    assert isinstance(fused[0], WinogradConv2d)
    with torch.no_grad():
        assert_close(fused(INPUTS), layers(INPUTS), rtol=1e-5, atol=1e-6)
        assert_close(fused(INPUTS), direct(INPUTS), rtol=1e-4, atol=1e-4)
    assert calls == []


def tower(activation: str = "RELU_6", *, use_depthwise: bool = False) -> Tower:
    """Return a tower of two layers for two levels, whose statistics differ, with its convolutions in Winograd's way."""
    torch.manual_seed(0)
    shape = TowerShape(16, layers=2, use_depthwise=use_depthwise)
    layers = Tower(2, 16, shape, ConvSettings(activation=activation))
    layers.convs[0][-1].bias = nn.Parameter(torch.randn(16))
    layers = layers.eval().requires_grad_(False).to(memory_format=torch.channels_last)
    for norm in layers.norms:
        norm.running_mean.normal_()
        norm.running_var.uniform_(0.5, 2)
        norm.weight.normal_()
        norm.bias.normal_()
    replace_by_winograd(layers, input_sizes(layers, lambda: layers(LEVELS)))
    return layers


LEVELS = [INPUTS, INPUTS[..., ::2, ::2].contiguous(memory_format=torch.channels_last)]


@pytest.mark.parametrize("activation", ["RELU", "RELU_6", "SWISH"])
def test_a_tower_normalizes_as_it_convolves(activation: str) -> None:
    layers = tower(activation)
    fused = copy.deepcopy(layers)
    assert fuse_convolutions(fused) == 1
    assert type(fused) is FusedTower
    with torch.no_grad():
        for one in (fused, copy.deepcopy(fused)):
            for ours, plain in zip(one(LEVELS), layers(LEVELS), strict=True):
                assert_close(ours, plain, rtol=1e-5, atol=1e-5)
        seen: list[torch.Tensor] = []
        fused.norms[3].register_forward_hook(lambda *given: seen.append(given[2].clone()))
        assert_close(fused(LEVELS)[1], layers(LEVELS)[1], rtol=1e-5, atol=1e-5)
        assert len(seen) == 1
        assert float(seen[0].min()) < 0  # before it is activated
        program = torch.export.export(fused, (LEVELS,), strict=False)
        assert_close(program.module()(LEVELS)[0], layers(LEVELS)[0], rtol=1e-4, atol=1e-4)


def test_other_towers_are_left_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    layers = tower("HARD_SWISH")
    fuse_convolutions(layers)
    assert type(layers) is Tower
    layers = tower(use_depthwise=True)
    fuse_convolutions(layers)
    assert type(layers) is Tower
    layers = tower()
    layers.norms[2] = nn.Identity()
    fuse_convolutions(layers)
    assert type(layers) is Tower
    monkeypatch.setattr(winograd_tiles, "kernels", lambda: CompilerError("no C compiler: cc is not found"))
    layers = tower()  # no convolution gains then
    fuse_convolutions(layers)
    assert type(layers) is Tower


def shared_head(anchors: int) -> WeightSharedHead:
    """Return a head whose box convolution has four outputs for each anchor, with wide ones in Winograd's way."""
    torch.manual_seed(0)
    settings = ConvSettings()
    head = WeightSharedHead([16, 16], anchors, HeadOutput(20), TowerShape(16, layers=1), settings, settings)
    for last in (head.boxes, head.classes):
        last[0].bias = nn.Parameter(torch.randn_like(last[0].bias))
    head = head.eval().requires_grad_(False).to(memory_format=torch.channels_last)
    replace_by_winograd(head, input_sizes(head, lambda: head(LEVELS)))
    return head


def test_the_last_convolutions_of_a_shared_head_compute_all_levels_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    head = shared_head(anchors=6)
    fused, seen = copy.deepcopy(head), list[int]()
    assert fuse_convolutions(fused) == 3  # two towers and the head
    assert type(fused) is FusedWeightSharedHead
    of_levels = WinogradConv2d.of_levels

    def noted(conv: WinogradConv2d, levels: list[torch.Tensor], *given: object) -> list[torch.Tensor]:
        seen.append(len(levels))
        return of_levels(conv, levels, *given)

    monkeypatch.setattr(WinogradConv2d, "of_levels", noted)
    with torch.no_grad():
        ours = fused(LEVELS)
        assert seen == [2, 2, 2, 2]
        for mine, plain in zip(ours, head(LEVELS), strict=True):
            assert_close(mine, plain, rtol=1e-5, atol=1e-5)
        shapes: list[torch.Size] = []
        fused.classes[0].register_forward_hook(lambda *given: shapes.append(given[2].shape))
        assert torch.equal(fused(LEVELS)[1], ours[1])
    assert [shape[2:] for shape in shapes] == [level.shape[2:] for level in LEVELS]


def test_a_shared_head_of_few_anchors_stays_as_it_is() -> None:
    head = shared_head(anchors=3)  # twelve outputs are too few for Winograd's way
    assert fuse_convolutions(head) == 2
    assert type(head) is WeightSharedHead


def fused_layer() -> ConvNormAct:
    layers = folded(conv_norm_act(16, 40, 1, ConvSettings()))
    assert fuse_convolutions(layers) == 1
    assert isinstance(layers, FusedConvAct)
    return layers


@pytest.mark.parametrize("place", [0, 2])
def test_hooks_see_what_they_saw(place: int, calls: list[str]) -> None:
    layers, seen = fused_layer(), list[torch.Tensor]()
    with torch.no_grad():
        plain = layers(INPUTS)
        layers[place].register_forward_hook(lambda *given: seen.append(given[2].clone()))
        assert_close(layers(INPUTS), plain, rtol=1e-5, atol=1e-6)
    assert len(seen) == len(calls) == 1
    assert (float(seen[0].min()) == 0.0) == (place == 2)


def test_other_inputs_run_layer_by_layer(calls: list[str], monkeypatch: pytest.MonkeyPatch) -> None:
    layers = fused_layer()
    layers(INPUTS.clone().requires_grad_()).sum().backward()
    with torch.no_grad():
        plain = layers(INPUTS.contiguous())
        with torch.autocast("cpu", torch.bfloat16):
            assert layers(INPUTS).dtype == torch.bfloat16
        with monkeypatch.context() as patched:
            patched.setattr(torch.backends.mkldnn, "enabled", False)
            assert_close(layers(INPUTS), plain)
        assert layers(INPUTS[:0]).shape == (0, 40, 21, 18)
        assert copy.deepcopy(layers).to("meta")(INPUTS.to("meta")).shape == (2, 40, 21, 18)
        program = torch.export.export(layers, (INPUTS,), strict=False)
    assert calls == []
    called = [str(node.target) for node in program.graph.nodes if node.op == "call_function"]
    assert called[0] == "aten.conv2d.default"


@pytest.mark.parametrize("activation", ["HARD_SWISH", "NONE"])
def test_other_activations_are_left_alone(activation: str) -> None:
    layers = folded(conv_norm_act(16, 40, 1, ConvSettings(activation=activation)))
    assert fuse_convolutions(layers) == 0


def test_normalization_that_is_not_folded_is_left_alone() -> None:
    layers = conv_norm_act(16, 40, 1, ConvSettings()).eval()
    block = Bottleneck(16, 8, 16, 1, ConvSettings(activation="RELU"), project=False).eval()
    assert fuse_convolutions(nn.ModuleList([layers, block])) == 0
