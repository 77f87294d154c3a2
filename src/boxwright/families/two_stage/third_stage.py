"""The third stage: masks of detections (Mask R-CNN, section 3), pasted from their boxes into the image.

Dimensions: B batch, R proposals of an image, D detections (padded), P positives, K foreground classes, h w mask, N
regions, C channels, H W image.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from boxwright.families.two_stage.second_stage import BoxClassifier, RegionCrop, of_valid_rows
from boxwright.nn.layers import ConvSettings, Deconv2d, KernelRule, conv_norm_act, make_activation, make_conv
from boxwright.nn.ops.roi import Size, Taps, corners, taps
from boxwright.types import InstancePredictions, PaddedDetections, Proposals, TwoStagePredictions

# TF's clamp, without which the mask of an empty box would divide by 0.
_LEAST_SIDE = 1e-4  # of a box, in 0..1 of the image


def reframe_masks(masks: Tensor, boxes: Tensor, size: Size, *, nearest: bool = False) -> Tensor:
    """Return masks pasted into the image, float32 [D, H, W], as TF's `reframe_box_masks_to_image_masks`.

    The centers of a mask's corner pixels lie on the box's corners; pixels outside the boxes are 0.

    Args:
        masks: float32 [D, h, w].
        boxes: float32 [D, 4], xyxy in 0..1 of the image.
        nearest: Whether a pixel takes the nearest value instead of an interpolated one.
    """
    rows, columns = _axes(boxes, (masks.shape[1], masks.shape[2]), size, nearest=nearest)
    return _matrix(rows, masks.shape[1]) @ masks @ _matrix(columns, masks.shape[2]).transpose(1, 2)


def masks_of_classes(logits: Tensor, labels: Tensor) -> Tensor:
    """Return the masks [..., h, w] of labels int64 [...], 0-based, from logits [..., K or 1, h, w]."""
    if logits.shape[-3] == 1:
        return logits.squeeze(-3)
    index = labels[..., None, None, None].expand(*labels.shape, 1, *logits.shape[-2:])
    return torch.gather(logits, logits.ndim - 3, index).squeeze(-3)


def _axes(boxes: Tensor, mask_size: Size, size: Size, *, nearest: bool) -> tuple[Taps, Taps]:
    """Return the taps of an image's rows and columns in each mask."""
    axes = []
    for side, extent, count in zip((1, 0), mask_size, size, strict=True):
        start = boxes[:, side]
        length = (boxes[:, side + 2] - start).clamp(min=_LEAST_SIDE)
        extents = torch.full((len(boxes),), extent, device=boxes.device)
        positions = corners((0 - start) / length, (1 - start) / length, extents - 1, count)
        axes.append(taps(positions, extents, border="drop", nearest=nearest))
    return axes[0], axes[1]


def _matrix(axis: Taps, extent: int) -> Tensor:
    """Return taps as matrices [D, n, extent]."""
    matrix = axis.weights.new_zeros(*axis.weights.shape[:2], extent)
    return matrix.scatter_add_(2, axis.places, axis.weights)


class ResizeTo(nn.Module):
    """Resize to a fixed size with TF's `align_corners`."""

    def __init__(self, size: Size) -> None:
        """Store the size."""
        super().__init__()
        self.size = size

    def forward(self, inputs: Tensor) -> Tensor:
        """Return [N, C, h, w]."""
        return F.interpolate(inputs, size=self.size, mode="bilinear", align_corners=True)


class MaskHead(nn.Module):
    """Layers, then a convolution that predicts a mask for each class.

    Attributes:
        columns: K, or 1 for class-agnostic masks.
    """

    def __init__(
        self, layers: nn.Sequential, channels: int, columns: int, rule: KernelRule, kernel_size: int = 3
    ) -> None:
        """Build the last convolution.

        Args:
            layers: From a region's features to maps of the mask's size.
            columns: K or 1.
        """
        super().__init__()
        self.layers, self.columns = layers, columns
        self.predict = make_conv(channels, columns, kernel_size, rule, bias=True)

    def forward(self, features: Tensor) -> Tensor:
        """Return logits [N, K or 1, h, w] for features [N, C, H, W]."""
        logits: Tensor = self.predict(self.layers(features))
        return logits


def _convolutions(in_channels: int, depth: int, count: int, settings: ConvSettings) -> list[nn.Module]:
    widths = [in_channels, *[depth] * count]
    return [conv_norm_act(before, depth, 3, settings) for before in widths[:-1]]


def resizing_layers(in_channels: int, depth: int, count: int, settings: ConvSettings, size: Size) -> nn.Sequential:
    """Return layers that resize, then convolve `count` times (TF's layers); 0 leaves `in_channels`."""
    return nn.Sequential(ResizeTo(size), *_convolutions(in_channels, depth, count, settings))


def upsampling_layers(in_channels: int, depth: int, count: int, settings: ConvSettings, factors: Size) -> nn.Sequential:
    """Return layers that convolve `count` times, upsample, and convolve once more (`convolve_then_upsample_masks`).

    Args:
        factors: Repetitions of a pixel in y and x.
    """
    before = _convolutions(in_channels, depth, count, settings)
    repeat = nn.Upsample(scale_factor=(float(factors[0]), float(factors[1])), mode="nearest")
    after = conv_norm_act(depth if count else in_channels, depth, 3, settings)
    return nn.Sequential(*before, repeat, after)


def deconvolving_layers(in_channels: int, depth: int, count: int, settings: ConvSettings) -> nn.Sequential:
    """Return layers that convolve, then double the size by a learned deconvolution (the paper's figure 4, right)."""
    before = _convolutions(in_channels, depth, count, settings)
    # A kernel of 2 and a stride of 2: no output pixel gets two contributions.
    double = Deconv2d(depth if count else in_channels, depth, 2, settings.kernel, bias=True)
    return nn.Sequential(*before, double, make_activation(settings.activation))


def depth_between(in_channels: int, num_classes: int) -> int:
    """Return TF's default channels of mask convolutions: a power of two between the numbers of features and classes."""
    total = 2 * math.log2(in_channels) + 3 * math.log2(num_classes)
    # Python's `round` takes halves to the even number, as TF's does.
    return int(2.0 ** round(total / 5))


@dataclass(frozen=True)
class _Rows:
    """A subset of the proposals: `index` int64 [B, P] into R, boxes [B, P, 4], valid [B, P]."""

    index: Tensor
    boxes: Tensor
    valid: Tensor


class MaskPredictor(nn.Module):
    """Predicts a mask for each detection; in training, for each positive proposal."""

    def __init__(
        self,
        head: MaskHead,
        crop: RegionCrop | None,
        detect: Callable[[TwoStagePredictions, Tensor], PaddedDetections],
        most_positives: int,
    ) -> None:
        """Assemble the stage.

        Args:
            head: A region's features to logits [N, K or 1, h, w].
            crop: Crops regions for the head; None to share the second stage's features.
            detect: Selects the detections, given the true sizes.
            most_positives: The maximum of positive proposals per image.
        """
        super().__init__()
        self.head, self.crop, self.detect, self.most_positives = head, crop, detect, most_positives

    def forward(
        self, maps: list[Tensor], predictions: TwoStagePredictions, second: BoxClassifier, true_sizes: Tensor
    ) -> InstancePredictions:
        """Return logits [B, D, K or 1, h, w]."""
        size = predictions.first.input_size
        positive = predictions.proposals.positive
        if positive is not None and predictions.regions is not None:
            rows = self._positives(predictions.proposals, positive)
            if self.crop is None:
                batch = torch.arange(len(positive), device=positive.device)[:, None] * positive.shape[1]
                features = predictions.regions.features[(batch + rows.index).flatten()]
            else:
                features = self.crop(maps, rows.boxes, size)
            return InstancePredictions(rows.boxes, rows.valid, self._logits(features, rows.valid))
        detections = self.detect(predictions, true_sizes)
        if self.crop is None:
            features = second.compute_features(maps, detections.boxes, detections.valid, size)
        else:
            features = self.crop(maps, detections.boxes, size)
        logits = self._logits(features, detections.valid)
        return InstancePredictions(detections.boxes, detections.valid, logits, detections)

    def _positives(self, proposals: Proposals, positive: Tensor) -> _Rows:
        """Return the positive proposals: only these learn masks."""
        count = min(self.most_positives, positive.shape[1])
        # Positives first, in their order: a fixed number of rows, where a boolean mask would wait for the GPU.
        index = (~positive).byte().argsort(dim=1, stable=True)[:, :count]
        boxes = proposals.boxes.gather(1, index[..., None].expand(-1, -1, 4))
        return _Rows(index, boxes, positive.gather(1, index))

    def _logits(self, features: Tensor, valid: Tensor) -> Tensor:
        # Only statistics of a batch need rows of padding; otherwise their masks are not computed.
        learns = self.training and _learns_statistics(self.head)
        logits = of_valid_rows(self.head, features, valid, all_rows=learns)
        return logits.view(*valid.shape, *logits.shape[1:])


def _learns_statistics(part: nn.Module) -> bool:
    return any(isinstance(module, nn.BatchNorm2d) and module.training for module in part.modules())
