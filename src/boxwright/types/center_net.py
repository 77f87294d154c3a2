"""CenterNet's predictions (Objects as Points, section 3): maps of cells. Vectors are y, x, as in TF's checkpoints.

Dimensions: B batch, H W grid of cells, K classes, P keypoints of a task.
"""

from __future__ import annotations

from dataclasses import dataclass

from torch import Tensor

# Pixels of the network's input in a cell, along each axis.
STRIDE = 4


@dataclass(frozen=True)
class KeypointMaps:
    """The maps of a keypoint task.

    Attributes:
        heatmap: float [B, P, H, W]; logits that a keypoint lies in a cell.
        regression: float [B, 2P, H, W]; from an object's center to each of its keypoints.
        offsets: float [B, 2, H, W], or [B, 2P, H, W] with one for each keypoint; from a cell to the keypoint in it.
        depths: float [B, 1, H, W] or [B, P, H, W]; or None.
    """

    heatmap: Tensor
    regression: Tensor
    offsets: Tensor
    depths: Tensor | None = None


@dataclass(frozen=True)
class StageMaps:
    """The maps that the heads of one stage predict.

    Attributes:
        centers: float [B, K, H, W]; logits that a cell holds the center of an object.
        sizes: float [B, 2, H, W]; height and width of the object, in cells. None without boxes.
        offsets: float [B, 2, H, W]; from the cell to the center. None without boxes.
        keypoints: The maps of each keypoint task.
        masks: float [B, K, H, W]; logits that a cell belongs to an object of a class; or None.
        temporal_offsets: float [B, 2, H, W]; from the object's center in the previous frame; or None.
    """

    centers: Tensor
    sizes: Tensor | None = None
    offsets: Tensor | None = None
    keypoints: tuple[KeypointMaps, ...] = ()
    masks: Tensor | None = None
    temporal_offsets: Tensor | None = None


@dataclass(frozen=True)
class CenterPredictions:
    """The network's predictions for a batch.

    Attributes:
        stages: The maps of each stage of the backbone; the last ones are decoded.
        true_sizes: int64 [B, 2]; the (height, width) of each input without its padding.
        input_size: (height, width) of the inputs.
    """

    stages: tuple[StageMaps, ...]
    true_sizes: Tensor
    input_size: tuple[int, int]
