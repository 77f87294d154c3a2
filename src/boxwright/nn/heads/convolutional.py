"""SSD's box predictor, with separate convolutions for each level, and RetinaNet's, which shares a tower.

TF calls them convolutional_box_predictor and weight_shared_convolutional_box_predictor.

Dimensions: B batch, C channels, H W grid, S anchors a location, A anchors, L levels.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import pairwise

import torch
from torch import Tensor, nn

from boxwright.nn.batch_norm import BatchNormSettings, make_norm
from boxwright.nn.layers import ConvSettings, conv_norm_act, full_conv, make_activation, make_conv, separable_conv


def _unchanged(tensor: Tensor) -> Tensor:
    return tensor


@dataclass(frozen=True)
class HeadOutput:
    """The outputs for one anchor.

    Attributes:
        clip_codes: (low, high) to which box codes are clipped, or None.
        convert_logits: Applied to class logits; an identity except for old configurations with a sigmoid in the head.
    """

    columns: int
    code_size: int = 4
    class_bias: float = 0.0
    clip_codes: tuple[float, float] | None = None
    convert_logits: Callable[[Tensor], Tensor] = _unchanged

    def finish(self, codes: Tensor, logits: Tensor) -> tuple[Tensor, Tensor]:
        """Return clipped codes and converted logits.

        Args:
            codes: [B, A, code size].
            logits: [B, A, columns].
        """
        if self.clip_codes is not None:
            codes = codes.clamp(*self.clip_codes)
        return codes, self.convert_logits(logits)


class AnchorHead(nn.Module):
    """Predicts box codes and class logits for every anchor; `boxes` and `classes` are its last layers."""

    output: HeadOutput

    @property
    def class_layers(self) -> tuple[str, ...]:
        """Names within the head of the convolutions, and their normalization, that give class logits."""
        raise NotImplementedError

    def forward(self, features: list[Tensor]) -> tuple[Tensor, Tensor]:
        """Return box codes [B, A, code size] and class logits [B, A, C], level by level, row by row."""
        raise NotImplementedError


def flatten_anchors(levels: Sequence[Tensor], size: int) -> Tensor:
    """Return the outputs of all levels with one row per anchor.

    Args:
        levels: [B, S × size, H, W] each.

    Returns:
        [B, A, size], ordered by level, row, column, and anchor.
    """
    rows = [level.permute(0, 2, 3, 1).reshape(level.shape[0], -1, size) for level in levels]
    return torch.cat(rows, dim=1)


def start_bias(predictor: nn.Sequential, value: float) -> None:
    """Set the bias of a predictor's last layer.

    Args:
        predictor: Layers that end in a convolution with bias, or its normalization.
    """
    last = predictor[-1]
    # A normalized predictor has no bias of its own; its normalization's is the last.
    if isinstance(last, nn.Conv2d | nn.BatchNorm2d) and last.bias is not None:
        nn.init.constant_(last.bias, value)


@dataclass(frozen=True)
class HeadShape:
    """The layers of a head.

    Attributes:
        kernel_size: The side of the last convolution's kernel.
        use_depthwise: Whether the last convolution is preceded by a depthwise one of that side.
        layers_before: 1×1 convolutions before the last.
        max_depth: Their maximum channels; 0 omits them.
        dropout: The share of features dropped before the class convolution.
        norm: Batch normalization after the last convolutions, in place of their bias.
    """

    kernel_size: int = 1
    use_depthwise: bool = False
    layers_before: int = 0
    min_depth: int = 0
    max_depth: int = 0
    dropout: float = 0.0
    norm: BatchNormSettings | None = None


class ConvolutionalHead(AnchorHead):
    """Predict boxes and classes by separate convolutions for each level.

    Attributes:
        as_in_tensorflow: Whether TF's predictor has the same layers: neither bodies nor normalized predictors.
    """

    def __init__(
        self,
        in_channels: Sequence[int],
        anchors_per_location: Sequence[int],
        output: HeadOutput,
        shape: HeadShape,
        settings: ConvSettings,
        *,
        bodies: Sequence[nn.Module] | None = None,
    ) -> None:
        """Build the convolutions of every level.

        Args:
            in_channels: Channels of each level, after its body if there are bodies.
            anchors_per_location: Anchors at each location of each level.
            bodies: Each level's layers shared by both predictors, in place of the shape's 1×1 convolutions.
        """
        super().__init__()
        self.output, self.as_in_tensorflow = output, bodies is None and shape.norm is None
        self.last_layers = 1 if shape.norm is None else 2
        self.shared, self.boxes, self.classes = nn.ModuleList(), nn.ModuleList(), nn.ModuleList()
        for channels, anchors in zip(in_channels, anchors_per_location, strict=True):
            # As TF: max_depth 0 leaves these layers out, unless min_depth asks for them.
            depth = max(min(channels, shape.max_depth), shape.min_depth)
            count = shape.layers_before if depth > 0 else 0
            widths = [channels, *[depth] * count]
            if bodies is None:
                self.shared.append(nn.Sequential(*(conv_norm_act(a, b, 1, settings) for a, b in pairwise(widths))))
            self.boxes.append(_predictor(widths[-1], anchors * output.code_size, shape, settings))
            classes = _predictor(widths[-1], anchors * output.columns, shape, settings)
            start_bias(classes, output.class_bias)
            self.classes.append(nn.Sequential(nn.Dropout(shape.dropout), *classes) if shape.dropout else classes)
        self.shared.extend(bodies or ())

    @property
    def class_layers(self) -> tuple[str, ...]:
        """Names within the head of the convolutions, and their normalization, that give class logits."""
        return tuple(
            f"classes.{number}.{place}"
            for number, layers in enumerate(self._class_sequences())
            for place in range(len(layers) - self.last_layers, len(layers))
        )

    def _class_sequences(self) -> list[nn.Sequential]:
        return [layers for layers in self.classes if isinstance(layers, nn.Sequential)]

    def forward(self, features: list[Tensor]) -> tuple[Tensor, Tensor]:
        """Return box codes [B, A, code size] and class logits [B, A, C], level by level, row by row."""
        shared = [layer(level) for layer, level in zip(self.shared, features, strict=True)]
        codes = [layer(level) for layer, level in zip(self.boxes, shared, strict=True)]
        logits = [layer(level) for layer, level in zip(self.classes, shared, strict=True)]
        return self.output.finish(
            flatten_anchors(codes, self.output.code_size), flatten_anchors(logits, self.output.columns)
        )


def _predictor(in_channels: int, out_channels: int, shape: HeadShape, settings: ConvSettings) -> nn.Sequential:
    norm = () if shape.norm is None else (make_norm(out_channels, shape.norm),)
    bias = shape.norm is None or settings.force_bias
    if not shape.use_depthwise:
        return nn.Sequential(make_conv(in_channels, out_channels, shape.kernel_size, settings.kernel, bias=bias), *norm)
    return nn.Sequential(
        *conv_norm_act(in_channels, in_channels, shape.kernel_size, settings, depthwise=True),
        make_conv(in_channels, out_channels, 1, settings.kernel, bias=bias),
        *norm,
    )


@dataclass(frozen=True)
class TowerShape:
    """The layers of a tower.

    Attributes:
        share_tower: Whether boxes and classes share the tower.
        dropout: The share of features dropped before the class convolution.
    """

    depth: int
    layers: int = 0
    kernel_size: int = 3
    use_depthwise: bool = False
    share_tower: bool = False
    dropout: float = 0.0


class Tower(nn.Module):
    """Convolutions shared by all levels, with separate normalization for each."""

    def __init__(self, levels: int, in_channels: int, shape: TowerShape, settings: ConvSettings) -> None:
        """Build the tower."""
        super().__init__()
        make = separable_conv if shape.use_depthwise else full_conv
        widths = [in_channels] + [shape.depth] * shape.layers
        self.convs = nn.ModuleList(
            [make(a, b, shape.kernel_size, settings, bias=settings.bias) for a, b in pairwise(widths)]
        )
        # A flat list, level by level: nested lists would hide the types.
        self.norms = nn.ModuleList([make_norm(b, settings.norm) for _ in range(levels) for b in widths[1:]])
        self.activation = make_activation(settings.activation)

    def forward(self, features: list[Tensor]) -> list[Tensor]:
        """Return [B, depth, H, W] per level."""
        levels, norms = features, list(self.norms)
        for number, conv in enumerate(self.convs):
            own = norms[number :: len(self.convs)]
            levels = [self.activation(norm(conv(level))) for level, norm in zip(levels, own, strict=True)]
        return levels


class WeightSharedHead(AnchorHead):
    """Predict boxes and classes by convolutions shared by all levels."""

    def __init__(
        self,
        in_channels: Sequence[int],
        anchors_per_location: int,
        output: HeadOutput,
        shape: TowerShape,
        settings: ConvSettings,
        last_settings: ConvSettings,
    ) -> None:
        """Build projections, towers and the last convolutions.

        Args:
            in_channels: Channels of each level; if they differ, all are projected to the most common number, as in TF.
            anchors_per_location: Anchors at each location, the same at all levels.
            last_settings: Settings of the last convolutions, which TF configures separately.
        """
        super().__init__()
        self.output, self.dropout = output, nn.Dropout(shape.dropout)
        # Where numbers are equally common, the finest level's is taken; in TF the order of a Python set decides.
        common = Counter(in_channels).most_common(1)[0][0]
        differ = len(set(in_channels)) > 1
        self.projections = nn.ModuleList(
            [_projection(c, common, settings) if differ else nn.Identity() for c in in_channels]
        )
        levels = len(in_channels)
        self.box_tower = Tower(levels, common, shape, settings)
        self.class_tower = None if shape.share_tower else Tower(levels, common, shape, settings)
        make = separable_conv if shape.use_depthwise else full_conv
        width = shape.depth if shape.layers else common
        self.boxes = make(width, anchors_per_location * output.code_size, shape.kernel_size, last_settings, bias=True)
        self.classes = make(width, anchors_per_location * output.columns, shape.kernel_size, last_settings, bias=True)
        start_bias(self.classes, output.class_bias)

    @property
    def class_layers(self) -> tuple[str, ...]:
        """Names within the head of the convolutions that give class logits."""
        return (f"classes.{len(self.classes) - 1}",)

    def forward(self, features: list[Tensor]) -> tuple[Tensor, Tensor]:
        """Return box codes [B, A, code size] and class logits [B, A, columns], level by level, row by row."""
        projected = [project(level) for project, level in zip(self.projections, features, strict=True)]
        box_features = self.box_tower(projected)
        class_features = box_features if self.class_tower is None else self.class_tower(projected)
        codes = [self.boxes(level) for level in box_features]
        logits = [self.classes(self.dropout(level)) for level in class_features]
        return self.output.finish(
            flatten_anchors(codes, self.output.code_size), flatten_anchors(logits, self.output.columns)
        )


def _projection(in_channels: int, out_channels: int, settings: ConvSettings) -> nn.Module:
    conv = make_conv(in_channels, out_channels, 1, settings.kernel, bias=settings.bias)
    return nn.Sequential(conv, make_norm(out_channels, settings.norm))
