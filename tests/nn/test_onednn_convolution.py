"""Convolutions with packed kernels, against PyTorch's own."""

from __future__ import annotations

import copy
import pickle

import pytest
import torch
from torch import Tensor, nn
from torch.testing import assert_close

from boxwright.nn.backbones.resnet_v1 import Bottleneck
from boxwright.nn.fused_convolution import fuse_convolutions
from boxwright.nn.input_sizes import input_sizes
from boxwright.nn.layers import Conv2d, ConvSettings, Dense, conv_norm_act
from boxwright.nn.onednn_convolution import PackedConv2d, _given, pack_kernels

from .test_fused_convolution import folded


def maps(batch: int, channels: int, height: int, width: int) -> Tensor:
    """Return random maps, channels last."""
    size = (batch, channels, height, width)
    found = torch.randn(size, generator=torch.Generator().manual_seed(sum(size)))
    return found.to(memory_format=torch.channels_last)


CONVOLUTIONS = {
    "1x1": (16, 40, 1, {}),
    "1x1, bias": (24, 273, 1, {"bias": True}),
    "1x1, strided": (16, 40, 1, {"stride": 2}),
    "3x3": (3, 32, 3, {"bias": True}),
    "TF's padding": (16, 33, 3, {"stride": 2}),
    "uneven": (16, 8, 2, {"padding": "explicit"}),
    "groups": (32, 48, 3, {"groups": 4}),
    "dilated": (16, 16, 3, {"dilation": 2}),
    "depthwise, dilated": (32, 32, 3, {"groups": 32, "dilation": 2}),
    "depthwise, narrow": (4, 4, 3, {"groups": 4}),
    "gray": (1, 8, 3, {"bias": True}),
    "7x7": (3, 64, 7, {"stride": 2, "padding": "explicit"}),
}


@pytest.mark.parametrize("kind", CONVOLUTIONS)
def test_packed_kernels_convolve_alike(kind: str) -> None:
    ins, outs, side, settings = CONVOLUTIONS[kind]
    torch.manual_seed(0)
    conv = Conv2d(ins, outs, side, **settings).requires_grad_(False).to(memory_format=torch.channels_last)
    packed = copy.deepcopy(conv)
    assert pack_kernels(packed, input_sizes(packed, lambda: packed(maps(1, ins, 21, 18)))) == 1
    assert type(packed) is PackedConv2d
    assert list(packed.state_dict()) == list(conv.state_dict())
    copies = [packed, copy.deepcopy(packed), pickle.loads(pickle.dumps(packed))]
    with torch.no_grad():
        for size in ((1, ins, 21, 18), (3, ins, 21, 18), (1, ins, 7, 50), (2, ins, 1, 1)):
            given = maps(*size)
            kept, expected = given.clone(), conv(given)
            for one in copies:
                assert_close(one(given), expected, rtol=1e-5, atol=1e-5)
            assert torch.equal(given, kept)


def test_the_packed_kernel_is_used() -> None:
    conv = Conv2d(16, 40, 1)
    pack_kernels(conv, {conv: torch.Size((1, 16, 9, 9))})
    with torch.no_grad():
        conv.weight.zero_()
        assert float(conv(maps(1, 16, 9, 9)).abs().max()) > 0.1
        # Where oneDNN is not called, the weights are read.
        assert float(conv(maps(1, 16, 9, 9).contiguous()).abs().max()) == 0.0
    assert float(conv(maps(1, 16, 9, 9)).detach().abs().max()) == 0.0
    assert copy.deepcopy(conv).to("meta")(torch.empty(1, 16, 9, 9, device="meta")).shape == (1, 40, 9, 9)
    assert "mkldnn" not in str(torch.export.export(conv, (maps(1, 16, 9, 9),), strict=False).graph)


def test_fused_layers_use_it_too() -> None:
    layers = folded(conv_norm_act(16, 40, 1, ConvSettings()))
    fused = copy.deepcopy(layers)
    fuse_convolutions(fused)
    given = maps(2, 16, 21, 18)
    assert pack_kernels(fused, input_sizes(fused, lambda: fused(given))) == 1
    assert isinstance(fused[0], PackedConv2d)
    assert _given(given, fused[0])[1] is fused[0].packed.kernel
    with torch.no_grad():
        assert_close(fused(given), layers(given), rtol=1e-5, atol=1e-6)


def test_a_sum_uses_it_too() -> None:
    block = folded(Bottleneck(16, 8, 16, 1, ConvSettings(activation="RELU"), project=False))
    fused = copy.deepcopy(block)
    fuse_convolutions(fused)
    given = maps(2, 16, 21, 18)
    assert pack_kernels(fused, input_sizes(fused, lambda: fused(given))) == 3
    with torch.no_grad():
        expected = block(given)
        fused.expand[0].weight.zero_()
        assert_close(fused(given), expected, rtol=1e-5, atol=1e-5)


def test_other_inputs_read_the_weights(monkeypatch: pytest.MonkeyPatch) -> None:
    conv = Conv2d(16, 40, 1)
    pack_kernels(conv, {conv: torch.Size((1, 16, 9, 9))})
    given = maps(1, 16, 9, 9)
    with torch.no_grad():
        conv.weight.zero_()
        with torch.autocast("cpu", torch.bfloat16):
            assert float(conv(given).abs().max()) == 0.0
        assert conv(given[:0]).shape == (0, 40, 9, 9)
        monkeypatch.setattr(torch.backends.mkldnn, "enabled", False)
        assert float(conv(given).abs().max()) == 0.0


@pytest.mark.parametrize("depthwise", [False, True])
def test_weights_that_are_loaded_count(depthwise: bool) -> None:
    groups = 16 if depthwise else 1
    first, second = (Conv2d(16, 16, 3, groups=groups).requires_grad_(False) for _ in range(2))
    given = maps(1, 16, 9, 9)
    network = nn.Sequential(first).to(memory_format=torch.channels_last)
    fuse_convolutions(network)
    pack_kernels(network, input_sizes(network, lambda: network(given)))
    network.load_state_dict({"0.weight": second.weight})
    with torch.no_grad():
        assert_close(network(given), second(given), rtol=1e-5, atol=1e-5)


def test_one_convolution_of_two_names_and_sizes() -> None:
    conv = Conv2d(16, 16, 1).requires_grad_(False).to(memory_format=torch.channels_last)
    network = nn.ModuleDict({"one": conv, "two": conv, "unseen": Conv2d(16, 16, 1)})
    small, large, none = maps(1, 16, 3, 3), maps(1, 16, 30, 20), maps(1, 16, 3, 3)[:0]
    expected = conv(large)

    def run() -> None:
        network["unseen"](none)
        for given in (none, small, large):
            network["two"](given)

    sizes = input_sizes(network, run)
    assert sizes == {conv: large.shape}
    assert pack_kernels(network, sizes) == 1
    assert network["one"] is network["two"]
    with torch.no_grad():
        assert_close(network["one"](large), expected, rtol=1e-5, atol=1e-5)


class Doubled(Conv2d):
    """A convolution of someone else's."""

    def forward(self, input: Tensor) -> Tensor:
        return super().forward(input) * 2


def test_others_stay() -> None:
    idle = Conv2d(16, 8, 1)
    network = nn.Sequential(Doubled(16, 16, 1), nn.Conv2d(16, 16, 1), Dense(16, 16)).eval().requires_grad_(False)
    network.to(memory_format=torch.channels_last)
    types = [type(module) for module in (*network, idle)]
    whole = nn.ModuleList([network, idle])
    assert pack_kernels(whole, input_sizes(whole, lambda: network(maps(2, 16, 1, 1)))) == 0
    assert [type(module) for module in (*network, idle)] == types
