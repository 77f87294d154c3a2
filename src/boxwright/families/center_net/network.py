"""CenterNet: Objects as Points (Zhou et al., 2019).

An object is a peak of its class's heatmap, at its center; there other maps hold its size, its keypoints and the rest.
A neck makes one map of stride 4 of the backbone's (appendix A), by plain convolutions instead of deformable ones, as in
TF; each head predicts one map from it (section 5).

Dimensions: B batch, C channels, H W grid of cells, N objects of an image, E numbers of an embedding, T identities.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Literal

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from boxwright.families.center_net.cells import CellBoxes, center_cells, grid_shape, read
from boxwright.families.center_net.deep_masks import DeepMaskPredictor
from boxwright.families.center_net.predictions import (
    CenterPredictions,
    EmbeddingMaps,
    KeypointMaps,
    StageMaps,
    SurfaceMaps,
)
from boxwright.nn.batch_norm import BatchNormSettings, make_norm
from boxwright.nn.layers import (
    ConvNormAct,
    ConvSettings,
    Deconv2d,
    Dense,
    KernelRule,
    KernelSize,
    conv_norm_act,
    full_conv,
    make_activation,
    make_conv,
    padded_to_multiple,
    separable_conv,
)
from boxwright.nn.network import Backbone, ClassLayer, Network, Parts
from boxwright.types import Targets

# Keras's defaults.
_NORM = BatchNormSettings(decay=0.99)


class IdentityClassifier(nn.Sequential):
    """Dense layers, of which all but the last are normalized and activated."""

    def __init__(self, size: int, identities: int, layers: int) -> None:
        """Build the layers.

        Args:
            size: E.
            identities: T.
            layers: The number of dense layers.
        """
        rule, built = KernelRule(), list[nn.Module]()
        for _ in range(layers - 1):
            built += [rule.apply(Dense(size, size)), make_norm(size, _NORM), nn.ReLU()]
        super().__init__(*built, rule.apply(Dense(size, identities)))

    def forward(self, embeddings: Tensor) -> Tensor:
        """Return logits [B, N, T] for embeddings [B, N, E]."""
        rows = embeddings.flatten(0, 1)
        count = len(rows)
        if count < 2:
            # PyTorch normalizes no single row: one beside an equal one has the same statistics. Without any row, other
            # processes still wait for gradients.
            rows = rows.repeat(2, 1) if count else rows.new_zeros(2, rows.shape[1]) + 0.0 * embeddings.sum()
        logits = rows[..., None, None]
        for layer in self:
            logits = layer(logits)
        return torch.flatten(logits[:count], 1).view(*embeddings.shape[:2], logits.shape[1])


_KERAS = ConvSettings(norm=None, activation="RELU")


@dataclass(frozen=True)
class HeadLayers:
    """The hidden convolutions of a head, each followed by a ReLU.

    Attributes:
        widths: Channels of each.
        kernel_sizes: The side of each one's kernel, or (height, width).
        separable: Whether they are depthwise separable.
    """

    widths: tuple[int, ...] = (256,)
    kernel_sizes: tuple[KernelSize, ...] = (3,)
    separable: bool = False


class MapHead(nn.Sequential):
    """Hidden convolutions and a 1×1 convolution, `output`, to a map's channels."""

    def __init__(self, in_channels: int, channels: int, layers: HeadLayers, *, bias: float = 0.0) -> None:
        """Build the layers.

        Args:
            channels: Channels of the map.
            bias: The first value of the output's bias.
        """
        super().__init__()
        self.channels = channels
        make = separable_conv if layers.separable else full_conv
        for number, (width, kernel_size) in enumerate(zip(layers.widths, layers.kernel_sizes, strict=True)):
            self.add_module(f"hidden{number}", make(in_channels, width, kernel_size, _KERAS, bias=True))
            self.add_module(f"activation{number}", nn.ReLU(inplace=True))
            in_channels = width
        output = make_conv(in_channels, channels, 1, KernelRule(), bias=True)
        if output.bias is not None:
            nn.init.constant_(output.bias, bias)
        self.add_module("output", output)


Interpolation = Literal["nearest", "bilinear"]
# Makes a 3×3 convolution with a bias, given channels in and out.
MakeConv = Callable[[int, int], nn.Module]


class DoublingDeconv(nn.Module):
    """A 3×3 transposed convolution of stride 2, normalized and activated; TF pads it below and right."""

    def __init__(self, channels: int, settings: ConvSettings) -> None:
        """Build the layers."""
        super().__init__()
        self.deconv = Deconv2d(channels, channels, 3, settings.kernel, bias=True)
        self.norm = make_norm(channels, settings.norm)
        self.activation = make_activation(settings.activation)

    def forward(self, input: Tensor) -> Tensor:
        """Return [B, C, 2H, 2W]."""
        outputs: Tensor = self.activation(self.norm(self.deconv(input)[..., :-1, :-1]))
        return outputs


class Deconvolutions(nn.Module):
    """The coarsest map, doubled several times: a convolution and a transposed one each."""

    def __init__(self, in_channels: int, widths: Sequence[int], kernel_size: int, settings: ConvSettings) -> None:
        """Build the layers; `kernel_size` is that of the plain convolutions, whose settings have a bias."""
        super().__init__()
        layers: list[nn.Module] = []
        for before, width in zip((in_channels, *widths), widths, strict=False):
            layers += [conv_norm_act(before, width, kernel_size, settings), DoublingDeconv(width, settings)]
        self.layers = nn.Sequential(*layers)
        self.channels = (widths[-1],)

    def forward(self, maps: list[Tensor]) -> list[Tensor]:
        """Return one map [B, C, H, W] of stride 4."""
        return [self.layers(maps[-1])]


class TopDownMap(nn.Module):
    """A feature pyramid's top-down pathway, of which only the finest map is kept (Lin et al., 2017, figure 3)."""

    def __init__(
        self,
        channels: Sequence[int],
        widths: Sequence[int],
        make: MakeConv,
        settings: ConvSettings,
        *,
        interpolation: Interpolation = "nearest",
    ) -> None:
        """Build the pathway.

        Args:
            channels: Channels of the backbone's maps, finest first.
            widths: Channels of the merged maps, finest first, one fewer.
            make: Makes the convolution that smooths a merged map.
            settings: Of the 1×1 convolutions, and of normalization and activation.
            interpolation: How a map is enlarged.
        """
        super().__init__()
        self.interpolation = interpolation
        self.laterals = nn.ModuleList(
            make_conv(into, out, 1, settings.kernel, bias=True)
            for into, out in zip(channels, (*widths, widths[-1]), strict=True)
        )
        finer = (widths[0], *widths[:-1])
        self.smooth = nn.ModuleList(
            ConvNormAct(make(into, out), make_norm(out, settings.norm), make_activation(settings.activation))
            for into, out in zip(widths, finer, strict=True)
        )
        self.channels = (widths[0],)

    def forward(self, maps: list[Tensor]) -> list[Tensor]:
        """Return one map [B, C, H, W], of the size of the finest."""
        *finer, top = (lateral(features) for lateral, features in zip(self.laterals, maps, strict=True))
        for features, smooth in zip(reversed(finer), reversed(list(self.smooth)), strict=True):
            top = smooth(features + F.interpolate(top, scale_factor=2, mode=self.interpolation))
        return [top]


# The heads of a stage that some configurations lack.
_FURTHER = ("embeddings", "surface", "identities")
_OPTIONAL = ("sizes", "offsets", "masks", "temporal_offsets", *_FURTHER)


class KeypointHeads(nn.Module):
    """The heads of a keypoint task."""

    def __init__(
        self, name: str, heatmap: MapHead, regression: MapHead, offsets: MapHead, depths: MapHead | None = None
    ) -> None:
        """Assemble the heads; `name` is the task's."""
        super().__init__()
        self.name = name
        self.heatmap, self.regression, self.offsets, self.depths = heatmap, regression, offsets, depths

    def forward(self, features: Tensor) -> KeypointMaps:
        """Return the task's maps for features [B, C, H, W]."""
        depths = None if self.depths is None else self.depths(features)
        return KeypointMaps(self.heatmap(features), self.regression(features), self.offsets(features), depths)


class SurfaceHeads(nn.Module):
    """The heads of DensePose."""

    def __init__(self, parts: MapHead, coordinates: MapHead) -> None:
        """Assemble the heads."""
        super().__init__()
        self.parts, self.coordinates = parts, coordinates

    def forward(self, features: Tensor) -> SurfaceMaps:
        """Return the maps for features [B, C, H, W]."""
        return SurfaceMaps(self.parts(features), self.coordinates(features))


class EmbeddingHeads(nn.Module):
    """The heads that DeepMAC's masks are predicted from."""

    def __init__(self, instances: MapHead, pixels: MapHead) -> None:
        """Assemble the heads."""
        super().__init__()
        self.instances, self.pixels = instances, pixels

    def forward(self, features: Tensor) -> EmbeddingMaps:
        """Return the maps for features [B, C, H, W]."""
        return EmbeddingMaps(self.instances(features), self.pixels(features))


class StageHeads(nn.Module):
    """The heads of one stage."""

    embeddings: EmbeddingHeads | None
    surface: SurfaceHeads | None
    identities: MapHead | None

    def __init__(
        self,
        centers: MapHead,
        sizes: MapHead | None = None,
        offsets: MapHead | None = None,
        keypoints: Sequence[KeypointHeads] = (),
        masks: MapHead | None = None,
        temporal_offsets: MapHead | None = None,
        further: Mapping[str, nn.Module] | None = None,
    ) -> None:
        """Assemble the heads; `further` has those of `embeddings`, `surface` and `identities`, by these names."""
        super().__init__()
        self.centers, self.sizes, self.offsets = centers, sizes, offsets
        self.keypoints = nn.ModuleList(keypoints)
        self.masks, self.temporal_offsets = masks, temporal_offsets
        for name in _FURTHER:
            self.add_module(name, (further or {}).get(name))

    def forward(self, features: Tensor) -> StageMaps:
        """Return the stage's maps for features [B, C, H, W]."""
        optional = {name: getattr(self, name) for name in _OPTIONAL}
        return StageMaps(
            self.centers(features),
            keypoints=tuple(heads(features) for heads in self.keypoints),
            **{name: head(features) for name, head in optional.items() if head is not None},
        )


class ReversedChannels(nn.Module):
    """Blue, green, red from red, green, blue."""

    def forward(self, inputs: Tensor) -> Tensor:
        """Return the same shape [B, C, H, W]."""
        return inputs.flip(1)


class CenterNet(Network):
    """Backbone, neck, and for each map of stride 4 that they give a stage of heads."""

    def __init__(
        self,
        backbone: Backbone,
        neck: nn.Module,
        stages: Sequence[StageHeads],
        *,
        channel_order: nn.Module,
        pad_to_multiple: int,
        deep_masks: DeepMaskPredictor | None = None,
        identity_classifier: IdentityClassifier | None = None,
    ) -> None:
        """Assemble the network.

        Args:
            neck: The backbone's maps to one map [B, C, H, W] of stride 4 per stage.
            stages: The heads of each stage.
            channel_order: From red, green, blue to the order in which the backbone reads them.
            pad_to_multiple: Inputs are padded below and right to its multiples.
            deep_masks: Predicts DeepMAC's masks; None without.
            identity_classifier: Classifies embeddings of individuals in training, for all stages; None without.
        """
        super().__init__()
        self.backbone, self.neck = backbone, neck
        self.stages = nn.ModuleList(stages)
        self.channel_order, self.pad_to_multiple = channel_order, pad_to_multiple
        self.deep_masks, self.identity_classifier = deep_masks, identity_classifier
        of_classes = any(heads.masks is not None for heads in stages)
        self.learns_masks = of_classes or (deep_masks is not None and deep_masks.learns_masks)

    @property
    def parts(self) -> Parts:
        """The network's modules by role."""
        outputs = {
            f"stages.{number}.{name}": head
            for number, heads in enumerate(self.stages)
            for name, head in heads.named_children()
            if isinstance(head, MapHead)
        }
        of_classes = [name for name in outputs if name.endswith((".centers", ".masks"))]
        return Parts(
            backbone=("backbone",),
            beyond_classifier=tuple(f"backbone.{name}" for name in self.backbone.beyond_classifier),
            necks=("neck",),
            heads=(
                *(f"stages.{number}" for number in range(len(self.stages))),
                *(("deep_masks",) if self.deep_masks is not None else ()),
                *(("identity_classifier",) if self.identity_classifier is not None else ()),
            ),
            class_outputs=tuple(of_classes),
            box_outputs=tuple(name for name in outputs if name.endswith((".sizes", ".offsets"))),
            class_layers=tuple(ClassLayer(f"{name}.output", outputs[name].channels) for name in of_classes),
        )

    def begin_step(self, step: int) -> None:
        """Note the number of a training step, with which DeepMAC's losses warm up."""
        if self.deep_masks is not None:
            self.deep_masks.current_step.fill_(step)

    def feature_maps(self, inputs: Tensor) -> list[Tensor]:
        """Return one map [B, C, H, W] of stride 4 per stage."""
        padded = padded_to_multiple(self.channel_order(inputs), self.pad_to_multiple)
        maps: list[Tensor] = self.neck(self.backbone(padded))
        return maps

    def compute_embeddings(self, inputs: Tensor) -> list[EmbeddingMaps]:
        """Return the maps that DeepMAC's masks are predicted from, of every stage."""
        maps = self.feature_maps(inputs)
        return [heads.get_submodule("embeddings")(features) for heads, features in zip(self.stages, maps, strict=True)]

    def forward(self, inputs: Tensor, true_sizes: Tensor, targets: Targets | None = None) -> CenterPredictions:
        """Return the maps of every stage, and what else is predicted for targets, if any.

        DeepMAC also predicts masks of detections, outside of training.
        """
        maps = self.feature_maps(inputs)
        stages = tuple(heads(features) for heads, features in zip(self.stages, maps, strict=True))
        if self.identity_classifier is not None and targets is not None:
            stages = tuple(_classified(stage, targets, self.identity_classifier) for stage in stages)
        predictions = CenterPredictions(stages, true_sizes, (inputs.shape[2], inputs.shape[3]))
        if self.deep_masks is None:
            return predictions
        masks = self.deep_masks.of_detections(predictions)
        if targets is not None:
            whole = padded_to_multiple(inputs, self.pad_to_multiple)
            masks = self.deep_masks.of_objects(masks, predictions, maps, whole, targets, self.compute_embeddings)
        return replace(predictions, deep_masks=masks)


def _classified(maps: StageMaps, targets: Targets, classifier: IdentityClassifier) -> StageMaps:
    """Return a stage's maps with the logits of targets' identities."""
    if maps.identities is None:
        raise ValueError("a stage lacks the head of identities")
    centers = CellBoxes.of_pixels(targets.boxes).centers
    embeddings = read(maps.identities, center_cells(centers, grid_shape(maps.identities)))
    return replace(maps, identity_logits=classifier(embeddings))
