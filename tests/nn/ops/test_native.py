"""The native extension: loading it, when it is used, and its convolutions against PyTorch's in float64."""

from __future__ import annotations

import multiprocessing
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
from boxwright.nn.ops.native import (
    Extension,
    channel_sums,
    conv_3x3,
    conv_3x3_packed,
    is_usable,
    load_extension,
    packed_kernel,
)
from tests import forked
from tests.nn.convolutions import SIZES, random_convolution, relative_error

LIBRARY = Path(native.__file__).parents[2] / "_native.so"
LEVELS = ["portable", "avx2", "avx512"]
CHANNELS = [(5, 7), (16, 32), (33, 20), (24, 97)]
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


def with_gradients(
    conv: Callable[..., Tensor], maps: Tensor, kernel: Tensor, bias: Tensor | None, dtype: torch.dtype = torch.float32
) -> list[Tensor]:
    """Return a convolution, and the gradients of all that is given."""
    inputs = [tensor.detach().to(dtype).requires_grad_() for tensor in (maps, kernel, bias) if tensor is not None]
    outputs = conv(inputs[0], inputs[1], inputs[2] if bias is not None else None)
    upstream = torch.randn(outputs.shape, generator=torch.Generator().manual_seed(1)).to(dtype)
    return [outputs.detach(), *torch.autograd.grad(outputs, inputs, upstream)]


def exactly(maps: Tensor, kernel: Tensor, bias: Tensor | None) -> list[Tensor]:
    return with_gradients(lambda *given: F.conv2d(*given, padding=1), maps, kernel, bias, torch.float64)


def convolved(maps: Tensor, kernel: Tensor, bias: Tensor) -> Tensor:
    return conv_3x3_packed(maps, packed_kernel(kernel), bias)


@pytest.mark.parametrize("channels", CHANNELS, ids=str)
@pytest.mark.parametrize("layout", [torch.contiguous_format, torch.channels_last], ids=str)
@pytest.mark.parametrize(("height", "width"), SIZES)
def test_values_and_gradients_are_pytorchs(
    level: str, height: int, width: int, layout: torch.memory_format, channels: tuple[int, int]
) -> None:
    maps, kernel, bias = random_convolution(height, width, ins=channels[0], outs=channels[1])
    kernel = kernel.to(memory_format=layout)
    for shift in (bias, None):
        ours = with_gradients(conv_3x3, maps, kernel, shift)
        assert ours[0].is_contiguous(memory_format=torch.channels_last)
        assert ours[2].is_contiguous(memory_format=layout)
        for mine, exact in zip(ours, exactly(maps, kernel, shift), strict=True):
            assert relative_error(mine, exact) < 5e-6


@pytest.mark.parametrize("channels", CHANNELS, ids=str)
@pytest.mark.parametrize(("height", "width"), SIZES)
def test_packed_kernels_convolve_as_pytorch_does(
    level: str, height: int, width: int, channels: tuple[int, int]
) -> None:
    maps, kernel, bias = random_convolution(height, width, batch=3, ins=channels[0], outs=channels[1])
    outputs = convolved(maps, kernel, bias)
    assert outputs.is_contiguous(memory_format=torch.channels_last)
    assert relative_error(outputs, F.conv2d(maps.double(), kernel.double(), bias.double(), padding=1)) < 5e-6


@needs_extension
def test_a_packed_kernel_is_the_same_on_each_processor(level: str) -> None:
    """A detector that was prepared on one is loaded on another."""
    _, kernel, _ = random_convolution(1, 1, ins=6, outs=40)
    packed = packed_kernel(kernel).view(36, 2, 6, 32)
    assert not packed[:, 1, :, 8:].any()
    torch.testing.assert_close(packed[0, 0], kernel[:32, :, 0, 0].T)  # the first point is 0, twice
    torch.testing.assert_close(packed[35, 1, :, :8], kernel[32:, :, 2, 2].T)  # the last is infinity


@pytest.mark.parametrize("most", [1, 2, 3, 5, 13, 200])
@pytest.mark.parametrize("outs", [17, 70, 270])
def test_however_the_work_is_divided_no_bit_changes(
    level: str, outs: int, most: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    maps, kernel, bias = random_convolution(17, 22, ins=20, outs=outs)
    exact = F.conv2d(maps.double(), kernel.double(), bias.double(), padding=1)
    results = []
    for count in (1, 2, 3):
        for per_block in (1, 10**9):  # channels are divided where there are fewer tiles than a kernel's size over this
            for name, value in {"_FEWEST": most, "_MOST": most, "_BLOCK_PER": per_block}.items():
                monkeypatch.setattr(native, name, value)
            with threads(count):
                results.append(convolved(maps, kernel, bias))
    assert relative_error(results[0], exact) < 5e-6
    assert all(torch.equal(results[0], other) for other in results[1:])


def test_few_tiles_of_wide_maps_are_divided_by_channels() -> None:
    def divides(tiles: int, outs: int, threads: int) -> bool:
        return native._divided(tiles, 320, outs, threads).by_channels

    assert divides(100, 512, 2)
    assert divides(100, 17 * 32, 2)  # one panel more of seventeen is no great difference
    assert not divides(100, 512, 1)
    assert not divides(100, 5 * 32, 2)
    assert not divides(600, 512, 2)


@needs_extension
def test_no_more_is_lost_in_rounding_than_in_the_direct_way() -> None:
    maps, kernel, _ = random_convolution(40, 40, batch=1, ins=256, outs=256)
    exact = F.conv2d(maps.double(), kernel.double(), padding=1)
    direct = (F.conv2d(maps, kernel, padding=1).double() - exact).square().mean().sqrt()
    for ours in (conv_3x3(maps, kernel, None), convolved(maps, kernel, torch.zeros(256))):
        assert (ours.double() - exact).square().mean().sqrt() < 5 * direct


def test_the_number_of_threads_changes_no_bit(level: str) -> None:
    results = []
    for count in (1, 2, 5):
        with threads(count):
            # The products for a kernel's gradient are PyTorch's.
            results.append(with_gradients(conv_3x3, *random_convolution(13, 22, batch=3, ins=20, outs=17))[:2])
    for other in results[1:]:
        assert all(torch.equal(first, value) for first, value in zip(results[0], other, strict=True))


@needs_extension
def test_a_batch_in_parts_is_the_whole(monkeypatch: pytest.MonkeyPatch) -> None:
    given = random_convolution(13, 10, batch=5)
    whole = with_gradients(conv_3x3, *given)
    monkeypatch.setattr(native, "_MOST_NUMBERS", 1)
    for part, value in zip(with_gradients(conv_3x3, *given), whole, strict=True):
        assert relative_error(part, value.double()) < 5e-6  # sums over images are rounded otherwise


@needs_extension
@pytest.mark.parametrize(("height", "width"), [(8, 8), (5, 8)])
def test_outputs_may_be_changed_in_place(height: int, width: int) -> None:
    maps, kernel, bias = random_convolution(height, width, batch=1)
    maps.requires_grad_()
    conv_3x3(maps, kernel, bias).relu_().sum().backward()
    assert maps.grad is not None


@needs_extension
def test_gradients_are_computed_where_they_are_needed_alone() -> None:
    maps, kernel, bias = random_convolution(8, 8)
    kernel.requires_grad_()
    (alone,) = torch.autograd.grad(conv_3x3(maps, kernel, bias).sum(), kernel)
    maps.requires_grad_()
    both = torch.autograd.grad(conv_3x3(maps, kernel, bias).sum(), (maps, kernel))
    assert torch.equal(alone, both[1])
    (alone,) = torch.autograd.grad(conv_3x3(maps, kernel.detach(), bias).sum(), maps)
    assert torch.equal(alone, both[0])


@needs_extension
def test_no_images_give_none() -> None:
    _, kernel, bias = random_convolution(8, 8)
    outputs, to_maps, to_kernel, to_bias = with_gradients(conv_3x3, torch.zeros(0, 5, 8, 8), kernel, bias)
    assert (outputs.shape, to_maps.shape) == ((0, 7, 8, 8), (0, 5, 8, 8))
    assert not to_kernel.any()
    assert not to_bias.any()
    assert convolved(torch.zeros(0, 5, 8, 8), kernel, bias).shape == (0, 7, 8, 8)


@needs_extension
def test_maps_kernels_and_gradients_of_any_layout() -> None:
    maps, kernel, bias = random_convolution(9, 14, ins=8, outs=6)
    exact = exactly(maps, kernel, bias)
    wide = torch.zeros(2, 16, 9, 28)[:, ::2, :, ::2].copy_(maps)
    strange = torch.zeros(6, 8, 3, 6)[..., ::2].copy_(kernel)
    for given in (maps.contiguous(), wide):
        for values in (kernel.transpose(0, 1).contiguous().transpose(0, 1), strange, kernel.mT.contiguous().mT):
            inputs = [given.detach().requires_grad_(), values.detach().requires_grad_(), bias.clone().requires_grad_()]
            outputs = conv_3x3(*inputs)
            upstream = torch.randn(outputs.shape, generator=torch.Generator().manual_seed(1))
            for ours, theirs in zip(torch.autograd.grad(outputs, inputs, upstream), exact[1:], strict=True):
                assert relative_error(ours, theirs) < 5e-6
            assert relative_error(outputs.detach(), exact[0]) < 5e-6
            assert relative_error(convolved(given, values, bias), exact[0]) < 5e-6


@needs_extension
@pytest.mark.parametrize("value", [torch.nan, torch.inf])
def test_what_is_not_finite_stays_near(value: float) -> None:
    """A tile of 4×4 outputs shares what is not finite in it; PyTorch spoils the 3×3 alone."""
    maps, kernel, bias = random_convolution(40, 40, batch=1)
    maps[0, 0, 2, 2] = value
    for outputs in (conv_3x3(maps, kernel, bias), convolved(maps, kernel, bias)):
        assert not bool(outputs[:, :, 1:4, 1:4].isfinite().any())
        assert bool(outputs[:, :, 8:].isfinite().all())
        assert bool(outputs[..., 8:].isfinite().all())


@needs_extension
def test_what_does_not_fit_is_refused() -> None:
    maps, kernel, bias = random_convolution(8, 8)
    with pytest.raises(TypeError, match="float32 maps"):
        conv_3x3(maps.double(), kernel, bias)
    with pytest.raises(TypeError, match=r"float32 kernel of 3×3, got torch\.float32 \[7, 5, 3, 2\]"):
        conv_3x3(maps, kernel[..., :2], bias)
    for conv in (conv_3x3, convolved):
        with pytest.raises(ValueError, match="maps of 4 channels for a kernel of 5"):
            conv(maps[:, :4], kernel, bias)
    outputs = conv_3x3(maps.requires_grad_(), kernel, bias)
    with pytest.raises(NotImplementedError, match="conv_3x3 has no second derivatives"):
        torch.autograd.grad(outputs.sum(), maps, create_graph=True)


@needs_extension
@pytest.mark.filterwarnings("ignore:The .grad attribute of a Tensor that is not a leaf")  # opcheck's own
def test_pytorch_accepts_the_operators() -> None:
    maps, kernel, bias = random_convolution(9, 6)
    operators = torch.ops.boxwright
    torch.library.opcheck(operators.conv_3x3.default, (maps.clone().requires_grad_(), kernel.requires_grad_(), bias))
    torch.library.opcheck(operators.conv_3x3_packed.default, (maps, packed_kernel(kernel.detach()), bias))


def test_nothing_is_computed_without_the_extension(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(native, "EXTENSION", None)
    maps, kernel, bias = random_convolution(5, 6)
    assert not is_usable(maps)
    with pytest.raises(RuntimeError, match="needs the native extension"):
        conv_3x3(maps, kernel, bias)


@needs_extension
@pytest.mark.filterwarnings("ignore:`torch.jit.trace` is deprecated")
def test_maps_that_the_operators_compute_with() -> None:
    maps, _, _ = random_convolution(5, 6)
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


def test_a_library_that_does_not_fit_is_not_used(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert load_extension(tmp_path / "_native.so") is None
    (tmp_path / "_native.so").write_bytes(b"no library")
    with pytest.warns(RuntimeWarning, match="compute without the native extension: it cannot be loaded"):
        assert load_extension(tmp_path / "_native.so") is None
    if LIBRARY.is_file():
        assert isinstance(load_extension(LIBRARY), Extension)
        monkeypatch.setattr(native, "_INTERFACE", -1)
        with pytest.warns(RuntimeWarning, match="was built from other sources; install the package again"):
            assert load_extension(LIBRARY) is None


def _checksum(maps: Tensor) -> float:
    _, kernel, bias = random_convolution(1, 1, ins=maps.shape[1])
    with threads(1):
        return float(conv_3x3(maps, kernel, bias).sum())


@needs_extension
@pytest.mark.skipif(sys.platform != "linux", reason="processes do not fork there")
def test_forked_processes_compute_the_same() -> None:
    maps, kernel, bias = random_convolution(33, 17)
    with threads(2):
        conv_3x3(maps, kernel, bias)
    with multiprocessing.get_context("fork").Pool(2) as pool:
        assert set(pool.map(_checksum, [maps] * 4)) == {_checksum(maps)}


@needs_extension
@pytest.mark.skipif(sys.platform != "linux", reason="/proc tells of loaded libraries")
def test_the_threads_are_pytorchs() -> None:
    """A second OpenMP would have threads of its own, and both would wait for the cores that the other spins on.

    In a process of its own: a library that another test imports may bring an OpenMP, as albumentations' does.
    """
    code = (
        "import torch; from pathlib import Path; from boxwright.nn.ops.native import conv_3x3\n"
        "from tests.nn.convolutions import random_convolution\n"
        "torch.set_num_threads(2); conv_3x3(*random_convolution(33, 17)); print(Path('/proc/self/maps').read_text())"
    )
    maps = forked.run([sys.executable, "-c", code], check=True).stdout
    loaded = {line.split()[-1] for line in maps.splitlines() if "omp" in line}
    assert len({name for name in loaded if re.search(r"lib(gomp|iomp5|omp)[-.]", name)}) == 1


@pytest.mark.parametrize("layout", [torch.contiguous_format, torch.channels_last])
@pytest.mark.parametrize("shape", [(1, 1, 1, 1), (2, 3, 4, 5), (0, 3, 4, 5), (3, 64, 17, 1)])
def test_sums_of_channels(shape: tuple[int, ...], layout: torch.memory_format) -> None:
    maps = torch.randn(shape, generator=torch.Generator().manual_seed(0)).to(memory_format=layout)
    torch.testing.assert_close(channel_sums(maps), maps.double().sum((0, 2, 3)).float())
