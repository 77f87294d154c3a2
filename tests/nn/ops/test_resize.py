"""Bilinear resizing against TF's definition in float64; `test_ops` compares with TF's own results."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from torch import Tensor

from boxwright.nn.ops.resize import TO_LEVELS, resize_bilinear
from boxwright.nn.preprocessing import Resize


def defined(images: Tensor, height: int, width: int, *, align_corners: bool) -> Tensor:
    """Return images [B, H, W, C] resized one axis after the other, in float64."""
    resized = images.double()
    for dim, size in ((1, height), (2, width)):
        length = resized.shape[dim]
        aligned = align_corners and size > 1
        step = np.float32((length - 1) / (size - 1) if aligned else length / size)
        source = np.arange(size, dtype=np.float32) * step  # TF's coordinates are float32
        before = np.minimum(source.astype(np.int64), length - 1)
        after = np.minimum(before + 1, length - 1)
        share = torch.from_numpy(source - before).double().view(-1, *[1] * (3 - dim))
        first, second = (resized.index_select(dim, torch.from_numpy(index)) for index in (before, after))
        resized = first + (second - first) * share
    return resized


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
def test_images_are_resized_as_defined(
    images: tuple[int, int, int], size: tuple[int, int], dtype: torch.dtype, align_corners: bool
) -> None:
    given = (255 * torch.rand(*images, 3, generator=torch.Generator().manual_seed(0))).to(dtype)
    resized = resize_bilinear(given, *size, align_corners=align_corners)
    assert resized.shape == (images[0], *size, 3)
    assert resized.dtype == torch.float32
    expected = defined(given, *size, align_corners=align_corners)
    torch.testing.assert_close(resized.double(), expected, rtol=0, atol=1e-3)


@pytest.mark.parametrize("align_corners", [False, True])
def test_images_of_any_layout_number_and_device_are_resized(align_corners: bool) -> None:
    image = (255 * torch.rand(9, 2, 14, 3)).transpose(0, 1)  # not dense
    expected = defined(image, 20, 11, align_corners=align_corners)
    resized = resize_bilinear(image, 20, 11, align_corners=align_corners)
    torch.testing.assert_close(resized.double(), expected, rtol=0, atol=1e-3)
    assert resize_bilinear(image[:0], 20, 11, align_corners=align_corners).shape == (0, 20, 11, 3)
    if not align_corners:
        assert resize_bilinear(image, 0, 11).shape == (2, 0, 11, 3)
    assert resize_bilinear(torch.empty(4, 5, 3, device="meta"), 20, 11).shape == (20, 11, 3)
    leaf = image.clone().requires_grad_()
    resize_bilinear(leaf, 20, 11).sum().backward()
    assert leaf.grad is not None


def test_what_is_not_a_number_stays_so() -> None:
    image = torch.zeros(4, 4, 3)
    image[1, 1, 2] = torch.nan
    resized = resize_bilinear(image, 8, 8).isnan()
    assert resized[2, 2].tolist() == [False, False, True]
    assert not bool(resized[4:].any())


@pytest.mark.parametrize("resize", TO_LEVELS)
@pytest.mark.parametrize("size", [(64, 64), (40, 96), (17, 200), (300, 31), (120, 90)])
@pytest.mark.parametrize("channels", [1, 3, 5])
def test_whole_levels_are_within_one_of_exact_ones(resize: Resize, size: tuple[int, int], channels: int) -> None:
    to_levels = TO_LEVELS[resize]
    random = torch.Generator().manual_seed(size[0])
    noise = torch.randint(0, 256, (120, 90, channels), generator=random, dtype=torch.uint8)
    edges = torch.where(noise > 127, 255, 0).to(torch.uint8)
    for image in (noise, edges, torch.full_like(noise, 255), noise[::2, 5:], noise.permute(1, 0, 2)):
        exact, found = resize(image, *size), to_levels(image, *size)
        assert found.dtype == torch.uint8
        assert found.shape == exact.shape
        assert float((found.float() - exact.round()).abs().max()) <= 1
    several = torch.stack([noise, edges])
    assert torch.equal(to_levels(several, *size)[1], to_levels(edges, *size))
