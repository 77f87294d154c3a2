"""Anchors as part of a network: laid once for each size of input."""

from __future__ import annotations

import copy
from collections.abc import Callable

import pytest
import torch
from torch import nn

from boxwright.nn import anchor_layer
from boxwright.nn.anchor_grids import GridAnchorGenerator
from boxwright.nn.anchor_layer import AnchorLayer, _ShapesOnly

GENERATOR = GridAnchorGenerator((0.5, 1.0), (1.0, 2.0), (32.0, 32.0))


def maps(height: int, width: int, device: str = "cpu") -> list[torch.Tensor]:
    return [torch.zeros(1, 8, height, width, device=device)]


def test_each_size_is_laid_once() -> None:
    layer = AnchorLayer(GENERATOR)
    first, sizes = layer(maps(3, 4), (48, 64))
    other, _ = layer(maps(4, 4), (64, 64))
    assert sizes == (3 * 4 * 4,)
    assert first.shape != other.shape
    for size, found in (((3, 4), first), ((4, 4), other)):
        inputs = (size[0] * 16, size[1] * 16)
        assert layer(maps(*size), inputs)[0] is found
        assert torch.equal(found, layer.generate([size], inputs)[0])
    assert layer(maps(3, 4), (47, 64))[0] is not first, "of another size of input"


def test_what_is_kept_is_on_the_device_of_the_maps() -> None:
    layer = AnchorLayer(GENERATOR)
    assert layer(maps(3, 4), (48, 64))[0].device.type == "cpu"
    assert layer(maps(3, 4, "meta"), (48, 64))[0].device.type == "meta"
    assert layer(maps(3, 4), (48, 64))[0].device.type == "cpu"


def test_few_are_kept_and_none_is_saved(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(anchor_layer, "_MOST_SIZES", 5)
    layer = AnchorLayer(GENERATOR)
    for side in range(1, 40):
        found, _ = layer(maps(side, 2), (16 * side, 32))
        assert len(found) == side * 2 * 4
        assert len(layer._cache) <= 5
    assert not layer.state_dict()
    assert torch.equal(copy.deepcopy(layer)(maps(39, 2), (16 * 39, 32))[0], found)


@pytest.mark.parametrize(
    "layer",
    [
        nn.Conv2d(3, 8, 3, stride=2, padding=1),
        nn.Conv2d(3, 6, (3, 1), stride=(2, 1), padding=(2, 0), dilation=(2, 1), groups=3, bias=False),
        nn.Upsample(scale_factor=2),
        nn.Upsample(scale_factor=(1.5, 2.0)),
        nn.Upsample(size=(9, 4)),
        nn.Upsample(size=11),
    ],
    ids=str,
)
def test_shapes_are_those_of_layers(layer: nn.Module) -> None:
    inputs = torch.zeros(2, 3, 13, 10)
    expected = layer(inputs).shape
    with _ShapesOnly():
        assert layer.to("meta")(inputs.to("meta")).shape == expected
        assert (inputs.to("meta") + torch.zeros(3, 1, 1, device="meta")).shape == inputs.shape
        assert (torch.zeros(3, 1, 1, device="meta") * inputs.to("meta")).shape == inputs.shape


@pytest.mark.parametrize(
    "compute",
    [
        lambda x: x.mean((2, 3), keepdim=True),
        lambda x: x.mean((-1, -2)),
        lambda x: x.mean(1, True),
        lambda x: x.mean(),
        lambda x: x.sum(),
        lambda x: x.sum(-3, keepdim=True),
        lambda x: x / (x.relu().sum() + 1e-4),
        lambda x: x * x.mean((2, 3), keepdim=True).sigmoid(),
        lambda x: x * x[0, 0, 0],
        lambda x: x[:1] * x,
        lambda x: x[0] + x,
        lambda x: 2 * x,
        lambda x: torch.softmax(x, dim=-1),
    ],
)
def test_shapes_are_those_of_computations(compute: Callable[[torch.Tensor], torch.Tensor]) -> None:
    inputs = torch.zeros(2, 3, 13, 10)
    expected = compute(inputs).shape
    with _ShapesOnly():
        assert compute(inputs.to("meta")).shape == expected
