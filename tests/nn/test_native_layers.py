"""Layers that call the native extension's operators: as without it, in copies, graphs and other hands."""

from __future__ import annotations

import copy
import pickle
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.utils._python_dispatch import TorchDispatchMode

from boxwright.nn.backbones.resnet_v1 import Bottleneck
from boxwright.nn.batch_norm import BatchNormSettings
from boxwright.nn.layers import Conv2d, ConvSettings, conv_norm_act
from boxwright.nn.ops import native
from boxwright.nn.winograd import NativeWinogradConv2d, WinogradConv2d, replace_by_winograd
from tests.nn.ops.test_native import needs_extension

SETTINGS = ConvSettings(norm=BatchNormSettings(decay=0.9))
CONV, CONV_BACK, PACKED = "boxwright::conv_3x3", "boxwright::conv_3x3_backward", "boxwright::conv_3x3_packed"


@pytest.fixture(params=["extension", "no extension"])
def extension(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> bool:
    """Compute with and without the native extension, whichever this installation has."""
    if request.param == "no extension":
        monkeypatch.setattr(native, "EXTENSION", None)
    elif native.EXTENSION is None:
        pytest.skip("this installation has no native extension")
    return native.EXTENSION is not None


class Log(TorchDispatchMode):
    """Notes the extension's operators."""

    def __init__(self) -> None:
        super().__init__()
        self.names: list[str] = []

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if func.namespace == "boxwright":
            self.names.append(func.name())
        return func(*args, **kwargs or {})


def operators(compute: Callable[[], object]) -> list[str]:
    with Log() as log:
        compute()
    return log.names


def network() -> nn.Sequential:
    torch.manual_seed(0)
    layers = nn.Sequential(
        Conv2d(64, 96, 3),
        conv_norm_act(96, 64, 1, SETTINGS),
        Bottleneck(64, 64, 64, 1, SETTINGS, project=False),
    )
    return layers.to(memory_format=torch.channels_last)  # type: ignore[call-overload, no-any-return]


def inputs() -> Tensor:
    generator = torch.Generator().manual_seed(1)
    maps = torch.randn(1, 64, 64, 64, generator=generator).to(memory_format=torch.channels_last)
    return maps.requires_grad_()


def results(layers: nn.Module, call: Callable[..., Any] | None = None) -> list[Tensor]:
    """Return the outputs of a training pass, the gradients, and the stored statistics."""
    maps = inputs()
    outputs = (call or layers)(maps)
    upstream = torch.randn(outputs.shape, generator=torch.Generator().manual_seed(2))
    gradients = torch.autograd.grad((outputs * upstream).sum(), [maps, *layers.parameters()])
    return [outputs.detach(), *gradients, *(buffer.clone() for buffer in layers.buffers())]


def assert_close(ours: list[Tensor], theirs: list[Tensor]) -> None:
    """Compare up to rounding, and up to the few values that it lets fall on the other side of an activation's bound."""
    for mine, expected in zip(ours, theirs, strict=True):
        assert (mine - expected).double().norm() <= 1e-2 * expected.double().norm() + 1e-12


def test_a_step_calls_the_operators_by_name(extension: bool) -> None:
    names = operators(lambda: results(network()))
    assert names == ([CONV, CONV, CONV_BACK, CONV_BACK] if extension else [])


@needs_extension
def test_a_step_is_the_same_with_and_without(monkeypatch: pytest.MonkeyPatch) -> None:
    ours = results(network())
    monkeypatch.setattr(native, "EXTENSION", None)
    theirs = results(network())
    assert not torch.equal(ours[0], theirs[0])  # rounded otherwise
    assert_close(ours, theirs)


def test_copies_and_other_ways_to_call_a_network(extension: bool) -> None:
    expected = results(network())
    for copied in (copy.deepcopy(network()), pickle.loads(pickle.dumps(network()))):
        assert all(map(torch.equal, results(copied), expected))
    layers, other = network(), network()
    values = dict(layers.named_parameters()) | dict(layers.named_buffers())
    nn.init.zeros_(other[0].weight)
    called = results(layers, lambda maps: torch.func.functional_call(other, values, (maps,)))
    assert all(map(torch.equal, called, expected))
    saved: list[Tensor] = []
    with torch.autograd.graph.saved_tensors_hooks(lambda tensor: (saved.append(tensor), tensor)[1], lambda kept: kept):
        assert all(map(torch.equal, results(network()), expected))
    assert saved


def test_compiled_and_exported_graphs_hold_pytorchs_operators_alone(extension: bool) -> None:
    layers, maps, graphs = network(), inputs().detach(), []

    def backend(module: torch.fx.GraphModule, _: object) -> torch.fx.GraphModule:
        graphs.append(module)
        return module

    torch.compile(layers, backend=backend, fullgraph=True)(inputs())
    programs = [torch.export.export(network().eval(), (maps,), strict=strict) for strict in (True, False)]
    dynamic = {"input": {0: torch.export.Dim("batch"), 2: 8 * torch.export.Dim("height")}}
    programs.append(torch.export.export(network().eval(), (maps.repeat(2, 1, 1, 1),), dynamic_shapes=dynamic))
    graphs += [program.graph_module for program in programs]
    assert len(graphs) == 4
    assert not [node for graph in graphs for node in graph.graph.nodes if "boxwright" in str(node.target)]
    torch.testing.assert_close(programs[0].module()(maps), network().eval()(maps), rtol=1e-3, atol=1e-3)


def test_hooks_of_every_layer_fire(extension: bool) -> None:
    layers = network()
    expected = results(network())
    for name, _ in list(layers.named_modules()):
        seen: list[object] = []
        layers = network()
        layers.get_submodule(name).register_forward_hook(lambda *_, seen=seen: seen.append(None))
        assert_close(results(layers), expected)
        assert len(seen) == 1, name


@needs_extension
def test_what_the_operators_do_not_compute() -> None:
    conv, maps = network()[0], inputs()
    assert operators(lambda: conv(maps)) == [CONV]
    assert operators(lambda: conv(maps[:, :, :24])) == []  # too few tiles
    assert operators(lambda: conv(maps.contiguous())) == []
    assert operators(lambda: copy.deepcopy(conv).double()(maps.double())) == []
    with torch.autocast("cpu"):
        assert operators(lambda: conv(maps)) == []
    for other in ({"stride": 2}, {"dilation": 2}, {"groups": 2}, {"padding": "valid"}, {"out_channels": 32}):
        arguments: dict[str, Any] = {"in_channels": 64, "out_channels": 64, "kernel_size": 3, **other}
        assert operators(lambda arguments=arguments: Conv2d(**arguments)(maps)) == []


def test_convolutions_prepared_for_detection(extension: bool) -> None:
    torch.manual_seed(0)
    plain = nn.Sequential(Conv2d(64, 128, 3), Conv2d(128, 128, 3, bias=True)).requires_grad_(requires_grad=False)
    prepared, maps = copy.deepcopy(plain), torch.randn(2, 64, 22, 17)
    sizes = {conv: torch.Size((2, conv.in_channels, 22, 17)) for conv in prepared}
    assert replace_by_winograd(prepared, sizes) == (2 if extension else 1)
    assert isinstance(prepared[1], NativeWinogradConv2d if extension else WinogradConv2d)
    assert operators(lambda: prepared(maps)) == ([PACKED] * 2 if extension else [])
    for layers in (prepared, copy.deepcopy(prepared), pickle.loads(pickle.dumps(prepared))):
        torch.testing.assert_close(layers(maps), plain(maps), rtol=1e-4, atol=1e-4)
    exported = torch.export.export(prepared, (maps,)).module()
    assert operators(lambda: exported(maps)) == []
    torch.testing.assert_close(exported(maps), plain(maps), rtol=1e-4, atol=1e-4)


@needs_extension
def test_a_prepared_convolution_where_the_extension_is_missing(monkeypatch: pytest.MonkeyPatch) -> None:
    """It was prepared elsewhere; or gradients of the image are asked for."""
    torch.manual_seed(0)
    conv = Conv2d(64, 128, 3, bias=True).requires_grad_(requires_grad=False)
    layer, maps = NativeWinogradConv2d(conv), inputs()
    assert operators(lambda: layer(maps)) == []
    layer(maps).sum().backward()
    assert maps.grad is not None
    assert operators(lambda: layer(maps.detach())) == [PACKED]
    monkeypatch.setattr(native, "EXTENSION", None)
    torch.testing.assert_close(layer(maps), conv(maps))
