"""The instance masks of a batch, cropped to their bounding rectangles.

Dimensions: B batch, G objects (padded), H W input.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import cv2
import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor


@dataclass(frozen=True)
class InstanceMasks:
    """Each mask as its bounding rectangle: dense masks would take an image's memory for each object.

    Attributes:
        values: uint8 [n] of 0 and 1; the concatenated windows, row by row.
        windows: int64 [B, G, 4]: first row, first column, height and width; 0 for padding.
        starts: int64 [B, G]; where in `values` each window starts.
        size: (H, W).
    """

    values: Tensor
    windows: Tensor
    starts: Tensor
    size: tuple[int, int]

    @classmethod
    def stack(cls, images: Sequence[NDArray[Any]], count: int, size: tuple[int, int]) -> InstanceMasks:
        """Store the masks of a batch.

        Args:
            images: For each image uint8 [N, h, w] of 0 and 1; padded with 0 at the bottom and right.
            count: G.
            size: (H, W).

        Returns:
            The masks.
        """
        windows, starts = np.zeros((len(images), count, 4), np.int64), np.zeros((len(images), count), np.int64)
        values, total = [], 0
        for image, masks in enumerate(images):
            for number, mask in enumerate(masks):
                left, top, wide, tall = cv2.boundingRect(np.ascontiguousarray(mask, np.uint8))
                starts[image, number] = total
                # An empty mask keeps a window without rows, like padding.
                if not tall:
                    continue
                window = mask[top : top + tall, left : left + wide]
                windows[image, number] = (top, left, *window.shape)
                values.append(window.reshape(-1))
                total += window.size
        flat = np.concatenate(values).astype(np.uint8) if values else np.zeros(0, np.uint8)
        return cls(torch.from_numpy(flat), torch.from_numpy(windows), torch.from_numpy(starts), size)

    def each(self, change: Callable[[Tensor], Tensor]) -> InstanceMasks:
        """Return the masks with a function applied to every tensor."""
        return replace(self, values=change(self.values), windows=change(self.windows), starts=change(self.starts))

    def rows(self, start: int, stop: int) -> InstanceMasks:
        """Return the masks of images `start` to `stop`, excluded; the values are shared."""
        return replace(self, windows=self.windows[start:stop], starts=self.starts[start:stop])

    def tensors(self) -> list[Tensor]:
        """Return the tensors of the masks."""
        return [self.values, self.windows, self.starts]

    def dense(self, image: int) -> Tensor:
        """Return the masks of one image, uint8 [G, H, W]."""
        masks = torch.zeros(self.windows.shape[1], *self.size, dtype=torch.uint8, device=self.values.device)
        pairs = zip(self.windows[image].tolist(), self.starts[image].tolist(), strict=True)
        for mask, ((top, left, height, width), start) in zip(masks, pairs, strict=True):
            window = self.values[start : start + height * width].view(height, width)
            mask[top : top + height, left : left + width] = window
        return masks
