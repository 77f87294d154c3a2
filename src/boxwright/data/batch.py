"""From samples to batches: resize, put boxes into the frame of the input, pad.

Dimensions: B batch, G boxes (padded), N boxes of one image, C H W image.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from boxwright.types import Sample, Targets

__all__ = ["Batch", "Example", "collate", "make_example"]

_ROUND_TO = 8
Resizer = Callable[[Tensor], tuple[Tensor, tuple[int, int]]]


@dataclass(frozen=True)
class Example:
    """One image at the network's size, with its targets.

    Attributes:
        image: uint8 [C, H, W].
        true_size: (height, width) that is image and not padding.
        boxes: float32 [N, 4], xyxy in pixels of `image`.
        labels: int64 [N].
        weights: float32 [N].
        id: What identifies the image.
        keypoints: float32 [N, P, 2], x and y in pixels of `image`, NaN where hidden; or None.
    """

    image: Tensor
    true_size: tuple[int, int]
    boxes: NDArray[np.float32]
    labels: NDArray[np.int64]
    weights: NDArray[np.float32]
    id: str
    keypoints: NDArray[np.float32] | None = None


@dataclass(frozen=True)
class Batch:
    """Images of one size with their targets.

    Attributes:
        images: uint8 [B, C, H, W].
        true_sizes: int64 [B, 2]; (height, width).
        targets: The groundtruth, padded.
        ids: B identities.
    """

    images: Tensor
    true_sizes: Tensor
    targets: Targets
    ids: tuple[str, ...]

    def __len__(self) -> int:
        return len(self.ids)


def make_example(sample: Sample, resizer: Resizer) -> Example:
    """Resize a sample and keep what can be learnt from.

    Pixels are rounded to uint8 after resizing. Boxes are clipped to the image; those without area
    after that (zero-area, outside) and crowds are left out.

    Args:
        sample: The sample.
        resizer: Brings images to the network's size.

    Returns:
        The example.
    """
    height, width = sample.image.shape[:2]
    resized, (true_height, true_width) = resizer(torch.from_numpy(sample.image))
    scale = np.array([true_width / width, true_height / height] * 2, np.float32)
    limits = np.array([true_width, true_height] * 2, np.float32)
    boxes = np.clip(sample.boxes * scale, 0, limits)
    keep = (boxes[:, 2] > boxes[:, 0]) & (boxes[:, 3] > boxes[:, 1]) & ~sample.is_crowd
    return Example(
        image=resized.round().clamp(0, 255).to(torch.uint8).permute(2, 0, 1).contiguous(),
        true_size=(true_height, true_width),
        boxes=boxes[keep].astype(np.float32),
        labels=sample.labels[keep],
        weights=sample.weights[keep],
        id=sample.id,
        keypoints=None if sample.keypoints is None else _known_keypoints(sample.keypoints[keep], scale[:2]),
    )


def _known_keypoints(keypoints: NDArray[np.float32], scale: NDArray[np.float32]) -> NDArray[np.float32]:
    """Bring keypoints [N, P, 3] to the frame of the input, [N, P, 2]; NaN where they are not visible."""
    places = keypoints[..., :2] * scale
    return np.where(keypoints[..., 2:] > 0, places, np.nan).astype(np.float32)


def collate(examples: Sequence[Example]) -> Batch:
    """Stack examples; images smaller than the largest are padded below and right with black.

    Args:
        examples: At least one.

    Returns:
        The batch; G is the most boxes of an image, rounded up to a multiple of 8.
    """
    most = max(len(example.boxes) for example in examples)
    groundtruth = -(-most // _ROUND_TO) * _ROUND_TO
    size = (len(examples), groundtruth)
    boxes, labels = torch.zeros(*size, 4), torch.zeros(size, dtype=torch.int64)
    weights, valid = torch.zeros(size), torch.zeros(size, dtype=torch.bool)
    for row, example in enumerate(examples):
        count = len(example.boxes)
        boxes[row, :count] = torch.from_numpy(example.boxes)
        labels[row, :count] = torch.from_numpy(example.labels)
        weights[row, :count] = torch.from_numpy(example.weights)
        valid[row, :count] = True
    keypoints = None
    if all(example.keypoints is not None for example in examples):
        points = max(example.keypoints.shape[1] for example in examples if example.keypoints is not None)
        keypoints = torch.full((*size, points, 2), torch.nan)
        for row, example in enumerate(examples):
            if example.keypoints is not None:
                keypoints[row, : len(example.keypoints)] = torch.from_numpy(example.keypoints)
    return Batch(
        images=_stack([example.image for example in examples]),
        true_sizes=torch.tensor([example.true_size for example in examples], dtype=torch.int64),
        targets=Targets(boxes, labels, weights, valid, keypoints),
        ids=tuple(example.id for example in examples),
    )


def _stack(images: list[Tensor]) -> Tensor:
    if len({image.shape for image in images}) == 1:
        return torch.stack(images)
    height, width = max(image.shape[1] for image in images), max(image.shape[2] for image in images)
    stacked = torch.zeros(len(images), images[0].shape[0], height, width, dtype=torch.uint8)
    for row, image in zip(stacked, images, strict=True):
        row[:, : image.shape[1], : image.shape[2]] = image
    return stacked
