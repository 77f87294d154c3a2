"""Bilinear resizing by the kernel in C, against TF's definition in float64 and TF's own results."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from torch import Tensor

from boxwright.base.c_compiler import CompilerError
from boxwright.nn.ops import resize
from boxwright.nn.ops.resize import resize_bilinear
from tests.conftest import GOLDEN
from tests.nn.ops.test_norm_act import threads


def defined(images: Tensor, height: int, width: int, *, align_corners: bool) -> Tensor:
    """Return images [B, H, W, C] resized one axis after the other, in float64."""
    found = images.double()
    for dim, size in ((1, height), (2, width)):
        length = found.shape[dim]
        aligned = align_corners and size > 1
        step = np.float32((length - 1) / (size - 1) if aligned else length / size)
        source = np.arange(size, dtype=np.float32) * step  # TF's coordinates are float32
        before = np.minimum(source.astype(np.int64), length - 1)
        after = np.minimum(before + 1, length - 1)
        share = torch.from_numpy(source - before).double().view(-1, *[1] * (3 - dim))
        first, second = (found.index_select(dim, torch.from_numpy(one)) for one in (before, after))
        found = first + (second - first) * share
    return found


SIZES = [
    ((1, 1, 1), (1, 3)),
    ((1, 5, 7), (1, 1)),
    ((2, 3, 4), (9, 2)),
    ((1, 48, 64), (64, 64)),
    ((3, 31, 17), (12, 40)),
    ((1, 300, 7), (20, 6)),
]


@pytest.mark.parametrize("align_corners", [False, True])
@pytest.mark.parametrize("dtype", [torch.uint8, torch.float32], ids=str)
@pytest.mark.parametrize(("images", "size"), SIZES)
def test_the_kernel_resizes_as_defined(
    images: tuple[int, int, int],
    size: tuple[int, int],
    dtype: torch.dtype,
    align_corners: bool,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(resize, "_LEAST_FOR_THREADS", 0)
    given = (255 * torch.rand(*images, 3, generator=torch.Generator().manual_seed(0))).to(dtype)
    expected = defined(given, *size, align_corners=align_corners)
    results = []
    for count in (1, 2, 5):
        with threads(count):
            results.append(resize._by_kernel(given, *size, align_corners=align_corners))
    assert results[0].shape == (images[0], *size, 3)
    assert results[0].dtype == torch.float32
    torch.testing.assert_close(results[0].double(), expected, rtol=0, atol=1e-4)
    assert all(torch.equal(results[0], other) for other in results[1:])


@pytest.mark.parametrize("align_corners", [False, True])
def test_the_kernel_is_called_where_it_gains(align_corners: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[torch.dtype] = []
    by_kernel = resize._by_kernel

    def noted(images: Tensor, *given: int, align_corners: bool) -> Tensor:
        seen.append(images.dtype)
        return by_kernel(images, *given, align_corners=align_corners)

    monkeypatch.setattr(resize, "_by_kernel", noted)
    image = 255 * torch.rand(9, 2, 14, 3).transpose(0, 1)  # not dense
    for one in (image, image.byte()):
        expected = defined(one, 20, 11, align_corners=align_corners)
        found = resize_bilinear(one, 20, 11, align_corners=align_corners)
        torch.testing.assert_close(found.double(), expected, rtol=0, atol=1e-3)
    assert seen == [torch.float32, torch.uint8]
    resize_bilinear(image.int(), 20, 11)
    resize_bilinear(image[..., :2], 20, 11)
    assert resize_bilinear(image[:0], 20, 11).shape == (0, 20, 11, 3)
    if not align_corners:
        assert resize_bilinear(image, 0, 11).shape == (2, 0, 11, 3)
    assert resize_bilinear(torch.empty(4, 5, 3, device="meta"), 20, 11).shape == (20, 11, 3)
    leaf = image.clone().requires_grad_()
    resize_bilinear(leaf, 20, 11).sum().backward()
    assert leaf.grad is not None
    assert len(seen) == 2
    with torch.no_grad():
        resize_bilinear(leaf, 20, 11)
    assert len(seen) == 3


def test_what_is_not_a_number_stays_so() -> None:
    image = torch.zeros(4, 4, 3)
    image[1, 1, 2] = torch.nan
    found = resize_bilinear(image, 8, 8).isnan()
    assert found[2, 2].tolist() == [False, False, True]
    assert not bool(found[4:].any())


@pytest.mark.parametrize("compiler", [True, False])
def test_results_are_tensorflows_with_and_without_a_compiler(compiler: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    if not compiler:
        monkeypatch.setattr(resize, "kernels", lambda: CompilerError("no C compiler: cc is not found"))
    recorded = np.load(GOLDEN / "tensorflow_ops.npz")
    names = [name for name in recorded.files if name.startswith("resize/bilinear/")]
    assert len(names) == 6
    three = [0, 1, 0]  # of the two recorded channels
    for name in names:
        _, _, aligned, size = name.split("/")
        height, width = map(int, size.split("x"))
        image = torch.from_numpy(recorded["resize/image"][..., three])
        found = resize_bilinear(image, height, width, align_corners=aligned == "1")
        np.testing.assert_allclose(found.numpy(), recorded[name][..., three], rtol=0, atol=1e-4 if compiler else 1e-3)
