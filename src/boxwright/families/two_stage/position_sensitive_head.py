"""R-FCN's second stage (Dai et al., 2016): all layers process the whole map; regions only average.

Dimensions: B batch, R proposals of an image, K foreground classes, C channels, H W map.
"""

from __future__ import annotations

from dataclasses import replace

from torch import Tensor, nn

from boxwright.families.two_stage.position_sensitive_crops import position_sensitive_crop
from boxwright.families.two_stage.second_stage import SecondStage
from boxwright.nn.layers import ConvSettings, conv_norm_act
from boxwright.nn.network import ClassLayer
from boxwright.nn.ops.boxes import normalized
from boxwright.types import Proposals, RegionPredictions

Size = tuple[int, int]
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
