"""Winograd's algorithm: against the definition in float64, and which convolutions an optimized detector computes so."""

from __future__ import annotations

import copy

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

import boxwright as bw
from boxwright.nn import winograd
from boxwright.nn.folding import input_sizes
from boxwright.nn.layers import Conv2d
from boxwright.nn.ops import native
from boxwright.nn.winograd import WinogradConv2d, conv_3x3_transformed, replace_by_winograd, transformed_kernel
from tests.exporters.small_detectors import pictures
from tests.nn.convolutions import SIZES, random_convolution, relative_error


@pytest.fixture(autouse=True)
def _without_the_extension(monkeypatch: pytest.MonkeyPatch) -> None:
    """With it there are other layers (`test_native_layers.py`)."""
    monkeypatch.setattr(native, "EXTENSION", None)


CONFIG = "preset:refinedet320_vgg16_voc"
INPUTS = torch.randn(1, 128, 40, 40).to(memory_format=torch.channels_last)


@pytest.mark.parametrize(
    "changes",
    [
        {"kernel_size": 1},
        {"kernel_size": (3, 1)},
        {"stride": 2},
        {"dilation": 2},
        {"groups": 2},
        {"out_channels": 64},
        {"padding": "valid"},
    ],
)
def test_other_convolutions_are_left_alone(changes: dict[str, int]) -> None:
    usual: dict[str, int] = {"in_channels": 128, "out_channels": 128, "kernel_size": 3}
    layers = nn.Sequential(Conv2d(**usual), Conv2d(**usual | changes))  # type: ignore[arg-type]
    sizes = dict.fromkeys(layers, INPUTS.shape)
    assert replace_by_winograd(layers, sizes) == 1
    assert [type(layer) is Conv2d for layer in layers] == [False, True]


@pytest.mark.parametrize("bias", [True, False])
def test_layers_give_what_pytorch_gives(bias: bool) -> None:
    torch.manual_seed(0)
    conv = Conv2d(128, 144, 3, bias=bias).requires_grad_(requires_grad=False)
    expected, layer = conv(INPUTS), WinogradConv2d(conv)
    assert not torch.equal(layer(INPUTS), expected)  # rounded otherwise
    for same in (layer, copy.deepcopy(layer)):
        torch.testing.assert_close(same(INPUTS), expected, rtol=1e-4, atol=1e-4)
    program = torch.export.export(layer, (INPUTS,), strict=False)
    torch.testing.assert_close(program.module()(INPUTS), expected, rtol=1e-4, atol=1e-4)


class Standardized(nn.Conv2d):
    """A convolution of somebody else, with weights of its own."""

    def forward(self, input: torch.Tensor) -> torch.Tensor:
        return self._conv_forward(input, self.weight / self.weight.std(), self.bias)


class Wide(nn.Module):
    """Two convolutions that gain, one of them used twice, one that is too narrow, one that sees little, a foreign one."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.shared, self.narrow = nn.Conv2d(3, 128, 3, padding=1), Conv2d(128, 128, 3), Conv2d(128, 8, 3)
        self.again = self.shared
        self.foreign = Standardized(128, 128, 3, padding=1)
        self.pool, self.last = nn.AdaptiveAvgPool2d(2), Conv2d(128, 128, 3)

    def forward(self, inputs: torch.Tensor) -> list[torch.Tensor]:
        maps = self.again(self.shared(self.first(inputs)))
        return [self.narrow(maps), self.foreign(maps), self.last(self.pool(maps))]


def test_replaced_are_those_that_gain() -> None:
    torch.manual_seed(0)
    network = Wide().eval().to(memory_format=torch.channels_last)
    plain = copy.deepcopy(network)
    inputs = torch.randn(1, 3, 32, 32)
    assert replace_by_winograd(network, input_sizes(network, lambda: network(inputs))) == 1
    assert isinstance(network.shared, WinogradConv2d)
    assert network.again is network.shared
    assert type(network.foreign) is Standardized
    assert not any(isinstance(layer, WinogradConv2d) for layer in (network.first, network.narrow, network.last))
    with torch.no_grad():
        for ours, theirs in zip(network(inputs), plain(inputs), strict=True):
            torch.testing.assert_close(ours, theirs, rtol=1e-4, atol=1e-4)


@pytest.mark.slow
def test_an_optimized_detector_finds_the_same() -> None:
    """RefineDet on VGG-16: most of its convolutions gain."""
    torch.manual_seed(0)
    plain = bw.build_detector(bw.load_config(CONFIG)).eval()
    detector = copy.deepcopy(plain).optimize()
    # VGG's from the fourth on, and three of the transfer connections at 40×40 and at 20×20.
    assert sum(isinstance(layer, WinogradConv2d) for layer in detector.network.modules()) == 10 + 2 * 3
    for found, expected in zip(detector.detect(pictures()), plain.detect(pictures()), strict=True):
        assert len(found.boxes) == len(expected.boxes) > 0
        torch.testing.assert_close(found.scores, expected.scores, rtol=1e-3, atol=1e-4)
        # Boxes whose scores differ by rounding alone may change places.
        apart = torch.cdist(found.boxes, expected.boxes, p=torch.inf)
        assert float(torch.maximum(apart.amin(0), apart.amin(1)).max()) < 0.05


def conv_3x3(inputs: Tensor, kernel: Tensor, bias: Tensor | None) -> Tensor:
    return conv_3x3_transformed(inputs, transformed_kernel(kernel), bias)


@pytest.mark.parametrize("with_bias", [True, False])
@pytest.mark.parametrize(("height", "width"), SIZES)
def test_values_are_those_of_the_definition(height: int, width: int, with_bias: bool) -> None:
    inputs, kernel, bias = random_convolution(height, width)
    outputs = conv_3x3(inputs, kernel, bias if with_bias else None)
    expected = F.conv2d(inputs.double(), kernel.double(), bias.double() if with_bias else None, padding=1)
    assert outputs.shape == expected.shape
    assert outputs.is_contiguous(memory_format=torch.channels_last)
    assert relative_error(outputs, expected) < 5e-6


def test_no_more_is_lost_in_rounding_than_in_the_direct_way() -> None:
    """The points are chosen for that. Of 256 channels, the sizes that it is used for; mean square errors."""
    inputs, kernel, _ = random_convolution(40, 40, batch=1, ins=256, outs=256)
    exact = F.conv2d(inputs.double(), kernel.double(), padding=1)
    ours = (conv_3x3(inputs, kernel, None).double() - exact).square().mean().sqrt()
    direct = (F.conv2d(inputs, kernel, padding=1).double() - exact).square().mean().sqrt()
    assert ours < 5 * direct
    assert relative_error(conv_3x3(inputs, kernel, None), exact) < 5e-6


def test_whole_numbers_by_hand() -> None:
    """A kernel that picks the right neighbour moves the map left, zeros coming in from outside."""
    inputs = torch.arange(1.0, 17).view(1, 1, 4, 4).to(memory_format=torch.channels_last)
    kernel = torch.zeros(1, 1, 3, 3)
    kernel[0, 0, 1, 2] = 1
    expected = torch.tensor([[2.0, 3, 4, 0], [6, 7, 8, 0], [10, 11, 12, 0], [14, 15, 16, 0]])
    torch.testing.assert_close(conv_3x3(inputs, kernel, None)[0, 0], expected, rtol=0, atol=2e-5)


def test_a_batch_in_parts_is_the_whole(monkeypatch: pytest.MonkeyPatch) -> None:
    inputs, kernel, bias = random_convolution(13, 10, batch=5)
    whole = conv_3x3(inputs, kernel, bias)
    monkeypatch.setattr(winograd, "_MOST_NUMBERS", 1)
    assert len(winograd.image_chunks(inputs, 7)) == 5
    torch.testing.assert_close(conv_3x3(inputs, kernel, bias), whole)


def test_no_images_give_none() -> None:
    _, kernel, bias = random_convolution(8, 8)
    assert conv_3x3(torch.zeros(0, 5, 8, 8), kernel, bias).shape == (0, 7, 8, 8)


def test_what_is_not_finite_stays_near() -> None:
    """NaN spreads to the tiles that see it, not over the map."""
    inputs, kernel, _ = random_convolution(40, 40, batch=1)
    inputs[0, 0, 2, 2] = torch.nan
    found = conv_3x3(inputs, kernel, None)
    assert bool(found[:, :, 1:4, 1:4].isnan().all())
    assert not bool(found[:, :, 8:].isnan().any())
    assert not bool(found[..., 8:].isnan().any())
