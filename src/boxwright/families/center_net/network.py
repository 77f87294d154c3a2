"""CenterNet: Objects as Points (Zhou et al., 2019).

An object is a peak of its class's heatmap, at its center; there other maps hold its size, its keypoints and the rest.

Dimensions: B batch, C channels, H W grid of cells.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

from torch import Tensor, nn

from boxwright.families.center_net.cells import CellBoxes, center_cells, grid_of, read
from boxwright.families.center_net.deep_mask_predictor import DeepMaskPredictor
from boxwright.families.center_net.heads import IdentityClassifier, MapHead
from boxwright.families.center_net.predictions import (
    CenterPredictions,
    EmbeddingMaps,
    KeypointMaps,
    StageMaps,
    SurfaceMaps,
)
from boxwright.nn.backbones.backbone import Backbone
from boxwright.nn.network import ClassLayer, Network, Parts
from boxwright.nn.ops.padding import padded_to_multiple
from boxwright.types import Targets

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

    def embeddings_of(self, inputs: Tensor) -> list[EmbeddingMaps]:
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
            masks = self.deep_masks.of_objects(masks, predictions, maps, whole, targets, self.embeddings_of)
        return replace(predictions, deep_masks=masks)


def _classified(maps: StageMaps, targets: Targets, classifier: IdentityClassifier) -> StageMaps:
    """Return a stage's maps with the logits of targets' identities."""
    if maps.identities is None:
        raise ValueError("a stage lacks the head of identities")
    centers = CellBoxes.of_pixels(targets.boxes).centers
    embeddings = read(maps.identities, center_cells(centers, grid_of(maps.identities)))
    return replace(maps, identity_logits=classifier(embeddings))
