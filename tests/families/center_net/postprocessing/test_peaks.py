"""Peaks of heatmaps, held to a search cell by cell; equal ones in the order of rows, columns and channels."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor
from torch.nn import functional as F

from boxwright.families.center_net.postprocessing.masks import own_maps
from boxwright.families.center_net.postprocessing.peaks import best_peaks


def searched(image: Tensor, count: int, window: int) -> list[tuple[float, int, int, int]]:
    """Score, row, column and channel of the best peaks of [C, H, W]."""
    found, reach = [], window // 2
    for channel, values in enumerate(image):
        for y, x in torch.cartesian_prod(*(torch.arange(side) for side in values.shape)).tolist():
            around = values[max(y - reach, 0) : y + reach + 1, max(x - reach, 0) : x + reach + 1]
            if values[y, x] > 0 and around.max() - values[y, x] < 1e-6:
                found.append((-float(values[y, x]), y, x, channel))
    return [(-score, *place) for score, *place in sorted(found)[:count]]


def found_in(heatmap: Tensor, count: int, window: int, inside: Tensor | None = None) -> list[list[tuple[float, ...]]]:
    peaks = best_peaks(heatmap, count, window, inside)
    parts = zip(peaks.scores.tolist(), peaks.cells.tolist(), peaks.channels.tolist(), strict=True)
    return [
        [(score, *cell, channel) for score, cell, channel in zip(*part, strict=True) if score > 0] for part in parts
    ]


@pytest.mark.parametrize("blur", [1, 5], ids=["noise, where most cells are looked at", "smooth, where few are"])
@pytest.mark.parametrize("window", [3, pytest.param(5, marks=pytest.mark.slow)])
def test_the_best_peaks_are_those_of_a_search(blur: int, window: int) -> None:
    noise = torch.rand(2, 4, 26, 31, generator=torch.Generator().manual_seed(1))
    heatmap = F.avg_pool2d(noise, blur, 1, blur // 2)
    inside = torch.ones(2, 1, 26, 31, dtype=torch.bool)
    inside[0, :, 20:] = False
    assert found_in(heatmap, 9, window) == [searched(one, 9, window) for one in heatmap]
    cut = heatmap * inside
    assert found_in(heatmap, 9, window, inside) == [searched(one, 9, window) for one in cut]


def test_of_equal_peaks_the_first_are_taken() -> None:
    heatmap = torch.zeros(1, 2, 40, 40)
    for number, (y, x) in enumerate([(3, 5), (9, 30), (20, 7), (33, 33)]):
        heatmap[0, number % 2, y, x] = 0.5
    heatmap[0, 1, 3, 5] = heatmap[0, 0, 38, 2] = 0.5
    assert found_in(heatmap, 3, 3) == [[(0.5, 3, 5, 0), (0.5, 3, 5, 1), (0.5, 9, 30, 1)]]


def test_numbers_that_are_none_are_no_reason_to_fail() -> None:
    peaks = best_peaks(torch.full((1, 2, 20, 20), torch.nan), 7, 3)
    assert peaks.scores.shape == (1, 7)


def test_a_class_of_many_detections_has_one_map() -> None:
    maps = torch.arange(12.0).view(2, 3, 1, 2)
    labels = torch.tensor([[2, 2, 0], [1, 2, 1]])
    own, owners = own_maps(maps, labels)
    assert len(own) == 4
    assert own[owners].tolist() == [
        maps[image, label].tolist() for image, label in zip([0, 0, 0, 1, 1, 1], labels.flatten(), strict=True)
    ]
