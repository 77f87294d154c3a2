"""The native extension: loading it, when it is used, and normalization by it, against PyTorch's operators in float64."""

from __future__ import annotations

import ctypes
import multiprocessing
import platform
import re
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
import torch
from torch import Tensor
from torch._subclasses import FakeTensorMode
from torch.nn import functional as F

from boxwright.nn.ops import native
from boxwright.nn.ops.native import Activation, Extension, is_usable, load_extension, norm_act

EPSILON = 1e-3
ACTIVATIONS: dict[Activation, Callable[[Tensor], Tensor]] = {
    "none": lambda maps: maps,
    "relu": F.relu,
    "relu6": F.relu6,
    "swish": F.silu,
}
LIBRARY = Path(native.__file__).parents[2] / "_native.so"
LEVELS = ["portable", "avx2", "avx512"]
needs_extension = pytest.mark.skipif(native.EXTENSION is None, reason="this installation has no native extension")


@pytest.fixture(params=LEVELS)
def level(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    """Compute with the functions for one level of instructions, of those that the processor has."""
    if native.EXTENSION is None or LEVELS.index(request.param) > LEVELS.index(native.EXTENSION.level):
        pytest.skip(f"no extension, or no processor, for {request.param}")
    monkeypatch.setattr(native, "EXTENSION", load_extension(LIBRARY, request.param))
    return str(request.param)


@contextmanager
def threads(count: int) -> Iterator[None]:
    before = torch.get_num_threads()
    torch.set_num_threads(count)
    try:
        yield
    finally:
        torch.set_num_threads(before)


def random_maps(shape: tuple[int, ...], mean: float = 0.0, seed: int = 4) -> Tensor:
    """Return maps whose channels have deviations from a tenth to ten."""
    generator = torch.Generator().manual_seed(seed)
    scales = torch.logspace(-1, 1, shape[1])[:, None, None]
    return (torch.randn(shape, generator=generator) * scales + mean).to(memory_format=torch.channels_last)


def gain_and_bias(channels: int) -> tuple[Tensor, Tensor]:
    generator = torch.Generator().manual_seed(5)
    return 0.5 + torch.rand(channels, generator=generator), torch.randn(channels, generator=generator)


def leaves(tensors: list[Tensor], dtype: torch.dtype) -> list[Tensor]:
    return [tensor.to(dtype, copy=True, memory_format=torch.preserve_format).requires_grad_() for tensor in tensors]


def with_gradients(outputs: Tensor, inputs: list[Tensor]) -> list[Tensor]:
    upstream = torch.randn(outputs.shape, generator=torch.Generator().manual_seed(6)).to(outputs)
    return [outputs.detach(), *torch.autograd.grad(outputs, inputs, upstream)]


def natively(tensors: list[Tensor], activation: Activation) -> list[Tensor]:
    """Return the outputs, gradients, mean and variance for maps, gain, bias and perhaps a shortcut."""
    maps, gain, bias, *shortcut = inputs = leaves(tensors, torch.float32)
    outputs, mean, variance = norm_act(maps, gain, bias, *(shortcut or [None]), EPSILON, activation)
    assert outputs.is_contiguous(memory_format=torch.channels_last)
    assert not mean.requires_grad
    return [*with_gradients(outputs, inputs), mean, variance]


def by_pytorch(tensors: list[Tensor], activation: Activation) -> list[Tensor]:
    """Return the same by PyTorch's operators in float64."""
    maps, gain, bias, *shortcut = inputs = leaves(tensors, torch.float64)
    normalized = F.batch_norm(maps, None, None, gain, bias, training=True, eps=EPSILON)
    total = normalized + shortcut[0] if shortcut else normalized
    nearest = torch.minimum(total.detach().abs(), (total.detach() - 6).abs()).min()
    assert nearest > 1e-6, "a value at a bound, where the gradient jumps: choose another seed"
    variance, mean = torch.var_mean(maps.detach(), (0, 2, 3), correction=0)
    return [*with_gradients(ACTIVATIONS[activation](total), inputs), mean, variance]


@pytest.mark.parametrize(("activation", "added"), [*((a, False) for a in ACTIVATIONS), ("none", True), ("relu6", True)])
@pytest.mark.parametrize("shape", [(2, 24, 9, 7), (1, 7, 5, 3), (3, 1, 4, 4), (1, 33, 1, 2), (2, 70, 21, 20)])
@pytest.mark.parametrize("mean", [0.0, 50.0])
def test_normalization_is_pytorchs(
    level: str, activation: Activation, added: bool, shape: tuple[int, ...], mean: float
) -> None:
    tensors = [random_maps(shape, mean), *gain_and_bias(shape[1]), *([random_maps(shape, seed=7)] if added else [])]
    names = ("outputs", "to maps", "to gain", "to bias", *(["to shortcut"] if added else []), "mean", "variance")
    for name, ours, exact in zip(names, natively(tensors, activation), by_pytorch(tensors, activation), strict=True):
        # Float32 maps with a mean of 500 deviations have lost the digits that the statistics still have.
        limit = 3e-6 if mean == 0 or name in ("mean", "variance") else 1e-3
        assert (ours - exact).abs().max() <= limit * max(float(exact.abs().max()), 1e-3), name


def test_the_number_of_threads_changes_no_bit(level: str) -> None:
    maps = random_maps((2, 20, 33, 17))
    results = []
    for count in (1, 2, 3, 16):
        with threads(count):
            results.append(natively([maps, *gain_and_bias(20)], "relu6"))
            results[-1] += natively([maps, *gain_and_bias(20), maps.flip(0)], "relu")
    for result in results[1:]:
        assert all(torch.equal(value, first) for value, first in zip(result, results[0], strict=True))


@pytest.mark.parametrize("value", [torch.nan, torch.inf, -torch.inf])
@pytest.mark.parametrize("activation", ACTIVATIONS)
def test_what_is_not_finite_ends_where_pytorchs_does(level: str, activation: Activation, value: float) -> None:
    maps, (gain, bias) = random_maps((1, 18, 6, 6)), gain_and_bias(18)
    maps[0, 3, 2, 2] = value
    for shortcut in [[], [random_maps((1, 18, 6, 6), seed=8)]] if activation != "swish" else [[]]:
        inputs = leaves([maps, gain, bias, *shortcut], torch.float32)
        plain = F.batch_norm(*inputs[:1], None, None, *inputs[1:3], training=True, eps=EPSILON)
        plain = ACTIVATIONS[activation](plain + inputs[3] if shortcut else plain)
        theirs = with_gradients(plain, inputs)
        ours = natively([maps, gain, bias, *shortcut], activation)[: len(theirs)]
        for mine, expected in zip(ours, theirs, strict=True):
            assert torch.equal(mine.isfinite(), expected.isfinite())


@pytest.mark.parametrize("value", [-3e4, -89.0, -20.0, 0.0, 20.0, 89.0, 3e4])
def test_swish_far_from_0(level: str, value: float) -> None:
    maps = torch.zeros(1, 16, 4, 4).to(memory_format=torch.channels_last).requires_grad_()
    bias = torch.full((16,), value, requires_grad=True)
    outputs, _, _ = norm_act(maps, torch.ones(16), bias, None, EPSILON, "swish")
    reference = torch.full((16,), value, dtype=torch.float64, requires_grad=True)
    exact = F.silu(reference)
    torch.testing.assert_close(outputs[0, :, 0, 0].double(), exact, rtol=1e-6, atol=1e-30)
    (slope,) = torch.autograd.grad(outputs.sum() / 16, bias)
    torch.testing.assert_close(slope.double(), torch.autograd.grad(exact.sum(), reference)[0], rtol=1e-5, atol=1e-6)


@needs_extension
@pytest.mark.skipif(platform.machine() != "x86_64" or sys.platform != "linux", reason="flags of other processors")
def test_no_denormal_numbers_come_up_in_swish(level: str) -> None:
    """They take ten times as long; lanes that are computed and not used count, too."""
    mathematics, underflow = ctypes.CDLL("libm.so.6"), 0x10
    maps = torch.rand(1, 96, 8, 8).to(memory_format=torch.channels_last).requires_grad_()
    gain, bias = torch.ones(96), torch.zeros(96)
    with threads(1):
        mathematics.feclearexcept(underflow)
        _ = torch.full((16,), 1e-30) * 1e-10
        assert mathematics.fetestexcept(underflow)
        mathematics.feclearexcept(underflow)
        outputs, _, _ = norm_act(maps, gain, bias, None, EPSILON, "swish")
        torch.autograd.grad(outputs, maps, torch.ones_like(outputs))
        assert not mathematics.fetestexcept(underflow)


@needs_extension
def test_maps_and_gradients_of_any_layout() -> None:
    maps, (gain, bias) = random_maps((2, 8, 5, 6)), gain_and_bias(8)
    upstream = torch.randn(2, 8, 5, 6, generator=torch.Generator().manual_seed(1))
    wide = torch.zeros(2, 16, 5, 12)[:, ::2, :, ::2].copy_(maps)
    results = []
    for values in (maps, maps.contiguous(), wide):
        for gradient in (upstream, upstream.to(memory_format=torch.channels_last)):
            given = values.detach().requires_grad_()
            outputs, _, _ = norm_act(given, gain, bias, None, EPSILON, "relu")
            results.append((outputs.detach(), *torch.autograd.grad(outputs, given, gradient)))
    for result in results[1:]:
        assert all(torch.equal(value, first) for value, first in zip(result, results[0], strict=True))


@needs_extension
def test_what_has_no_statistics_or_no_gradient_is_refused() -> None:
    gain, bias = gain_and_bias(8)
    for shape in ((0, 8, 4, 4), (1, 8, 1, 1)):
        with pytest.raises(ValueError, match=re.escape(f"no normalization of maps {list(shape)}")):
            norm_act(torch.zeros(shape), gain, bias, None, EPSILON, "relu")
    maps = random_maps((2, 8, 5, 6)).requires_grad_()
    with pytest.raises(ValueError, match="no normalization"):
        norm_act(maps, gain, bias, maps[:, :, :, :5], EPSILON, "relu")
    with pytest.raises(ValueError, match="Swish"):
        norm_act(maps, gain, bias, maps, EPSILON, "swish")
    with pytest.raises(TypeError, match="float32"):
        norm_act(maps.double(), gain, bias, None, EPSILON, "relu")
    outputs, _, _ = norm_act(maps, gain, bias, None, EPSILON, "relu")
    with pytest.raises(NotImplementedError, match="norm_act has no second derivatives"):
        torch.autograd.grad(outputs.sum(), maps, create_graph=True)


@needs_extension
@pytest.mark.filterwarnings("ignore:The .grad attribute of a Tensor that is not a leaf")  # opcheck's own
@pytest.mark.parametrize("added", [False, True])
def test_pytorch_accepts_the_operator(added: bool) -> None:
    maps, gain, bias = leaves([random_maps((2, 8, 5, 6)), *gain_and_bias(8)], torch.float32)
    shortcut = random_maps((2, 8, 5, 6)).requires_grad_() if added else None
    torch.library.opcheck(torch.ops.boxwright.norm_act.default, (maps, gain, bias, shortcut, EPSILON, "relu"))


def test_nothing_is_computed_without_the_extension(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(native, "EXTENSION", None)
    maps = random_maps((2, 8, 5, 6))
    assert not is_usable(maps)
    with pytest.raises(RuntimeError, match="needs the native extension"):
        norm_act(maps, *gain_and_bias(8), None, EPSILON, "relu")


@needs_extension
@pytest.mark.filterwarnings("ignore:`torch.jit.trace` is deprecated")
def test_maps_that_the_operators_compute_with() -> None:
    maps = random_maps((2, 8, 5, 6))
    assert is_usable(maps)
    assert is_usable(torch.nn.Parameter(maps))
    assert not is_usable(maps.double())
    assert not is_usable(maps.contiguous())
    assert not is_usable(maps.to("meta"))
    with FakeTensorMode() as mode:
        assert not is_usable(mode.from_tensor(maps))
    with torch.autocast("cpu"):
        assert not is_usable(maps)
    with torch.autocast("cuda", enabled=False):
        assert is_usable(maps)
    seen: list[bool] = []
    torch.vmap(lambda given: seen.append(is_usable(given)) or given)(maps[None])
    torch.func.grad(lambda given: (seen.append(is_usable(given)), given.sum())[1])(maps)
    torch.jit.trace(lambda given: (seen.append(is_usable(given)), given * 1)[1], maps, check_trace=False)
    assert seen == [False] * 3


def test_a_library_that_does_not_fit_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert load_extension(tmp_path / "_native.so") is None
    (tmp_path / "_native.so").write_bytes(b"no library")
    with pytest.raises(ImportError, match=r"without that file PyTorch's operators compute"):
        load_extension(tmp_path / "_native.so")
    if LIBRARY.is_file():
        assert isinstance(load_extension(LIBRARY), Extension)
        monkeypatch.setattr(native, "_INTERFACE", -1)
        with pytest.raises(ImportError, match="install the package again"):
            load_extension(LIBRARY)


def _checksum(maps: Tensor) -> float:
    with threads(1):
        return float(norm_act(maps, *gain_and_bias(maps.shape[1]), None, EPSILON, "relu")[0].sum())


@needs_extension
@pytest.mark.skipif(sys.platform != "linux", reason="processes do not fork there")
def test_forked_processes_compute_the_same() -> None:
    maps = random_maps((2, 20, 33, 17))
    with threads(2):
        norm_act(maps, *gain_and_bias(20), None, EPSILON, "relu")
    with multiprocessing.get_context("fork").Pool(2) as pool:
        assert set(pool.map(_checksum, [maps] * 4)) == {_checksum(maps)}


@needs_extension
@pytest.mark.skipif(sys.platform != "linux", reason="/proc tells of loaded libraries")
def test_the_threads_are_pytorchs() -> None:
    """A second OpenMP would have threads of its own, and both would wait for the cores that the other spins on."""
    with threads(2):
        norm_act(random_maps((2, 20, 33, 17)), *gain_and_bias(20), None, EPSILON, "relu")
    loaded = {line.split()[-1] for line in Path("/proc/self/maps").read_text().splitlines() if "omp" in line}
    assert len({name for name in loaded if re.search(r"lib(gomp|iomp5|omp)[-.]", name)}) == 1
