"""Which blocks the compiled kernel of depthwise convolutions takes over, and that they compute as before."""

from __future__ import annotations

import copy
from dataclasses import replace

import pytest
import torch
from torch import Tensor, nn

from boxwright.base.c_compiler import CompilerError
from boxwright.nn import compiled_depthwise
from boxwright.nn.backbones.efficientnet import EfficientNet, MBConv
from boxwright.nn.backbones.mobilenet_v2 import InvertedResidual, MobileNetV2
from boxwright.nn.compiled_depthwise import gains_from_depthwise, is_expanded_depthwise
from boxwright.nn.cpu_acceleration import accelerate_for_cpu, compiled_kernels, use_kernels
from boxwright.nn.layers import ConvSettings, Padding, conv_norm_act

SWISH = ConvSettings(activation="SWISH")


def images(size: int = 128) -> Tensor:
    generator = torch.Generator().manual_seed(1)
    return torch.randn(2, 3, size, size, generator=generator).to(memory_format=torch.channels_last)


def found(network: nn.Module, given: Tensor) -> list[Tensor]:
    outputs = network(given)
    upstream = [torch.randn(one.shape, generator=torch.Generator().manual_seed(2)) for one in outputs]
    loss = torch.stack([(one * two).sum() for one, two in zip(outputs, upstream, strict=True)]).sum()
    slopes = torch.autograd.grad(loss, list(network.parameters()), allow_unused=True)
    statistics = [one for name, one in network.named_buffers() if "running" in name]
    return [*(one.detach() for one in outputs), *(one for one in slopes if one is not None), *statistics]


def accelerated(network: nn.Module) -> nn.Module:
    fast = copy.deepcopy(network)
    accelerate_for_cpu(fast)
    return fast


@pytest.mark.parametrize("padding", ["same", "explicit"])
def test_mobilenet_computes_as_before(padding: Padding, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(compiled_depthwise, "LEAST_VALUES", 1)
    torch.manual_seed(0)
    taps = ("3/expand", "3", "5")
    # Swish: at ReLU6's bounds rounding decides which gradients pass.
    network = MobileNetV2(SWISH, taps=taps, padding=padding).to(memory_format=torch.channels_last)  # type: ignore[call-overload]
    fast = accelerated(network)
    assert "depthwise" in compiled_kernels(fast)
    agree(network, fast, 64)


def test_efficientnet_computes_as_before(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(compiled_depthwise, "LEAST_VALUES", 1)
    torch.manual_seed(0)
    network = EfficientNet(1.0, 1.0, SWISH, levels=(2, 3)).to(memory_format=torch.channels_last)  # type: ignore[call-overload]
    for block in network.blocks:
        block.drop = None  # drops images at random
    agree(network, accelerated(network), 64)


def agree(network: nn.Module, fast: nn.Module, size: int) -> None:
    """Both are as near to float64."""
    exact = found(copy.deepcopy(network).double(), images(size).double())
    plain, ours = found(network, images(size)), found(fast, images(size))
    assert len(exact) > 30
    for truth, one, other in zip(exact, plain, ours, strict=True):
        rounding = (one - truth).abs().max() + 1e-6 * truth.abs().max()
        assert (other - truth).abs().max() <= 4 * rounding


def test_blocks_without_the_kernels_are_the_plain_ones() -> None:
    torch.manual_seed(0)
    network = MobileNetV2(SWISH, taps=("2",)).to(memory_format=torch.channels_last)  # type: ignore[call-overload]
    fast = accelerated(network)
    assert compiled_kernels(fast) == ("norm_act", "depthwise")
    use_kernels(fast, ())
    assert compiled_kernels(fast) == ()
    assert {type(block) for block in fast.blocks} == {InvertedResidual}


def test_blocks_by_kind() -> None:
    fast = accelerated(MobileNetV2(ConvSettings(), taps=("2",)))
    # The first block has no expansion; the others' classes are their own.
    assert [type(block) is InvertedResidual for block in fast.blocks] == [True, False, False]
    hard = accelerated(MobileNetV2(ConvSettings(activation="HARD_SWISH"), taps=("2",)))
    assert compiled_kernels(hard) == ("norm_act",)  # of the layers without an activation
    swish = accelerated(EfficientNet(1.0, 1.0, SWISH, levels=(2,)))
    assert [type(block) is MBConv for block in swish.blocks] == [True, False, False]
    assert compiled_kernels(swish) == ("norm_act", "depthwise")


@pytest.mark.parametrize(
    ("kernel_size", "settings", "stride"),
    [(7, ConvSettings(), 1), (1, ConvSettings(), 1), (3, ConvSettings(), 3), (3, replace(SWISH, norm=None), 1)],
)
def test_what_the_kernel_does_not_compute(kernel_size: int, settings: ConvSettings, stride: int) -> None:
    expand = conv_norm_act(8, 48, 1, settings)
    depthwise = conv_norm_act(48, 48, kernel_size, settings, stride=stride, depthwise=True)
    assert not is_expanded_depthwise(expand, depthwise)
    assert is_expanded_depthwise(conv_norm_act(8, 48, 1, SWISH), conv_norm_act(48, 48, 3, SWISH, depthwise=True))
    assert not is_expanded_depthwise(nn.Identity(), depthwise)


def test_when_layers_run_one_by_one(monkeypatch: pytest.MonkeyPatch) -> None:
    expand, depthwise = conv_norm_act(8, 48, 1, SWISH), conv_norm_act(48, 48, 3, SWISH, depthwise=True)
    given = torch.randn(1, 8, 80, 80).to(memory_format=torch.channels_last)
    assert gains_from_depthwise(expand, depthwise, given)
    with torch.no_grad():
        assert not gains_from_depthwise(expand, depthwise, given)
    assert not gains_from_depthwise(expand, depthwise, given.double())
    assert not gains_from_depthwise(expand, depthwise, given.contiguous())
    assert not gains_from_depthwise(
        expand, depthwise, given[:, :, :20, :20].contiguous(memory_format=torch.channels_last)
    )
    with torch.autocast("cpu", dtype=torch.bfloat16):
        assert not gains_from_depthwise(expand, depthwise, given)
    for layer in (expand, *expand, depthwise[0]):
        with layer.register_forward_hook(lambda *_: None):
            assert not gains_from_depthwise(expand, depthwise, given)
    expand.eval()
    assert not gains_from_depthwise(expand, depthwise, given)
    expand.train()
    monkeypatch.setattr(compiled_depthwise, "kernels", lambda: CompilerError("no C compiler"))
    assert not gains_from_depthwise(expand, depthwise, given)
