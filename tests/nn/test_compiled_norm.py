"""Which layers the compiled kernel takes over, and that a run keeps what it began with."""

from __future__ import annotations

import copy

import pytest
import torch
from torch import Tensor, nn

from boxwright.base.c_compiler import CompilerError
from boxwright.nn import compiled_norm
from boxwright.nn.activations import ReLU6
from boxwright.nn.backbones.hgnetv2 import ConvNormRelu
from boxwright.nn.backbones.resnet_v1 import Bottleneck
from boxwright.nn.batch_norm import BatchNorm2d, BatchNormSettings, SyncBatchNorm2d
from boxwright.nn.compiled_norm import gains_from_kernel, normalize_and_activate
from boxwright.nn.cpu_acceleration import (
    CompiledBottleneck,
    CompiledConvNormRelu,
    CompiledNormAct,
    accelerate_for_cpu,
    compiled_kernels,
    use_kernels,
)
from boxwright.nn.layers import ConvNormAct, ConvSettings


def block(activation: nn.Module, norm: nn.Module | None = None) -> ConvNormAct:
    torch.manual_seed(0)
    made = ConvNormAct(nn.Conv2d(40, 64, 1, bias=False), norm or BatchNorm2d(64, eps=1e-3, momentum=0.1), activation)
    return made.to(memory_format=torch.channels_last)  # type: ignore[call-overload, no-any-return]


def inputs() -> Tensor:
    generator = torch.Generator().manual_seed(1)
    return torch.randn(2, 40, 64, 48, generator=generator).to(memory_format=torch.channels_last).requires_grad_()


@pytest.mark.parametrize("activation", [nn.Identity(), nn.ReLU(inplace=True), ReLU6(), nn.SiLU(inplace=True)])
def test_a_layer_computes_as_before(activation: nn.Module) -> None:
    plain = block(activation)
    fast = copy.deepcopy(plain)
    accelerate_for_cpu(nn.ModuleList([fast]))
    assert type(fast) is CompiledNormAct
    assert compiled_kernels(fast) == ("norm_act",)
    given = inputs()
    assert gains_from_kernel(fast[1], fast[2], fast[0](given))
    results = []
    for one in (plain, fast):
        outputs = one(given)
        upstream = torch.randn(outputs.shape, generator=torch.Generator().manual_seed(2))
        results.append((outputs.detach(), *torch.autograd.grad((outputs * upstream).sum(), [given, *one.parameters()])))
    for one, other in zip(*results, strict=True):
        # A value at a bound may fall on either side; of 400,000 a few do.
        far = (one - other).abs() > 1e-4 * one.abs().max()
        assert far.sum() <= 4
    for one, other in zip(plain[1].buffers(), fast[1].buffers(), strict=True):
        torch.testing.assert_close(one, other, rtol=1e-5, atol=1e-6)
    use_kernels(fast, ())
    assert type(fast) is ConvNormAct
    assert compiled_kernels(fast) == ()


def bottleneck(activation: str, *, project: bool) -> Bottleneck:
    torch.manual_seed(0)
    settings = ConvSettings(activation=activation, norm=BatchNormSettings(decay=0.9))
    made = Bottleneck(40, 64, 80 if project else 40, 1, settings, project=project)
    return made.to(memory_format=torch.channels_last)  # type: ignore[call-overload, no-any-return]


@pytest.mark.parametrize("activation", ["RELU", "RELU_6"])
@pytest.mark.parametrize("project", [True, False])
def test_a_residual_block_computes_as_before(activation: str, project: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(compiled_norm, "LEAST_VALUES", 1)
    plain = bottleneck(activation, project=project)
    fast, hooked, seen = copy.deepcopy(plain), copy.deepcopy(plain), list[Tensor]()
    hooked.expand.register_forward_hook(lambda *given: seen.append(given[2]))
    accelerate_for_cpu(nn.ModuleList([fast, hooked]))
    assert type(fast) is CompiledBottleneck
    assert compiled_kernels(fast) == ("norm_act", "residual")
    given, results = inputs(), []
    for one in (plain, fast, hooked):
        outputs = one(given)
        upstream = torch.randn(outputs.shape, generator=torch.Generator().manual_seed(2))
        results.append((outputs.detach(), *torch.autograd.grad((outputs * upstream).sum(), [given, *one.parameters()])))
    assert len(seen) == 1
    for others in results[1:]:
        for one, other in zip(results[0], others, strict=True):
            # A value at a bound may fall on either side, which the 3×3 kernel spreads.
            assert (one - other).norm() <= 5e-3 * one.norm()
    for one, other in zip(plain.buffers(), fast.buffers(), strict=True):
        torch.testing.assert_close(one, other, rtol=1e-5, atol=1e-6)
    use_kernels(fast, ("norm_act",))
    assert type(fast) is Bottleneck
    assert compiled_kernels(fast) == ("norm_act",)


def test_hgnets_layers_compute_as_before(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(compiled_norm, "LEAST_VALUES", 1)
    torch.manual_seed(0)
    plain = ConvNormRelu(40, 24, 3, affine=True).to(memory_format=torch.channels_last)  # type: ignore[call-overload]
    nn.init.constant_(plain.lab.scale, 0.7)
    fast, hooked, seen = copy.deepcopy(plain), copy.deepcopy(plain), list[Tensor]()
    hooked.lab.register_forward_hook(lambda *given: seen.append(given[2]))
    without = ConvNormRelu(40, 24, 3, affine=False)
    accelerate_for_cpu(nn.ModuleList([fast, hooked, without]))
    assert type(without) is ConvNormRelu
    assert type(fast) is CompiledConvNormRelu
    assert compiled_kernels(fast) == ("affine",)
    given, results = inputs(), []
    for one in (plain, fast, hooked):
        outputs = one(given)
        upstream = torch.randn(outputs.shape, generator=torch.Generator().manual_seed(2))
        results.append((outputs.detach(), *torch.autograd.grad((outputs * upstream).sum(), [given, *one.parameters()])))
    assert len(seen) == 1
    assert not torch.equal(results[0][0], results[1][0])
    for others in results[1:]:
        for one, other in zip(results[0], others, strict=True):
            assert (one - other).norm() <= 5e-3 * one.norm()
    for one, other in zip(plain.buffers(), fast.buffers(), strict=True):
        torch.testing.assert_close(one, other, rtol=1e-5, atol=1e-6)
    use_kernels(fast, ())
    assert type(fast) is ConvNormRelu


def test_swish_is_no_residual_blocks() -> None:
    made = bottleneck("SWISH", project=True)
    accelerate_for_cpu(nn.ModuleList([made]))
    assert type(made) is Bottleneck


@pytest.mark.parametrize(
    ("activation", "norm"),
    [(nn.ReLU(), SyncBatchNorm2d(64)), (nn.ReLU(), nn.Identity()), (nn.Hardswish(), None), (nn.LeakyReLU(), None)],
)
def test_other_layers_are_left_alone(activation: nn.Module, norm: nn.Module | None) -> None:
    made = block(activation, norm)
    accelerate_for_cpu(nn.ModuleList([made]))
    assert type(made) is ConvNormAct


def test_what_the_kernel_does_not_compute() -> None:
    _, norm, activation = made = block(nn.ReLU())
    maps = made[0](inputs()).detach().requires_grad_()
    assert gains_from_kernel(norm, activation, maps)
    assert not gains_from_kernel(norm, activation, maps.detach())  # there is nothing to differentiate
    assert not gains_from_kernel(norm, activation, maps.double())
    assert not gains_from_kernel(norm, activation, maps.contiguous(memory_format=torch.contiguous_format))
    assert not gains_from_kernel(norm, activation, maps[:1, :, :8, :8].contiguous(memory_format=torch.channels_last))
    with torch.autocast("cpu", dtype=torch.bfloat16):
        assert not gains_from_kernel(norm, activation, maps)
    with norm.register_forward_hook(lambda *_: None):
        assert not gains_from_kernel(norm, activation, maps)
    norm.eval()
    assert not gains_from_kernel(norm, activation, maps)


def test_without_a_compiler_layers_run_one_by_one(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(compiled_norm, "kernels", lambda: CompilerError("no C compiler"))
    made = block(nn.ReLU())
    accelerate_for_cpu(nn.ModuleList([made]))
    outputs = made(inputs())
    assert torch.equal(outputs, made[2](made[1](made[0](inputs()))))


def test_moving_averages_take_the_unbiased_variance() -> None:
    norm = BatchNorm2d(3, momentum=0.25)
    maps = inputs()[:, :3].detach().contiguous(memory_format=torch.channels_last).requires_grad_()
    normalize_and_activate(maps, norm, nn.Identity())
    torch.testing.assert_close(norm.running_mean, 0.25 * maps.detach().mean((0, 2, 3)), rtol=1e-5, atol=1e-6)
    torch.testing.assert_close(norm.running_var, 0.75 + 0.25 * maps.detach().var((0, 2, 3)), rtol=1e-5, atol=1e-6)
