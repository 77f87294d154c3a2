"""Convolutions with a quarter of the multiplications, against the definition in float64."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor
from torch.nn import functional as F

from boxwright.nn import winograd
from boxwright.nn.winograd import conv_3x3_transformed, transformed_kernel

SIZES = [(1, 1), (1, 9), (3, 4), (4, 4), (5, 7), (6, 6), (8, 4), (19, 19), (20, 33), (38, 40)]


def given(height: int, width: int, *, batch: int = 2, ins: int = 5, outs: int = 7) -> tuple[Tensor, Tensor, Tensor]:
    generator = torch.Generator().manual_seed(height * 100 + width)
    inputs = torch.randn(batch, ins, height, width, generator=generator).to(memory_format=torch.channels_last)
    kernel = torch.randn(outs, ins, 3, 3, generator=generator) / (9 * ins) ** 0.5
    return inputs, kernel, torch.randn(outs, generator=generator)


def error(found: Tensor, expected: Tensor) -> float:
    """Return the largest error, as a share of the largest number."""
    return float((found.double() - expected).abs().max() / expected.abs().max())


def conv_3x3(inputs: Tensor, kernel: Tensor, bias: Tensor | None) -> Tensor:
    return conv_3x3_transformed(inputs, transformed_kernel(kernel), bias)


@pytest.mark.parametrize("with_bias", [True, False])
@pytest.mark.parametrize(("height", "width"), SIZES)
def test_values_are_those_of_the_definition(height: int, width: int, with_bias: bool) -> None:
    inputs, kernel, bias = given(height, width)
    outputs = conv_3x3(inputs, kernel, bias if with_bias else None)
    expected = F.conv2d(inputs.double(), kernel.double(), bias.double() if with_bias else None, padding=1)
    assert outputs.shape == expected.shape
    assert outputs.is_contiguous(memory_format=torch.channels_last)
    assert error(outputs, expected) < 5e-6


def test_no_more_is_lost_in_rounding_than_in_the_direct_way() -> None:
    """The points are chosen for that. Of 256 channels, the sizes that it is used for; mean square errors."""
    inputs, kernel, _ = given(40, 40, batch=1, ins=256, outs=256)
    exact = F.conv2d(inputs.double(), kernel.double(), padding=1)
    ours = (conv_3x3(inputs, kernel, None).double() - exact).square().mean().sqrt()
    direct = (F.conv2d(inputs, kernel, padding=1).double() - exact).square().mean().sqrt()
    assert ours < 5 * direct
    assert error(conv_3x3(inputs, kernel, None), exact) < 5e-6


def test_whole_numbers_by_hand() -> None:
    """A kernel that picks the right neighbour moves the map left, zeros coming in from outside."""
    inputs = torch.arange(1.0, 17).view(1, 1, 4, 4).to(memory_format=torch.channels_last)
    kernel = torch.zeros(1, 1, 3, 3)
    kernel[0, 0, 1, 2] = 1
    expected = torch.tensor([[2.0, 3, 4, 0], [6, 7, 8, 0], [10, 11, 12, 0], [14, 15, 16, 0]])
    torch.testing.assert_close(conv_3x3(inputs, kernel, None)[0, 0], expected, rtol=0, atol=2e-5)


def test_a_batch_in_parts_is_the_whole(monkeypatch: pytest.MonkeyPatch) -> None:
    inputs, kernel, bias = given(13, 10, batch=5)
    whole = conv_3x3(inputs, kernel, bias)
    monkeypatch.setattr(winograd, "_MOST_NUMBERS", 1)
    assert len(winograd.image_chunks(inputs, 7)) == 5
    torch.testing.assert_close(conv_3x3(inputs, kernel, bias), whole)


def test_no_images_give_none() -> None:
    _, kernel, bias = given(8, 8)
    assert conv_3x3(torch.zeros(0, 5, 8, 8), kernel, bias).shape == (0, 7, 8, 8)


def test_what_is_not_finite_stays_near() -> None:
    """NaN spreads to the tiles that see it, not over the map."""
    inputs, kernel, _ = given(40, 40, batch=1)
    inputs[0, 0, 2, 2] = torch.nan
    found = conv_3x3(inputs, kernel, None)
    assert bool(found[:, :, 1:4, 1:4].isnan().all())
    assert not bool(found[:, :, 8:].isnan().any())
    assert not bool(found[..., 8:].isnan().any())
