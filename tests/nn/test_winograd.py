"""Which convolutions are computed in Winograd's way."""

from __future__ import annotations

import copy

import pytest
import torch
from torch import nn

import boxwright as bw
from boxwright.base.c_compiler import CompilerError
from boxwright.nn.cpu_acceleration import accelerate_for_cpu, compiled_kernels, use_kernels
from boxwright.nn.input_sizes import input_sizes
from boxwright.nn.layers import Conv2d
from boxwright.nn.ops import winograd, winograd_tiles
from boxwright.nn.winograd import WinogradConv2d, gains_from_winograd, replace_by_winograd
from tests.exporters.small_detectors import pictures

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
    layers = nn.ModuleList([Conv2d(**usual), Conv2d(**usual | changes)])  # type: ignore[arg-type]
    accelerate_for_cpu(layers)
    assert [type(one) is Conv2d for one in layers] == [False, True]


def test_other_inputs_are_left_alone() -> None:
    conv = Conv2d(128, 128, 3)
    assert gains_from_winograd(conv, INPUTS)
    assert not gains_from_winograd(conv, INPUTS[..., :35].contiguous())
    assert not gains_from_winograd(conv, INPUTS.bfloat16())
    assert not gains_from_winograd(conv, INPUTS[:, :, :20, :20].contiguous(memory_format=torch.channels_last))
    assert not gains_from_winograd(conv, INPUTS.to("meta"))
    with torch.autocast("cpu", torch.bfloat16):
        assert not gains_from_winograd(conv, INPUTS)


def test_layers_give_what_pytorch_gives() -> None:
    torch.manual_seed(0)
    conv = Conv2d(128, 144, 3, bias=True)
    expected = nn.functional.conv2d(INPUTS, conv.weight, conv.bias, padding=1)
    assert torch.equal(conv(INPUTS), expected)
    accelerate_for_cpu(conv)
    assert not torch.equal(conv(INPUTS), expected)  # rounded otherwise
    for layer in (conv, copy.deepcopy(conv), WinogradConv2d(conv)):
        torch.testing.assert_close(layer(INPUTS), expected, rtol=1e-4, atol=1e-4)


def test_without_a_compiler_matrices_transform(monkeypatch: pytest.MonkeyPatch) -> None:
    torch.manual_seed(0)
    conv = nn.Sequential(Conv2d(128, 128, 3))
    accelerate_for_cpu(conv)
    assert compiled_kernels(conv) == ("winograd",)
    compiled = conv(INPUTS)
    by_matrices = winograd.conv_3x3(INPUTS, conv[0].weight, None)
    assert not torch.equal(compiled, by_matrices)
    with monkeypatch.context() as patched:
        patched.setattr(winograd_tiles, "kernels", lambda: CompilerError("no C compiler: cc is not found"))
        assert torch.equal(conv(INPUTS), by_matrices)
    use_kernels(conv, ())
    assert compiled_kernels(conv) == ()
    assert torch.equal(conv(INPUTS), by_matrices)


@pytest.mark.parametrize("bounds", [(-torch.inf, torch.inf), (0.0, 6.0)])
def test_a_kernel_in_advance_is_packed_where_it_can_be(
    bounds: tuple[float, float], monkeypatch: pytest.MonkeyPatch
) -> None:
    torch.manual_seed(0)
    conv = Conv2d(128, 128, 3, bias=True).requires_grad_(requires_grad=False)
    layer = WinogradConv2d(conv)
    by_matrices = winograd.conv_3x3_transformed(INPUTS, winograd.transformed_kernel(conv.weight), conv.bias)
    by_matrices = by_matrices.clamp(*bounds)
    compiled = layer.of_levels([INPUTS], [None], *bounds)[0]
    assert not torch.equal(compiled, by_matrices)
    torch.testing.assert_close(compiled, by_matrices, rtol=1e-4, atol=1e-4)
    with torch.autocast("cpu", torch.bfloat16):
        assert layer(INPUTS).isfinite().all()
    program = torch.export.export(layer, (INPUTS,), strict=False)
    torch.testing.assert_close(program.module()(INPUTS).clamp(*bounds), by_matrices, rtol=1e-5, atol=1e-5)
    monkeypatch.setattr(winograd_tiles, "kernels", lambda: CompilerError("no C compiler: cc is not found"))
    assert torch.equal(WinogradConv2d(conv).of_levels([INPUTS], [None], *bounds)[0], by_matrices)


def test_an_exported_graph_has_the_plain_layer() -> None:
    conv = Conv2d(128, 128, 3)
    accelerate_for_cpu(conv)
    program = torch.export.export(conv, (INPUTS,), strict=False)
    called = [str(node.target) for node in program.graph.nodes if node.op == "call_function"]
    assert called == ["aten.conv2d.default"]


def test_names_of_weights_and_hooks_stay() -> None:
    network, seen = nn.Sequential(Conv2d(128, 128, 3, bias=True)), list[torch.Tensor]()
    network[0].register_forward_hook(lambda *given: seen.append(given[2]))
    names = list(network.state_dict())
    for _ in range(2):  # the second time changes nothing
        accelerate_for_cpu(network)
    assert list(network.state_dict()) == names == ["0.weight", "0.bias"]
    network(INPUTS).sum().backward()
    assert len(seen) == 1
    assert all(one.grad is not None for one in network.parameters())


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
        self.medium, self.foreign = Conv2d(128, 16, 3), Standardized(128, 128, 3, padding=1)
        self.pool, self.last = nn.AdaptiveAvgPool2d(2), Conv2d(128, 128, 3)

    def forward(self, inputs: torch.Tensor) -> list[torch.Tensor]:
        maps = self.again(self.shared(self.first(inputs)))
        return [self.narrow(maps), self.medium(maps), self.foreign(maps), self.last(self.pool(maps))]


@pytest.mark.parametrize("compiler", [True, False])
def test_replaced_are_those_that_gain(compiler: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    torch.manual_seed(0)
    network = Wide().eval().to(memory_format=torch.channels_last)
    plain = copy.deepcopy(network)
    inputs = torch.randn(1, 3, 32, 32)
    if not compiler:
        monkeypatch.setattr(winograd_tiles, "kernels", lambda: CompilerError("no C compiler: cc is not found"))
    assert replace_by_winograd(network, input_sizes(network, lambda: network(inputs))) == 1 + compiler
    assert isinstance(network.shared, WinogradConv2d)
    assert network.again is network.shared
    assert isinstance(network.medium, WinogradConv2d) == compiler
    assert not isinstance(network.first, WinogradConv2d)
    assert type(network.foreign) is Standardized
    assert not isinstance(network.narrow, WinogradConv2d)
    assert not isinstance(network.last, WinogradConv2d)
    with torch.no_grad():
        for found, expected in zip(network(inputs), plain(inputs), strict=True):
            torch.testing.assert_close(found, expected, rtol=1e-4, atol=1e-4)


@pytest.mark.slow
def test_an_optimized_detector_finds_the_same() -> None:
    """RefineDet on VGG-16: nearly all of its convolutions gain."""
    torch.manual_seed(0)
    plain = bw.build_detector(bw.load_config(CONFIG)).eval()
    detector = copy.deepcopy(plain).optimize()
    # VGG's but the first, and at 40×40, 20×20 and 10×10 three of transfer connection and the second step's classes.
    assert sum(isinstance(one, WinogradConv2d) for one in detector.network.modules()) == 12 + 3 * 3 + 3
    for found, expected in zip(detector.detect(pictures()), plain.detect(pictures()), strict=True):
        assert len(found.boxes) == len(expected.boxes) > 0
        torch.testing.assert_close(found.scores, expected.scores, rtol=1e-3, atol=1e-4)
        # Boxes whose scores differ by rounding alone may change places.
        apart = torch.cdist(found.boxes, expected.boxes, p=torch.inf)
        assert float(torch.maximum(apart.amin(0), apart.amin(1)).max()) < 0.05
