"""R-FCN's second stage (Dai et al., 2016): all layers process the whole map; regions only average.

Each part of a region reads channels of its own (section 2.2).

Dimensions: B batch, R proposals of an image, K foreground classes, C channels, H W map, h w crop, n bins.
"""

from __future__ import annotations

from dataclasses import replace

import torch
from torch import Tensor, nn

from boxwright.base.device import constants
from boxwright.families.two_stage.second_stage import SecondStage
from boxwright.nn.layers import ConvSettings, conv_norm_act
from boxwright.nn.network import ClassLayer
from boxwright.nn.ops.boxes import normalized
from boxwright.nn.ops.roi import Size, crop_and_resize
from boxwright.types import Proposals, RegionPredictions


def position_sensitive_crop(features: Tensor, boxes: Tensor, size: Size, bins: Size, *, fade: bool = False) -> Tensor:
    """Return crops whose bins are each read from separate channels.

    Args:
        features: float [B, n·C, H, W]; the channels of the first bin, then of the next to the right, and so on.
        boxes: float32 [B, R, 4], xyxy in units of the map (0..1 spans the centers of its corner pixels).
        fade: As for `crop_and_resize`.

    Returns:
        float [B, R, C, h, w].
    """
    rows, columns = bins
    levels = torch.zeros(boxes.shape[:2], dtype=torch.int64, device=boxes.device)
    start, step = boxes[..., :2], (boxes[..., 2:] - boxes[..., :2]) / constants([columns, rows], boxes.device)
    cells = (size[0] // rows, size[1] // columns)
    blocks = features.chunk(rows * columns, dim=1)

    def bin_of(row: int, column: int) -> Tensor:
        place = constants([column, row], boxes.device)
        part = torch.cat([start + place * step, start + (place + 1) * step], dim=-1)
        return crop_and_resize([blocks[row * columns + column]], part, levels, cells, fade=fade)

    lines = [torch.cat([bin_of(row, column) for column in range(columns)], dim=-1) for row in range(rows)]
    return torch.cat(lines, dim=-2)


_CODE_SIZE = 4


class PositionSensitiveHead(nn.Module):
    """Maps of codes and of logits, with separate channels for each part of a region."""

    def __init__(self, in_channels: int, depth: int, num_classes: int, bins: int, settings: ConvSettings) -> None:
        """Build the convolutions."""
        super().__init__()
        linear = replace(settings, activation="NONE")
        self.num_classes = num_classes
        self.reduce = conv_norm_act(in_channels, depth, 1, settings)
        self.boxes = conv_norm_act(depth, bins * num_classes * _CODE_SIZE, 1, linear)
        self.classes = conv_norm_act(depth, bins * (num_classes + 1), 1, linear)

    def forward(self, features: Tensor) -> tuple[Tensor, Tensor]:
        """Return maps of codes [B, bins · K · 4, H, W] and of logits [B, bins · (K + 1), H, W]."""
        reduced = self.reduce(features)
        return self.boxes(reduced), self.classes(reduced)


class PositionSensitiveStage(SecondStage):
    """The second half of the backbone over the whole map, then position-sensitive averages of proposals."""

    def __init__(
        self,
        features: nn.Module,
        channels: int,
        num_classes: int,
        depth: int,
        settings: ConvSettings,
        *,
        bins: Size,
        crop: Size,
    ) -> None:
        """Assemble the stage.

        Args:
            features: The RPN's map to [B, C, H, W].
            bins: The (rows, columns) of parts of a proposal.
            crop: (height, width) at which a proposal is sampled, multiples of the bins.
        """
        super().__init__()
        self.features, self.bins, self.crop = features, bins, crop
        self.head = PositionSensitiveHead(channels, depth, num_classes, bins[0] * bins[1], settings)

    @property
    def class_layers(self) -> tuple[ClassLayer, ...]:
        """Both maps' layers, with the parts of a region in place of anchors."""
        classes = self.head.num_classes
        return (ClassLayer("head.classes.0", classes + 1), ClassLayer("head.boxes.0", classes, _CODE_SIZE))

    def forward(self, maps: list[Tensor], proposals: Proposals, input_size: Size) -> RegionPredictions:
        """Return codes [B, R, K, 4] and logits [B, R, K + 1]."""
        features = self.features(maps[0])
        places = normalized(proposals.boxes, input_size)
        codes, logits = (
            position_sensitive_crop(score_maps, places, self.crop, self.bins).mean((-2, -1))
            for score_maps in self.head(features)
        )
        return RegionPredictions(codes.view(*codes.shape[:2], -1, _CODE_SIZE), logits, features)
