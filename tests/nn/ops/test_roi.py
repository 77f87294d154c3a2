"""Crops, masks and their run lengths, against torchvision, pycocotools and plain arithmetic."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from pycocotools import mask as coco_mask
from torch.nn import functional as F
from torchvision.ops import roi_align as torchvision_roi_align

import boxwright as bw
from boxwright.families.two_stage.second_stage import by_relative_size, by_size
from boxwright.families.two_stage.third_stage import masks_of_classes, reframe_masks
from boxwright.nn.ops.pasted_masks import encode_mask, encode_window, mask_run_lengths, whole_masks
from boxwright.nn.ops.roi import Pool, crop_and_resize, crop_each, mask_targets, roi_align
from boxwright.types.masks import InstanceMasks


def maps(*sizes: tuple[int, int], batch: int = 2, channels: int = 3) -> list[torch.Tensor]:
    generator = torch.Generator().manual_seed(1)
    return [torch.randn(batch, channels, *size, generator=generator) for size in sizes]


def boxes(count: int, width: float, height: float, batch: int = 2) -> torch.Tensor:
    generator = torch.Generator().manual_seed(2)
    corners = torch.rand(batch, count, 2, 2, generator=generator).sort(dim=2).values
    return (corners * torch.tensor([width, height])).flatten(2)


@pytest.mark.parametrize("aligned", [True, False])
@pytest.mark.parametrize("samples", [1, 2, 3])
def test_roi_align_is_torchvisions(aligned: bool, samples: int) -> None:
    (features,) = maps((12, 16))
    regions = boxes(9, 64, 48)
    regions[0, 0] = torch.tensor([-5.0, 3, 20, 60])  # beyond the border
    regions[0, 1] = torch.tensor([7.0, 7, 7, 7])  # nothing
    levels = torch.zeros(2, 9, dtype=torch.int64)
    found = roi_align([features], regions, levels, (5, 4), input_size=(48, 64), samples=samples, aligned=aligned)
    wanted = torchvision_roi_align(features, list(regions), (5, 4), 0.25, samples, aligned)
    torch.testing.assert_close(found.flatten(0, 1), wanted, atol=1e-5, rtol=1e-5)


def test_the_gradient_is_torchvisions() -> None:
    (features,) = maps((12, 16))
    regions, levels = boxes(9, 64, 48), torch.zeros(2, 9, dtype=torch.int64)
    weights = torch.randn(18, 3, 5, 5, generator=torch.Generator().manual_seed(4))
    gradients = []
    for ours in (True, False):
        leaf = features.clone().requires_grad_()
        if ours:
            crops = roi_align([leaf], regions, levels, (5, 5), input_size=(48, 64)).flatten(0, 1)
        else:
            crops = torchvision_roi_align(leaf, list(regions), (5, 5), 0.25, 2, True)
        torch.autograd.backward((crops * weights).sum())
        assert leaf.grad is not None
        gradients.append(leaf.grad)
    torch.testing.assert_close(gradients[0], gradients[1], atol=1e-5, rtol=1e-5)


@pytest.mark.parametrize("pool", [Pool(2, 2), Pool(3, 2), Pool(3, 1), Pool(2, 2, every=2), Pool(1, 1, every=2)])
def test_pooling_in_phases_is_pooling(pool: Pool) -> None:
    levels = torch.tensor([[0, 1, 1, 0], [1, 0, 0, 1]])
    regions = boxes(4, 1, 1)
    features = maps((12, 16), (6, 8))
    whole = crop_and_resize(features, regions, levels, (14, 14)).flatten(0, 1)
    wanted = F.max_pool2d(whole, pool.kernel, pool.stride)[..., :: pool.every, :: pool.every]
    found = crop_and_resize(features, regions, levels, (14, 14), pool=pool).flatten(0, 1)
    assert found.shape[-1] == pool.size(14)
    torch.testing.assert_close(found, wanted)


def test_a_region_sees_its_own_level_and_image_alone() -> None:
    features = [torch.full((2, 1, 8, 8), 1.0), torch.full((2, 1, 4, 4), 10.0)]
    features[0][1], features[1][1] = 2.0, 20.0
    found = crop_and_resize(features, boxes(2, 1, 1), torch.tensor([[0, 1], [1, 0]]), (3, 3))
    assert [[float(v) for v in row.mean((1, 2, 3))] for row in found] == [[1, 10], [20, 2]]


def test_regions_that_are_no_numbers_or_far_away_read_nothing() -> None:
    (features,) = maps((6, 6), batch=1)
    wrong = torch.tensor([[[torch.nan] * 4, [1e30] * 4, [-1e30, -1e30, 1e30, 1e30], [torch.inf] * 4]])
    found = crop_and_resize([features], wrong, torch.zeros(1, 4, dtype=torch.int64), (2, 2))
    assert (found == 0).all()
    none = crop_and_resize([features], torch.zeros(1, 0, 4), torch.zeros(1, 0, dtype=torch.int64), (2, 2))
    assert none.shape == (1, 0, 3, 2, 2)


def test_levels_by_size() -> None:
    """A side of 224 pixels has level 4, which is the third of levels 2 to 5; 112 level 3; less than 56 level 2."""
    sides = [224.0, 223.9, 112.0, 111.9, 55.0, 448.0, 5000.0, 0.0]
    squares = torch.tensor([[0, 0, side, side] for side in sides])
    assert by_size(squares, 4).tolist() == [2, 1, 1, 0, 0, 3, 3, 0]
    assert by_size(squares, 3, 3).tolist() == [1, 0, 0, 0, 0, 2, 2, 0], "of levels 3 to 5"
    assert by_relative_size(squares / 640, (640, 640), 5).tolist() == [3, 2, 2, 1, 0, 4, 4, 0]


def test_windows_are_encoded_as_whole_masks() -> None:
    generator = np.random.default_rng(0)
    for size, (top, left, h, w) in (((9, 7), (2, 3, 4, 2)), ((9, 7), (0, 0, 9, 7)), ((5, 5), (4, 4, 1, 1))):
        for share in (0.0, 0.3, 0.8, 1.0):
            window = (generator.random((h, w)) < share).astype(np.uint8)
            whole = np.zeros(size, np.uint8)
            whole[top : top + h, left : left + w] = window
            code = encode_window(window, top, left, size)
            assert code == encode_mask(whole)
            read = coco_mask.decode({"size": code["size"], "counts": code["counts"].encode()})
            assert np.array_equal(read, whole)
    assert encode_window(np.zeros((0, 0), np.uint8), 0, 0, (4, 4)) == encode_mask(np.zeros((4, 4), np.uint8))


def test_pasting_is_reframing() -> None:
    generator = torch.Generator().manual_seed(3)
    masks = torch.rand(7, 28, 28, generator=generator)
    pixels = boxes(7, 120, 90, batch=1)[0]
    pixels[0] = torch.tensor([-30.0, -10, 200, 300])
    pixels[1] = torch.tensor([50.0, 50, 50, 50])
    pixels[2] = torch.tensor([500.0, 500, 600, 600])  # outside
    whole = reframe_masks(masks, pixels / torch.tensor([120.0, 90, 120, 90]), (90, 120))
    found = bw.Detections(pixels, torch.ones(7), torch.zeros(7, dtype=torch.int64), (90, 120), masks=masks)
    pasted = whole_masks(found.arrays())
    assert np.array_equal(pasted, (whole > 0.5).byte().numpy())
    assert list(mask_run_lengths(found.arrays())) == [encode_mask(mask) for mask in pasted]
    assert torch.equal(bw.instance_masks(found), torch.from_numpy(pasted))
    assert whole_masks(found.first(0).arrays()).shape == (0, 90, 120)


def test_masks_of_classes() -> None:
    logits = torch.arange(2 * 3 * 4.0).view(2, 3, 2, 2)
    assert torch.equal(masks_of_classes(logits, torch.tensor([2, 0])), torch.stack([logits[0, 2], logits[1, 0]]))
    assert torch.equal(masks_of_classes(logits[:, :1], torch.tensor([2, 0])), logits[:, 0])


@pytest.mark.parametrize("fade", [False, True])
def test_targets_from_windows_are_those_from_whole_masks(fade: bool) -> None:
    generator = np.random.default_rng(1)
    whole = np.zeros((2, 3, 40, 56), np.uint8)
    whole[0, 0, 5:20, 10:30] = generator.integers(0, 2, (15, 20))
    whole[0, 1] = 1
    whole[1, 0, 39, 55] = 1
    stored = InstanceMasks.stack(list(whole), 3, (40, 56))
    assert len(stored.values) == 15 * 20 + 40 * 56 + 1, "no emptiness is stored"
    for image in range(2):
        assert np.array_equal(stored.dense(image).numpy(), whole[image])
    match = torch.tensor([[0, 1, 2, -1, 0], [0, 0, 1, -2, 2]])
    regions = boxes(5, 56, 40)
    found = mask_targets(stored, match, regions, (7, 5), (40, 56), fade=fade)
    dense = torch.from_numpy(whole).float()
    for image in range(2):
        for row, number in enumerate(match[image].tolist()):
            if number < 0:
                assert (found[image, row] == 0).all()
                continue
            place = regions[image, row] / torch.tensor([56.0, 40, 56, 40])
            level = torch.zeros(1, 1, dtype=torch.int64)
            wanted = crop_and_resize([dense[image, number][None, None]], place[None, None], level, (7, 5), fade=fade)
            torch.testing.assert_close(found[image, row], wanted[0, 0, 0], atol=1e-5, rtol=1e-5)


def test_stored_masks_are_cut_and_moved_with_their_images() -> None:
    whole = np.zeros((2, 1, 6, 6), np.uint8)
    whole[0, 0, 1, 2], whole[1, 0, 3:5, 3:6] = 1, 1
    stored = InstanceMasks.stack(list(whole), 8, (6, 6)).rows(1, 2).each(torch.clone)
    assert np.array_equal(stored.dense(0)[:1].numpy(), whole[1])


def test_each_map_cropped_row_by_row_is_cropped_by_a_gather() -> None:
    """Boxes within, at the border, beyond it, mirrored and of one point."""
    generator = torch.Generator().manual_seed(0)
    maps = torch.rand(7, 9, 12, generator=generator)
    boxes = [[0.1, 0.2, 0.7, 0.6], [0, 0, 1, 1], [0.5, 0.5, 1.5, 1.2], [-0.3, 0, 0.4, 1], [0.8, 0.9, 0.2, 0.1]]
    regions = torch.tensor([*boxes, [0.3, 0.4, 0.3, 0.4], [1, 1, 1, 1]])
    found = crop_each(maps, regions, (5, 6))
    wanted = crop_and_resize([maps[:, None]], regions[:, None], torch.zeros(7, 1, dtype=torch.int64), (5, 6))
    torch.testing.assert_close(found, wanted[:, 0, 0], rtol=1e-6, atol=1e-6)
