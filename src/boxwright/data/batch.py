"""Build batches from samples: resize, move objects into the input's frame, pad; sizes may be drawn for each batch.

Dimensions: B batch, G boxes (padded), N boxes of one image, C H W image.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, fields, replace
from itertools import pairwise
from typing import Any

import cv2
import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from boxwright.nn.preprocessing import to_levels_resizer
from boxwright.types import Sample, Targets
from boxwright.types.context_features import ContextFeatures
from boxwright.types.masks import InstanceMasks
from boxwright.types.packing import collect_tensors, each_tensor, packed, unpacked
from boxwright.types.sample import OBJECT_FIELDS

_ROUND_TO = 8
Resizer = Callable[[Tensor], tuple[Tensor, tuple[int, int]]]
# Fields that every batch has; the others are present only if every image has them.
_ALWAYS = {"boxes", "labels", "weights"}


@dataclass(frozen=True)
class Batch:
    """Images of one size with their targets.

    Attributes:
        images: uint8 [B, C, H, W]; float32 if an augmentation produced fractional levels.
        true_sizes: int64 [B, 2]; (height, width).
        keys: B pairs of the epoch and the sample's index in the data.
        block: The single pinned block of memory that backs all tensors; or None.
    """

    images: Tensor
    true_sizes: Tensor
    targets: Targets
    ids: tuple[str, ...]
    keys: tuple[tuple[int, int], ...] = ()
    problems: tuple[str, ...] = ()
    block: Tensor | None = None

    def __len__(self) -> int:
        return len(self.ids)

    def to(self, device: torch.device | str) -> Batch:
        """Move to a device; from pinned memory to a GPU in one asynchronous copy."""
        if self.block is None or torch.device(device).type != "cuda":
            return each_tensor(replace(self, block=None), lambda value: value.to(device))
        return self._views_in(self.block.to(device, non_blocking=True))

    def _views_in(self, block: Tensor) -> Batch:
        """Return the batch as views of a block that holds its packed tensors."""
        views = iter(unpacked(block, collect_tensors(replace(self, block=None))))
        return each_tensor(replace(self, block=None), lambda _: next(views))

    def split(self, parts: int) -> list[Batch]:
        """Split into `parts` batches of nearly equal size, in order; at most one part per image."""
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
        """Move to memory shared between processes."""
        for tensor in (self.images, self.true_sizes, *self.targets.tensors()):
            tensor.share_memory_()
        return self

    def pin_memory(self) -> Batch:
        """Copy to one pinned block; PyTorch's loader calls this."""
        block = packed(collect_tensors(replace(self, block=None))).pin_memory()
        return replace(self._views_in(block), block=block)


def to_input(sample: Sample, resizer: Resizer) -> Sample:
    """Return a sample at the network's input size, with the objects to learn from.

    uint8 pixels are rounded after resizing; masks use the nearest pixel. `true_size` is the part of the image that is
    not padding.
    """
    # torch refuses negative strides, which a flipped image one pixel wide may have.
    image = sample.image.copy() if min(sample.image.strides) < 0 else sample.image
    whole_levels = sample.image.dtype == np.uint8
    resized, true_size = (to_levels_resizer(resizer) if whole_levels else resizer)(torch.from_numpy(image))
    pixels = resized.contiguous().numpy()
    if whole_levels and pixels.dtype != np.uint8:  # rounds half to even, as torch does, and clips, in one pass
        # More channels are added to as one, since OpenCV takes four at most.
        rows = pixels.reshape(len(pixels), -1) if pixels.shape[2] > 4 else pixels
        pixels = np.asarray(cv2.add(rows, np.zeros(4), dtype=cv2.CV_8U)).reshape(pixels.shape)
    return learnable(sample, true_size, pixels)


def learnable(sample: Sample, true_size: tuple[int, int], image: NDArray[Any] | None = None) -> Sample:
    """Return the objects of a sample to learn from, in the frame of the network's input.

    Boxes are clipped to the image; crowds and boxes without area after clipping are dropped.

    Args:
        true_size: (height, width) of the sample's image within the input.
        image: The input itself; if None, the result has an image without channels.
    """
    height, width = sample.image.shape[:2]
    scale = np.array([true_size[1] / width, true_size[0] / height], np.float32)
    limits = np.array([true_size[1], true_size[0]] * 2, np.float32)
    boxes = np.clip(sample.boxes * np.tile(scale, 2), 0, limits)
    keep = (boxes[:, 2] > boxes[:, 0]) & (boxes[:, 3] > boxes[:, 1]) & ~sample.is_crowd
    pixels = np.zeros((*true_size, 0), np.uint8) if image is None else image
    moved = (sample if keep.all() else sample.keep(keep)).moved(
        pixels,
        boxes=lambda _: boxes[keep].astype(np.float32),
        points=lambda points: _scaled_points(points, scale),
        surface_points=lambda points: (points * np.array([*scale, 1, 1, 1, 1], np.float32)).astype(np.float32),
        vectors=lambda vectors: (vectors * scale).astype(np.float32),
        masks=lambda masks: _resized_masks(masks, true_size, (pixels.shape[0], pixels.shape[1])),
        areas=lambda areas: (areas * scale.prod()).astype(np.float32),
    )
    moved.true_size = true_size
    return moved


def _scaled_points(points: NDArray[Any], scale: NDArray[np.float32]) -> NDArray[np.float32]:
    """Scale points [N, P, 3]; x and y of invisible ones become NaN."""
    places = points[..., :2] * scale
    # NaN marks a point without a place for assigners and losses, as in TF; padding has it too.
    hidden = np.where(points[..., 2:] > 0, places, np.nan)
    return np.concatenate([hidden, points[..., 2:]], -1).astype(np.float32)


def _nearest(old: int, new: int) -> NDArray[np.int64]:
    """Return the index among `old` pixels that each of `new` pixels is nearest to."""
    # TF's nearest neighbor truncates i × old / new in float32, without half-pixel centers.
    places = np.arange(new, dtype=np.float32) * np.float32(old / new)
    return np.minimum(places.astype(np.int64), old - 1)


def _resized_masks(masks: NDArray[Any], true_size: tuple[int, int], size: tuple[int, int]) -> NDArray[np.uint8]:
    """Resize masks [N, H, W] by the nearest pixel, then pad with 0 at the bottom and right."""
    padded = np.zeros((len(masks), *size), np.uint8)
    rows, columns = (_nearest(old, new) for old, new in zip(masks.shape[1:], true_size, strict=True))
    for into, mask in zip(padded, masks, strict=True):
        # Only the bounding rectangle is resized, as most of a mask is empty.
        x, y, wide, tall = cv2.boundingRect(np.ascontiguousarray(mask))
        top, bottom = np.searchsorted(rows, (y, y + tall))
        left, right = np.searchsorted(columns, (x, x + wide))
        window = mask[y : y + tall, x : x + wide]
        into[top:bottom, left:right] = window.take(columns[left:right] - x, 1).take(rows[top:bottom] - y, 0)
    return padded


def collate(samples: Sequence[Sample]) -> Batch:
    """Return a batch of samples from `to_input`; images smaller than the largest are padded with black."""
    sizes = [sample.true_size or sample.image.shape[:2] for sample in samples]
    images = _stack([sample.image for sample in samples])
    return Batch(
        images=torch.from_numpy(images).permute(0, 3, 1, 2),
        true_sizes=torch.tensor(sizes, dtype=torch.int64),
        targets=stack_targets(samples, size=images.shape[1:3]),
        ids=tuple(sample.id for sample in samples),
        keys=tuple(sample.key for sample in samples),
        problems=tuple(problem for sample in samples for problem in sample.problems),
    )


def stack_targets(samples: Sequence[Sample], size: tuple[int, ...] | None = None) -> Targets:
    """Return the padded objects of samples in the frame of the network's input.

    Args:
        size: (height, width) to which masks are padded; if None, masks are dropped.

    Returns:
        The targets; G is the largest number of objects per image, rounded up to a multiple of 8.
    """
    count = -(-max(len(sample.boxes) for sample in samples) // _ROUND_TO) * _ROUND_TO
    learned = {f.name for f in fields(Targets)}
    stacked: dict[str, Tensor] = {}
    masks: InstanceMasks | None = None
    for declared in OBJECT_FIELDS:
        rows = declared.rows(samples) if declared.name in learned else None
        if rows is None or not (declared.name in _ALWAYS or _is_informative(rows)):
            continue
        if declared.geometry == "points":
            stacked[declared.name] = _padded([points[..., :2] for points in rows], count, torch.nan)
        elif declared.geometry == "vectors":
            stacked[declared.name] = _padded(_as_shares(rows, samples), count, 0)
        elif declared.geometry == "masks":
            masks = None if size is None else InstanceMasks.stack(rows, count, (size[0], size[1]))
        else:
            stacked[declared.name] = _padded(rows, count, 0)
    valid = _padded([np.ones(len(sample.boxes), np.bool_) for sample in samples], count, 0)
    seen = [sample.annotated for sample in samples]
    verified = [sample.verified_labels for sample in samples]
    most = max(len(labels) for labels in verified)
    keys = [sample.draw_key for sample in samples if sample.draw_key is not None]
    return Targets(
        **stacked,
        valid=valid,
        masks=masks,
        annotated=None if all(seen) else torch.tensor(seen),
        context=stack_context(samples),
        verified_labels=_padded(verified, most, -1) if most else None,
        keys=torch.tensor(keys) if len(keys) == len(samples) else None,
    )


def stack_context(samples: Sequence[Sample]) -> ContextFeatures | None:
    """Return the context features of samples, padded; None if they were not read."""
    known = [sample.context for sample in samples if sample.context is not None]
    if len(known) < len(samples):
        return None
    return ContextFeatures.stack([torch.from_numpy(context) for context in known])


def _is_informative(rows: Sequence[NDArray[Any]]) -> bool:
    """Return whether the values of a field are not all False."""
    return rows[0].dtype != np.bool_ or any(values.any() for values in rows)


def _as_shares(rows: Sequence[NDArray[Any]], samples: Sequence[Sample]) -> list[NDArray[np.float32]]:
    """Return vectors (x, y) in pixels as y and x in shares of their images' heights and widths."""
    sizes = [np.array(sample.true_size or sample.image.shape[:2], np.float32) for sample in samples]
    return [(row[:, ::-1] / size).astype(np.float32) for row, size in zip(rows, sizes, strict=True)]


def _padded(rows: Sequence[NDArray[Any]], count: int, fill: float) -> Tensor:
    kind = torch.from_numpy(rows[0][:0]).dtype
    into = torch.full((len(rows), count, *rows[0].shape[1:]), fill, dtype=kind)
    for row, values in zip(into, rows, strict=True):
        row[: len(values)] = torch.from_numpy(np.ascontiguousarray(values))
    return into


def _stack(images: list[NDArray[Any]]) -> NDArray[Any]:
    if len({image.shape for image in images}) == 1:
        return np.stack(images)
    height, width = max(image.shape[0] for image in images), max(image.shape[1] for image in images)
    stacked = np.zeros((len(images), height, width, images[0].shape[2]), np.result_type(*images))
    for row, image in zip(stacked, images, strict=True):
        row[: image.shape[0], : image.shape[1]] = image
    return stacked


# Separates these draws from those of order, augmentation and networks.
_SIZES = 0x73697A65


@dataclass(frozen=True)
class DrawnSizes:
    """A resizer for each training step, drawn by seed and step alone: every process and a resumed run draw the same.

    Attributes:
        own: The resizer of the steps before `from_step`, and from `until_step` on.
        drawn: What is drawn from between them, by their sizes, ascending; more probable ones are there several times.
        until_step: 0 for none.
    """

    own: Resizer
    drawn: Sequence[Resizer]
    seed: int
    from_step: int = 0
    until_step: int = 0

    def at(self, step: int) -> Resizer:
        """Return the resizer of all images of a step's batch, counted from 0."""
        if step < self.from_step or (self.until_step and step >= self.until_step):
            return self.own
        rng = np.random.default_rng([self.seed, step, _SIZES, 1])
        return self.drawn[int(rng.integers(len(self.drawn)))]

    @property
    def largest(self) -> Resizer:
        """The resizer of the largest inputs, which take the most memory."""
        return self.drawn[-1]
