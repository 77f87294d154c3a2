"""A convolution of weighted channels by weighted kernels: as the definition in float64, and where it is not used."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from torch import Tensor, nn

from boxwright.nn.backbones.efficientnet import EfficientNet, MBConv
from boxwright.nn.cpu_acceleration import CompiledMBConv, accelerate_for_cpu
from boxwright.nn.gated_projection import gains_from_weighted_kernel, is_projection, project_gated
from boxwright.nn.layers import Conv2d, ConvNormAct, ConvSettings, conv_norm_act

LINEAR = ConvSettings(activation="NONE")


def projection(*, channels: int = 12) -> ConvNormAct:
    torch.manual_seed(0)
    return conv_norm_act(channels, 5, 1, LINEAR)


def maps(batch: int, channels: int = 12) -> Tensor:
    generator = torch.Generator().manual_seed(1)
    return torch.randn(batch, channels, 6, 4, generator=generator).contiguous(memory_format=torch.channels_last)


@pytest.mark.parametrize("batch", [1, 3])
def test_values_and_gradients_are_those_of_the_definition(batch: int) -> None:
    conv = projection()[0]
    gate = torch.rand(batch, 12, 1, 1, generator=torch.Generator().manual_seed(2))
    upstream = torch.randn(batch, 5, 6, 4, generator=torch.Generator().manual_seed(3))
    found = []
    for dtype in (torch.float32, torch.float64):
        inputs, gates, kernel = (one.detach().to(dtype).requires_grad_() for one in (maps(batch), gate, conv.weight))
        if dtype == torch.float32:
            outputs = project_gated(inputs, gates, conv)
            assert outputs.is_contiguous(memory_format=torch.channels_last)
            kernel = conv.weight
        else:
            outputs = torch.einsum("bchw,bc,dc->bdhw", inputs, gates.flatten(1), kernel.flatten(1))
        slopes = torch.autograd.grad(outputs, (inputs, gates, kernel), upstream.to(dtype))
        found.append([one.detach().double() for one in (outputs, *slopes)])
    for one, other in zip(*found, strict=True):
        torch.testing.assert_close(one, other, rtol=1e-5, atol=1e-5)


def test_which_layers() -> None:
    assert is_projection(projection())
    assert not is_projection(nn.Identity())
    assert not is_projection(conv_norm_act(12, 5, 3, LINEAR))
    assert not is_projection(conv_norm_act(12, 12, 1, LINEAR, depthwise=True))
    assert not is_projection(conv_norm_act(12, 5, 1, LINEAR, stride=2))
    assert not is_projection(conv_norm_act(12, 5, 1, replace(LINEAR, norm=None)))


def test_which_inputs() -> None:
    layers, inputs = projection(), maps(2).requires_grad_()
    assert gains_from_weighted_kernel(layers, inputs)
    assert not gains_from_weighted_kernel(layers, inputs.detach())
    assert not gains_from_weighted_kernel(layers, inputs.contiguous())
    assert not gains_from_weighted_kernel(layers, inputs.to("meta"))
    with torch.autocast("cpu"):
        assert not gains_from_weighted_kernel(layers, inputs)
    hook = layers[0].register_forward_hook(lambda *_: None)
    assert not gains_from_weighted_kernel(layers, inputs)
    hook.remove()
    layers.register_forward_pre_hook(lambda *_: None)
    assert not gains_from_weighted_kernel(layers, inputs)


def test_hooks_of_the_projection_see_what_they_would_see(monkeypatch: pytest.MonkeyPatch) -> None:
    torch.manual_seed(0)
    network = EfficientNet(1.0, 1.0, ConvSettings(activation="SWISH"), levels=(2,)).to(  # type: ignore[call-overload]
        memory_format=torch.channels_last
    )
    accelerate_for_cpu(network)
    block = network.blocks[1]
    assert type(block) is CompiledMBConv
    used: list[Conv2d] = []
    monkeypatch.setattr(
        "boxwright.nn.cpu_acceleration.project_gated",
        lambda inputs, gate, conv: (used.append(conv), project_gated(inputs, gate, conv))[1],
    )
    images = torch.randn(1, 3, 32, 32).contiguous(memory_format=torch.channels_last)
    network(images)
    expanded = [one for one in network.blocks if type(one) is not MBConv]
    assert used == [one.project[0] for one in expanded]
    shapes = []
    block.project[0].register_forward_hook(lambda _, given, __: shapes.append(given[0].shape[1]))
    network(images)
    assert len(used) == 2 * len(expanded) - 1
    assert shapes == [block.project[0].in_channels]
