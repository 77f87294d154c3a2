"""CenterNet's predictions (Objects as Points, section 3): maps of cells. Vectors are y, x, as in TF's checkpoints.

Dimensions: B batch, H W grid of cells, K classes, P keypoints of a task, G objects (padded), D detections (padded) or
numbers of an embedding, h w mask.
"""

from __future__ import annotations

from dataclasses import dataclass

from torch import Tensor

from boxwright.types.padded_detections import PaddedDetections

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
class SurfaceMaps:
    """The maps of DensePose.

    Attributes:
        parts: float [B, S, H, W]; logits that a cell belongs to each of S parts of the body's surface.
        coordinates: float [B, 2S, H, W]; v and u on each part.
    """

    parts: Tensor
    coordinates: Tensor


@dataclass(frozen=True)
class EmbeddingMaps:
    """The maps that DeepMAC's masks are predicted from.

    Attributes:
        instances: float [B, D, H, W]; in the cell of an object's center, what tells it from others.
        pixels: float [B, C, H, W].
    """

    instances: Tensor
    pixels: Tensor


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
        embeddings: What DeepMAC's masks are predicted from; or None.
        surface: DensePose's maps; or None.
        identities: float [B, E, H, W]; in the cell of an object's center, what tells individuals apart; or None.
        identity_logits: float [B, G, T]; which of T individuals each object of the groundtruth is, where that is given;
            or None.
    """

    centers: Tensor
    sizes: Tensor | None = None
    offsets: Tensor | None = None
    keypoints: tuple[KeypointMaps, ...] = ()
    masks: Tensor | None = None
    temporal_offsets: Tensor | None = None
    embeddings: EmbeddingMaps | None = None
    surface: SurfaceMaps | None = None
    identities: Tensor | None = None
    identity_logits: Tensor | None = None


@dataclass(frozen=True)
class DeepMaskPredictions:
    """DeepMAC's masks: of the groundtruth's boxes where it is given, and of detections outside of training.

    Attributes:
        of_objects: float [B, G, h, w]; logits for each stage that has masks; empty without groundtruth.
        of_views: float [B, G, h, w]; for each of these, the logits in a random view of the image, moved back; without a
            graph. Empty without self-supervision.
        features: float [B, C, H, W]; what feature consistency compares; or None.
        step: float scalar; the number of the training step; None outside of training.
        detections: What is detected; None in training.
        of_detections: float [B, D, h, w]; logits that span the detections' boxes; None in training.
    """

    of_objects: tuple[Tensor, ...] = ()
    of_views: tuple[Tensor, ...] = ()
    features: Tensor | None = None
    step: Tensor | None = None
    detections: PaddedDetections | None = None
    of_detections: Tensor | None = None


@dataclass(frozen=True)
class CenterPredictions:
    """The network's predictions for a batch.

    Attributes:
        stages: The maps of each stage of the backbone; the last ones are decoded.
        true_sizes: int64 [B, 2]; the (height, width) of each input without its padding.
        input_size: (height, width) of the inputs.
        deep_masks: DeepMAC's masks; None without.
    """

    stages: tuple[StageMaps, ...]
    true_sizes: Tensor
    input_size: tuple[int, int]
    deep_masks: DeepMaskPredictions | None = None
