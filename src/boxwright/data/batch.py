"""From samples to batches: resize, put boxes into the frame of the input, pad.

Dimensions: B batch, G boxes (padded), N boxes of one image, C H W image.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from boxwright.types import Sample, Targets

__all__ = ["Batch", "Example", "Objects", "collate", "make_example", "objects_in_input", "stack_targets"]

_ROUND_TO = 8
Resizer = Callable[[Tensor], tuple[Tensor, tuple[int, int]]]


@dataclass(frozen=True)
class Objects:
    """The objects of one image, in the frame of the network's input.

    Attributes:
        boxes: float32 [N, 4], xyxy in pixels.
        labels: int64 [N].
        weights: float32 [N].
        keypoints: float32 [N, P, 2], x and y in pixels, NaN where hidden; or None.
        class_scores: float32 [N, K], as in `Sample`; or None.
    """

    boxes: NDArray[np.float32]
    labels: NDArray[np.int64]
    weights: NDArray[np.float32]
    keypoints: NDArray[np.float32] | None = None
    class_scores: NDArray[np.float32] | None = None


@dataclass(frozen=True)
class Example:
    """One image at the network's size, with its objects.

    Attributes:
        image: uint8 [C, H, W].
        true_size: (height, width) that is image and not padding.
        objects: What is learnt from.
        id: What identifies the image.
        key: The epoch, and the sample's index in the data.
        problems: What was wrong with the samples in whose place this one came.
    """

    image: Tensor
    true_size: tuple[int, int]
    objects: Objects
    id: str
    key: tuple[int, int] = (0, 0)
    problems: tuple[str, ...] = ()


@dataclass(frozen=True)
class Batch:
    """Images of one size with their targets.

    Attributes:
        images: uint8 [B, C, H, W].
        true_sizes: int64 [B, 2]; (height, width).
        targets: The groundtruth, padded.
        ids: B identities.
        keys: B times the epoch, and the sample's index in the data.
        problems: What was wrong with samples that were left out.
    """

    images: Tensor
    true_sizes: Tensor
    targets: Targets
    ids: tuple[str, ...]
    keys: tuple[tuple[int, int], ...] = ()
    problems: tuple[str, ...] = ()

    def __len__(self) -> int:
        return len(self.ids)

    def to(self, device: torch.device | str) -> Batch:
        """Move to a device; from pinned memory to a GPU this does not wait.

        Args:
            device: The device.

        Returns:
            The batch there.
        """
        wait_not = torch.device(device).type == "cuda"  # the other way, what has not arrived would be read
        return replace(
            self,
            images=self.images.to(device, non_blocking=wait_not),
            true_sizes=self.true_sizes.to(device, non_blocking=wait_not),
            targets=self.targets.to(device),
        )

    def split(self, parts: int) -> list[Batch]:
        """Cut into parts of nearly one size, in order.

        Args:
            parts: How many; no more than there are images.

        Returns:
            The parts.
        """
        if parts == 1:
            return [self]
        bounds = [len(self) * number // parts for number in range(parts + 1)]
        return [
            Batch(
                images=self.images[start:stop],
                true_sizes=self.true_sizes[start:stop],
                targets=self.targets.rows(start, stop),
                ids=self.ids[start:stop],
                keys=self.keys[start:stop],
            )
            for start, stop in pairwise(bounds)
        ]

    def share_memory(self) -> Batch:
        """Move to memory that processes share.

        Returns:
            This batch.

        Raises:
            RuntimeError: Where there is no room.
        """
        for tensor in (self.images, self.true_sizes, *self.targets.tensors()):
            tensor.share_memory_()  # type: ignore[no-untyped-call]
        return self

    def pin_memory(self) -> Batch:
        """Copy to memory from which a GPU can read while the CPU works; PyTorch's loader asks for it.

        Returns:
            The batch there.
        """
        return replace(
            self,
            images=self.images.pin_memory(),
            true_sizes=self.true_sizes.pin_memory(),
            targets=self.targets.pin_memory(),
        )


def make_example(sample: Sample, resizer: Resizer) -> Example:
    """Resize a sample and keep what can be learnt from; pixels are rounded to uint8 after resizing.

    Args:
        sample: The sample.
        resizer: Brings images to the network's size.

    Returns:
        The example.
    """
    # A copy where strides are negative, as those of a flipped image one pixel wide may be: torch refuses them.
    image = sample.image.copy() if min(sample.image.strides) < 0 else sample.image
    resized, true_size = resizer(torch.from_numpy(image))
    return Example(
        image=resized.round().clamp(0, 255).to(torch.uint8).permute(2, 0, 1).contiguous(),
        true_size=true_size,
        objects=objects_in_input(sample, true_size),
        id=sample.id,
    )


def objects_in_input(sample: Sample, true_size: tuple[int, int]) -> Objects:
    """Bring the objects that can be learnt from to the frame of the network's input.

    Boxes are clipped to the image; those without area after that (zero-area, outside) and crowds are
    left out.

    Args:
        sample: The sample.
        true_size: (height, width) of its image in the input.

    Returns:
        The objects.
    """
    height, width = sample.image.shape[:2]
    true_height, true_width = true_size
    scale = np.array([true_width / width, true_height / height] * 2, np.float32)
    limits = np.array([true_width, true_height] * 2, np.float32)
    boxes = np.clip(sample.boxes * scale, 0, limits)
    keep = (boxes[:, 2] > boxes[:, 0]) & (boxes[:, 3] > boxes[:, 1]) & ~sample.is_crowd
    return Objects(
        boxes=boxes[keep].astype(np.float32),
        labels=sample.labels[keep],
        weights=sample.weights[keep],
        keypoints=None if sample.keypoints is None else _known_keypoints(sample.keypoints[keep], scale[:2]),
        class_scores=None if sample.class_scores is None else sample.class_scores[keep],
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
        The batch.
    """
    return Batch(
        images=_stack([example.image for example in examples]),
        true_sizes=torch.tensor([example.true_size for example in examples], dtype=torch.int64),
        targets=stack_targets([example.objects for example in examples]),
        ids=tuple(example.id for example in examples),
        keys=tuple(example.key for example in examples),
        problems=tuple(problem for example in examples for problem in example.problems),
    )


def stack_targets(images: Sequence[Objects]) -> Targets:
    """Stack the objects of images.

    Args:
        images: At least one.

    Returns:
        The targets; G is the most objects of an image, rounded up to a multiple of 8.
    """
    groundtruth = -(-max(len(objects.boxes) for objects in images) // _ROUND_TO) * _ROUND_TO
    size = (len(images), groundtruth)
    return Targets(
        boxes=_padded([objects.boxes for objects in images], torch.zeros(*size, 4)),
        labels=_padded([objects.labels for objects in images], torch.zeros(size, dtype=torch.int64)),
        weights=_padded([objects.weights for objects in images], torch.zeros(size)),
        valid=_padded([np.ones(len(objects.boxes), np.bool_) for objects in images], torch.zeros(size).bool()),
        keypoints=_padded_optional([objects.keypoints for objects in images], size, torch.nan),
        class_scores=_padded_optional([objects.class_scores for objects in images], size, 0.0),
    )


def _padded(rows: Sequence[NDArray[Any]], into: Tensor) -> Tensor:
    for row, values in zip(into, rows, strict=True):
        row[: len(values)] = torch.from_numpy(values)
    return into


def _padded_optional(rows: Sequence[NDArray[np.float32] | None], size: tuple[int, int], fill: float) -> Tensor | None:
    known = [values for values in rows if values is not None]
    if len(known) < len(rows):
        return None
    return _padded(known, torch.full((*size, *known[0].shape[1:]), fill))


def _stack(images: list[Tensor]) -> Tensor:
    if len({image.shape for image in images}) == 1:
        return torch.stack(images)
    height, width = max(image.shape[1] for image in images), max(image.shape[2] for image in images)
    stacked = torch.zeros(len(images), images[0].shape[0], height, width, dtype=torch.uint8)
    for row, image in zip(stacked, images, strict=True):
        row[:, : image.shape[1], : image.shape[2]] = image
    return stacked
