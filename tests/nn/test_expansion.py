"""Normalization from the covariance of what a convolution is given."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch import Tensor, nn

from boxwright.nn.batch_norm import BatchNorm2d, SyncBatchNorm2d
from boxwright.nn.cpu_acceleration import ExpansionNormAct, accelerate_for_cpu
from boxwright.nn.expansion import expand_normalized, gains_from_covariance
from boxwright.nn.layers import ConvNormAct, ConvSettings, conv_norm_act


def layers(channels: int = 6, out: int = 30, *, momentum: float = 0.1) -> tuple[nn.Conv2d, BatchNorm2d]:
    torch.manual_seed(3)
    conv, norm = nn.Conv2d(channels, out, 1, bias=False), BatchNorm2d(out, eps=1e-3, momentum=momentum)
    with torch.no_grad():
        norm.weight.uniform_(0.5, 2.0)
        norm.bias.normal_()
    return conv, norm


def inputs(channels: int = 6, *, mean: float = 0.0) -> Tensor:
    generator = torch.Generator().manual_seed(4)
    values = torch.randn(3, channels, 8, 9, generator=generator) * torch.logspace(-2, 1, channels)[:, None, None] + mean
    return values.to(memory_format=torch.channels_last)


def results(run: Callable[[Tensor], Tensor], given: Tensor, layers: tuple[nn.Conv2d, BatchNorm2d]) -> list[Tensor]:
    """Return what comes out, all gradients and the moved averages, in float64."""
    conv, norm = layers
    given = given.clone(memory_format=torch.preserve_format).requires_grad_()
    outputs = run(given)
    upstream = torch.randn(outputs.shape, generator=torch.Generator().manual_seed(5)).to(outputs)
    found = torch.autograd.grad(outputs, (given, conv.weight, norm.weight, norm.bias), upstream)
    assert norm.running_mean is not None
    assert norm.running_var is not None
    averages = [norm.running_mean, norm.running_var]
    return [one.double() for one in (outputs.detach(), *found, *averages)]


@pytest.mark.parametrize(("mean", "limit"), [(0.0, 1e-5), (3.0, 1e-5), (100.0, 1e-3)])
def test_all_is_as_computed_layer_by_layer_in_float64(mean: float, limit: float) -> None:
    ours = results(lambda given: expand_normalized(given, *mine), inputs(mean=mean), mine := layers())
    conv, norm = layers()
    conv, norm = conv.double(), norm.double()
    plain = results(lambda given: norm(conv(given)), inputs(mean=mean).double(), (conv, norm))
    names = ("outputs", "to inputs", "to kernel", "to gain", "to bias", "mean", "variance")
    for name, one, expected in zip(names, ours, plain, strict=True):
        assert (one - expected).abs().max() <= limit * expected.abs().max(), name


def test_gradients_by_differences() -> None:
    conv, norm = layers(3, 12)
    conv, norm = conv.double(), norm.double()
    given = inputs(3).double()[:1, :, :3, :3].requires_grad_()
    # Parameters are leaves that gradcheck changes in place.
    check = torch.autograd.gradcheck
    assert check(lambda *_: expand_normalized(given, conv, norm), (given, conv.weight, norm.weight, norm.bias))


def test_channels_that_never_change() -> None:
    """A constant input has a variance of 0: what comes out is the bias, as from normalization."""
    conv, norm = layers()
    constant = torch.full((2, 6, 4, 4), 5.0).to(memory_format=torch.channels_last)
    outputs = expand_normalized(constant, conv, norm)
    torch.testing.assert_close(outputs, norm.bias[None, :, None, None].expand_as(outputs), rtol=0, atol=1e-3)


def test_where_it_stands_in() -> None:
    conv, norm = layers()
    norm.train()
    assert gains_from_covariance(conv, norm, inputs())
    assert not gains_from_covariance(conv, norm, inputs().contiguous())
    assert not gains_from_covariance(conv, norm, inputs().bfloat16())
    assert not gains_from_covariance(conv, norm, inputs()[:1, :, :1, :1])
    assert not gains_from_covariance(conv, layers()[1].eval(), inputs())
    assert not gains_from_covariance(conv, nn.Identity(), inputs())  # as folding leaves
    with torch.autocast("cpu", torch.bfloat16):
        assert not gains_from_covariance(conv, norm, inputs())


def test_other_layers_are_left_alone() -> None:
    conv, norm = layers()
    others = [
        (conv, SyncBatchNorm2d(30)),
        (conv, nn.Identity()),
        (nn.Conv2d(6, 12, 1, bias=False), BatchNorm2d(12)),
        (nn.Conv2d(6, 30, 1), norm),
        (nn.Conv2d(6, 30, 1, stride=2, bias=False), norm),
        (nn.Conv2d(6, 30, 3, bias=False), norm),
    ]
    blocks = nn.ModuleList([ConvNormAct(*pair, nn.ReLU()) for pair in ((conv, norm), *others)])
    accelerate_for_cpu(blocks)
    assert [type(one) is ExpansionNormAct for one in blocks] == [True, *[False] * len(others)]


def test_who_looks_at_single_layers_sees_them() -> None:
    """Hooks see what each layer gives, and the block's result is the same with and without."""
    torch.manual_seed(0)
    block = conv_norm_act(6, 30, 1, ConvSettings()).train()
    accelerate_for_cpu(block)
    assert isinstance(block, ExpansionNormAct)
    without = block(inputs()).detach()
    seen: list[Tensor] = []
    with block[1].register_forward_hook(lambda *given: seen.append(given[2])):
        with_hooks = block(inputs()).detach()
    assert len(seen) == 1
    torch.testing.assert_close(without, with_hooks, rtol=1e-4, atol=1e-5)
