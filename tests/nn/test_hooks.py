"""Hooks on any layer of a block see its output, though blocks compute several layers by one function."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest
import torch
from torch import Tensor, nn

import boxwright as bw
from boxwright.config.load import parse_message
from boxwright.nn.backbones.efficientnet import EfficientNet
from boxwright.nn.backbones.hgnetv2 import ConvNormRelu
from boxwright.nn.backbones.mobilenet_v2 import InvertedResidual
from boxwright.nn.backbones.resnet_v1 import Bottleneck
from boxwright.nn.layers import ConvSettings, conv_norm_act
from tests.conftest import SMALL_MODEL

BLOCKS: dict[str, Callable[[], nn.Module]] = {
    "convolution, norm, activation": lambda: conv_norm_act(16, 8, 3, ConvSettings()),
    "bottleneck": lambda: Bottleneck(16, 8, 24, 1, ConvSettings(), project=True),
    "bottleneck without a projection": lambda: Bottleneck(16, 8, 16, 1, ConvSettings(), project=False),
    "inverted residual": lambda: InvertedResidual(16, 32, 16, 1, ConvSettings(), "same"),
    "mobile block": lambda: EfficientNet(1.0, 1.0, ConvSettings(), levels=(2,)).blocks[1],
    "hgnet's layer": lambda: ConvNormRelu(16, 8, 3, affine=True),
}


@pytest.mark.parametrize("name", BLOCKS)
def test_each_layers_hook_is_called_and_changes_nothing(name: str) -> None:
    torch.manual_seed(0)
    block, inputs = BLOCKS[name]().eval(), torch.randn(2, 16, 6, 5)
    expected = block(inputs)
    for layer, module in block.named_modules():
        seen: list[Tensor] = []
        with module.register_forward_hook(lambda _, __, output, seen=seen: seen.append(output)):
            assert torch.equal(block(inputs), expected), layer
        assert len(seen) == 1, layer


def test_a_hook_on_a_detector_sees_each_way_to_call_it() -> None:
    detector = bw.build_detector(parse_message(SMALL_MODEL, bw.Pipeline))
    seen: list[object] = []
    detector.register_forward_hook(lambda _, __, output: seen.append(output))
    inputs = torch.zeros(1, 3, 64, 64)
    with torch.no_grad():
        detector(inputs)
        detector.predict(inputs)
    detector.detect([np.zeros((32, 48, 3), np.uint8)])
    assert len(seen) == 3


def test_a_hook_on_a_containers_gradients_is_called() -> None:
    block, seen = BLOCKS["bottleneck"](), list[object]()
    block.expand.register_full_backward_hook(lambda *given: seen.append(given))
    block(torch.ones(2, 16, 6, 5)).sum().backward()
    assert len(seen) == 1
