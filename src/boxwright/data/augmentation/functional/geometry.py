"""Geometric changes of samples: image, boxes, points, masks and areas together.

Dimensions: N objects, P keypoints.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, Protocol

import cv2
import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from boxwright.data.augmentation.functional.pixels import Pixels, like
from boxwright.data.dense_pose import SurfaceSymmetry, mirrored_surface
from boxwright.nn.ops.resize import TO_LEVELS, resize_bicubic, resize_bilinear, resize_nearest
from boxwright.types import Sample

Array = NDArray[Any]
# x_min, y_min, x_max, y_max in pixels.
Window = tuple[int, int, int, int]
_X, _Y = 0, 1


class Resize(Protocol):
    """One of the interpolations in `nn.ops.resize`."""

    def __call__(self, image: Tensor, height: int, width: int, *, align_corners: bool = False) -> Tensor:
        """Resize [..., H, W, C] to [..., height, width, C]."""
        ...


def mirror(
    sample: Sample, axis: int, permutation: Sequence[int] = (), symmetry: SurfaceSymmetry | None = None
) -> Sample:
    """Return a copy of a sample mirrored along x (axis 0) or y (axis 1).

    Args:
        permutation: The new index of each keypoint (left eye ↔ right eye); empty for none.
        symmetry: What a mirror makes of the body's surface, which samples with DensePose's points need.
    """
    length = sample.image.shape[1 - axis]

    def boxes(old: Array) -> Array:
        new = old.copy()
        # Edges are continuous coordinates; only indices of pixels need length - 1.
        new[:, axis], new[:, axis + 2] = length - old[:, axis + 2], length - old[:, axis]
        return new

    def points(old: Array) -> Array:
        new = _permuted(old, permutation).copy()
        new[..., axis] = length - new[..., axis]
        return new

    def surface_points(old: Array) -> Array:
        new = mirrored_surface(old, symmetry).copy()
        new[..., axis] = length - new[..., axis]
        return new

    def vectors(old: Array) -> Array:
        return old * np.where(np.arange(2) == axis, -1, 1).astype(np.float32)

    def masks(old: Array) -> Array:
        flipped = [cv2.flip(mask, 1 - axis) for mask in old]
        return np.array(flipped, old.dtype).reshape(old.shape)

    image = sample.image
    if image.size:  # one without channels is as it was
        image = cv2.flip(image, 1 - axis).reshape(image.shape)  # five times as fast as NumPy
    return sample.moved(
        image,
        boxes=boxes,
        points=points,
        point_values=partial(_permuted, permutation=permutation),
        surface_points=surface_points,
        vectors=vectors,
        masks=masks,
    )


def quarter_turn(sample: Sample, permutation: Sequence[int] = ()) -> Sample:
    """Return a sample rotated by 90° counterclockwise; `permutation` as for `mirror`."""
    width = sample.image.shape[1]

    def boxes(old: Array) -> Array:
        return np.stack([old[:, 1], width - old[:, 2], old[:, 3], width - old[:, 0]], axis=1)

    def turned(old: Array) -> Array:
        return np.concatenate([old[..., [_Y]], width - old[..., [_X]], old[..., 2:]], axis=-1)

    def points(old: Array) -> Array:
        return turned(_permuted(old, permutation))

    def masks(old: Array) -> Array:
        return np.rot90(old, axes=(1, 2)).copy()

    image = np.rot90(sample.image).copy()
    return sample.moved(
        image,
        boxes=boxes,
        points=points,
        point_values=partial(_permuted, permutation=permutation),
        surface_points=turned,
        vectors=lambda old: np.stack([old[:, _Y], -old[:, _X]], axis=-1),
        masks=masks,
    )


def cut(sample: Sample, window: Window) -> Sample:
    """Return a window, in whole pixels inside the image, of a sample with all its objects.

    Boxes are not clipped, keypoints outside are hidden.
    """
    x_min, y_min, x_max, y_max = window
    image = np.ascontiguousarray(sample.image[y_min:y_max, x_min:x_max])
    shift = np.array([-x_min, -y_min], np.float32)
    return place(sample, image, shift=shift, masks=lambda old: old[:, y_min:y_max, x_min:x_max])


def pad(sample: Sample, canvas: Pixels, corner: tuple[int, int]) -> Sample:
    """Return a sample placed on a larger canvas.

    Args:
        canvas: [H', W', C]; changed in place.
        corner: (left, top) of the image on it.
    """
    (left, top), (height, width) = corner, sample.image.shape[:2]
    canvas[top : top + height, left : left + width] = sample.image
    below, right = canvas.shape[0] - height - top, canvas.shape[1] - width - left
    shift = np.array([left, top], np.float32)
    return place(sample, canvas, shift=shift, masks=lambda old: np.pad(old, ((0, 0), (top, below), (left, right))))


def place(
    sample: Sample,
    image: Pixels,
    *,
    masks: Callable[[Array], Array],
    scale: NDArray[np.float32] | None = None,
    shift: NDArray[np.float32] | None = None,
) -> Sample:
    """Return a sample with another image, in which a point p of the old one lies at `scale × p + shift`.

    Keypoints and surface points outside the new image are hidden; boxes are not clipped.

    Args:
        image: [H', W', C].
        masks: Transforms masks [N, H, W].
        scale: Of x and y; 1 by default.
        shift: Of x and y, in pixels of the new image; 0 by default.
    """
    by = np.ones(2, np.float32) if scale is None else scale
    to = np.zeros(2, np.float32) if shift is None else shift

    def points(old: Array) -> Array:
        moved = np.concatenate([old[..., :2] * by + to, old[..., 2:]], -1).astype(np.float32)
        return hide_outside(moved, image.shape[0], image.shape[1])

    return sample.moved(
        image,
        boxes=lambda old: (old * np.tile(by, 2) + np.tile(to, 2)).astype(np.float32),
        points=points,
        vectors=lambda old: (old * by).astype(np.float32),
        masks=masks,
        areas=lambda old: (old * by.prod()).astype(np.float32),
    )


def zoom(image: Pixels, height: int, width: int, method: Resize, *, align_corners: bool = False) -> Pixels:
    """Resize an image [H, W, C]; the data type stays, but bicubic resizing, which can leave 0..255, gives float32."""
    if image.shape[:2] == (height, width):
        return image
    if image.dtype == np.uint8 and not align_corners:
        method = TO_LEVELS.get(method, method)
    resized = method(torch.from_numpy(np.ascontiguousarray(image)), height, width, align_corners=align_corners)
    pixels = resized.contiguous().numpy()
    return pixels if method is resize_bicubic or pixels.dtype == image.dtype else like(image, pixels)


def resize(
    sample: Sample,
    height: int,
    width: int,
    method: Resize = resize_bilinear,
    masks_method: Resize = resize_nearest,
    *,
    align_corners: bool = False,
) -> Sample:
    """Return a sample of another size.

    Args:
        masks_method: The interpolation of masks, which are then thresholded at 0.5.
    """
    old_height, old_width = sample.image.shape[:2]

    def masks(old: Array) -> Array:
        if not len(old):
            return np.zeros((0, height, width), np.uint8)
        planes = torch.from_numpy(np.ascontiguousarray(old))[..., None]
        return (
            (masks_method(planes, height, width, align_corners=align_corners)[..., 0] >= 0.5).numpy().astype(np.uint8)
        )

    scale = np.array([width / old_width, height / old_height], np.float32)
    return place(
        sample, zoom(sample.image, height, width, method, align_corners=align_corners), masks=masks, scale=scale
    )


def hide_outside(points: Array, height: int, width: int) -> Array:
    """Return points [N, P, 3] with those outside an image invisible."""
    # Points on the border are inside, as in TF's `prune_outside_window`.
    inside = (points[..., :2] >= 0).all(-1) & (points[..., :2] <= [width, height]).all(-1)
    return np.concatenate([points[..., :2], (points[..., 2] * inside)[..., None]], -1).astype(np.float32)


def collect_points(sample: Sample) -> NDArray[np.float32] | None:
    """Return x and y of all that moves as points do, float32 [N, Q, 2]; None if a sample has nothing of the kind.

    These are keypoints, surface points, and the ends of temporal offsets: an object's former center and its center.
    """
    places = [points[..., :2] for points in (sample.keypoints, sample.dense_pose) if points is not None]
    if sample.temporal_offsets is not None:
        centers = (sample.boxes[:, :2] + sample.boxes[:, 2:]) / 2
        places.append(np.stack([centers - sample.temporal_offsets, centers], axis=1))
    return np.concatenate(places, axis=1) if places else None


def put_points(places: Array, before: Sample, size: tuple[int, int]) -> dict[str, Callable[[Array], Array]]:
    """Return what `Sample.moved` needs to put points at other places, and hide those outside an image.

    Args:
        places: x and y, [N, Q, 2], in the order of `collect_points`.
        before: The sample whose points these were.
        size: (height, width) of the new image.
    """
    keypoints = 0 if before.keypoints is None else before.keypoints.shape[1]

    def put(old: Array, new: Array) -> Array:
        shown = hide_outside(np.concatenate([new, old[..., 2:3]], -1), *size)
        return np.concatenate([shown, old[..., 3:]], -1)

    return {
        "points": lambda old: put(old, places[:, :keypoints]),
        "surface_points": lambda old: put(old, places[:, keypoints : keypoints + old.shape[1]]),
        "vectors": lambda _: places[:, -1] - places[:, -2],
    }


def _permuted(points: Array, permutation: Sequence[int]) -> Array:
    return points[:, list(permutation)] if permutation else points
