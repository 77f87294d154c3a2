"""Faster R-CNN (Ren et al., 2015) and Mask R-CNN (He et al., 2017): proposals, then a classifier of each.

Dimensions: B batch, C channels, H W image, A anchors, R regions of an image, K foreground classes, D detections.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Literal, Protocol

from torch import Tensor, nn

from boxwright.families.two_stage.context_attention import ContextAttention
from boxwright.families.two_stage.region_crop import CornerCrop
from boxwright.families.two_stage.region_proposal import RegionProposalHead
from boxwright.families.two_stage.second_stage import BoxClassifier, FinalOutputs, SecondStage
from boxwright.families.two_stage.third_stage import MaskPredictor
from boxwright.nn.anchor_grids import AnchorGenerator
from boxwright.nn.anchor_layer import AnchorLayer
from boxwright.nn.backbones.backbone import Backbone
from boxwright.nn.network import ClassLayer, Network, Parts
from boxwright.nn.ops.boxes import clip_boxes
from boxwright.nn.ops.padding import padded_to_multiple
from boxwright.types import AnchorPredictions, Proposals, Targets, TwoStagePredictions
from boxwright.types.context_features import ContextFeatures

Size = tuple[int, int]
# The treatment of anchors that cross the input's border: clipped to it; dropped in training and clipped otherwise;
# or kept unchanged.
Crossing = Literal["clip", "prune", "keep"]


class Propose(Protocol):
    """Selects proposals from the first stage's predictions."""

    def __call__(self, predictions: AnchorPredictions, true_sizes: Tensor, *, training: bool) -> Proposals:
        """Return the proposals of a batch, detached and clipped to the true sizes [B, 2]."""
        ...


class RegionProposalNetwork(nn.Module):
    """Predicts objectness and a box for every anchor."""

    def __init__(
        self, head: RegionProposalHead, anchors: AnchorGenerator, crossing: Crossing, propose: Propose
    ) -> None:
        """Assemble the stage.

        Args:
            head: Maps to box codes [B, A, 4] and logits of background and object, [B, A, 2].
            anchors: Lays anchors over those maps, in the order of the head's rows.
            crossing: The treatment of anchors that cross the input's border.
        """
        super().__init__()
        self.head, self.crossing, self.propose = head, crossing, propose
        self.anchors = AnchorLayer(anchors, finds_inside=crossing == "prune")

    def forward(self, maps: list[Tensor], input_size: Size) -> AnchorPredictions:
        """Return codes and logits of the anchors in use, with the anchors."""
        codes, logits = self.head(maps)
        anchors, level_sizes = self.anchors(maps, input_size)
        height, width = input_size
        if self.crossing == "prune" and self.training:
            inside, level_sizes = self.anchors.within(maps, input_size)
            codes, logits, anchors = codes.index_select(1, inside), logits.index_select(1, inside), anchors[inside]
        elif self.crossing != "keep":
            # At inference TF clips in any case. Anchors without area stay, as the head's rows, and propose nothing.
            anchors = clip_boxes(anchors, height, width)
        return AnchorPredictions(codes, logits, anchors, tuple(maps), input_size, level_sizes)


class FasterRCNN(Network):
    """Backbone, region proposal network, proposals, box classifier, masks: one, two or three stages."""

    def __init__(
        self,
        backbone: Backbone,
        neck: nn.Module,
        rpn: RegionProposalNetwork,
        second: SecondStage | None = None,
        masks: MaskPredictor | None = None,
        *,
        sample: Callable[[Proposals, Targets], Proposals] | None = None,
        final: FinalOutputs | None = None,
        pad_to_multiple: int = 1,
    ) -> None:
        """Assemble the network.

        Args:
            neck: Backbone maps to the maps that the RPN reads and that are cropped.
            rpn: Those maps to predictions for each anchor.
            second: Classifies each proposal; None for a network that only proposes.
            masks: Predicts masks; None for none.
            sample: Samples proposals in training; None for all.
            final: Additional outputs of each detection; None for none.
            pad_to_multiple: Inputs are padded with 0 below and right until both sides are multiples of it; anchors
                and regions are laid as if they were not.
        """
        super().__init__()
        self.backbone, self.neck, self.rpn, self.second, self.masks = backbone, neck, rpn, second, masks
        self.sample, self.final, self.pad_to_multiple = sample, final, pad_to_multiple
        self.learns_masks = masks is not None

    @property
    def attention(self) -> ContextAttention | None:
        """The attention to features of other images; None for a detector of single images."""
        return self.second.attention if isinstance(self.second, BoxClassifier) else None

    @property
    def drops_at_border(self) -> bool:
        """Whether a crop that ends at the input's border has values or zeros there by the last bit of its box."""
        crop = self.second.crop if isinstance(self.second, BoxClassifier) else None
        return isinstance(crop, CornerCrop) and not crop.fade

    @property
    def parts(self) -> Parts:
        """The network's modules by role; a second stage's features count as backbone, or with a pyramid as head."""
        second, masks = self.second, self.masks
        layers = () if second is None else second.class_layers
        own = tuple(ClassLayer(f"second.{layer.name}", layer.columns, layer.numbers) for layer in layers)
        has_mask_classes = masks is not None and masks.head.columns > 1
        if masks is not None and has_mask_classes:
            own += (ClassLayer("masks.head.predict", masks.head.columns),)
        # Half of a classifier without a pyramid; dense layers, which no classifier has, with one.
        tail = () if second is None else ("second.features",)
        pyramid = not isinstance(self.neck, nn.Identity)
        return Parts(
            backbone=("backbone", *(() if pyramid else tail)),
            beyond_classifier=tuple(f"backbone.{name}" for name in self.backbone.beyond_classifier),
            necks=("neck",) if pyramid else (),
            heads=(
                "rpn.head",
                *(tail if pyramid else ()),
                *(("second.head",) if second is not None else ()),
                *(("second.attention",) if self.attention is not None else ()),
                *(("masks.head",) if masks is not None else ()),
            ),
            class_outputs=(
                *(("second.head.classes",) if second is not None else ()),
                *(("masks.head.predict",) if has_mask_classes else ()),
            ),
            box_outputs=("second.head.boxes",) if second is not None else (),
            class_layers=own,
            additions=("second.attention",) if self.attention is not None else (),
        )

    def feature_maps(self, inputs: Tensor) -> list[Tensor]:
        """Return the maps that the RPN reads, finest first."""
        maps: list[Tensor] = self.neck(self.backbone(padded_to_multiple(inputs, self.pad_to_multiple)))
        return maps

    def first_stage(self, inputs: Tensor) -> AnchorPredictions:
        """Return the maps and each anchor's predictions, whose shapes depend on the inputs' shapes alone."""
        size = (inputs.shape[-2], inputs.shape[-1])
        first: AnchorPredictions = self.rpn(self.feature_maps(inputs), size)
        return first

    def forward(
        self,
        inputs: Tensor,
        true_sizes: Tensor,
        targets: Targets | None = None,
        context: ContextFeatures | None = None,
    ) -> TwoStagePredictions:
        """Return each stage's predictions; in training, proposals are sampled by the targets."""
        return self.later_stages(self.first_stage(inputs), true_sizes, targets, context)

    def later_stages(
        self,
        first: AnchorPredictions,
        true_sizes: Tensor,
        targets: Targets | None = None,
        context: ContextFeatures | None = None,
    ) -> TwoStagePredictions:
        """Return `forward`'s result from the first stage's predictions; by default, context is that of the targets."""
        if context is None and targets is not None:
            context = targets.context
        maps, size = list(first.feature_maps), first.input_size
        proposals = self.rpn.propose(first, true_sizes, training=self.training)
        if self.second is None:
            return TwoStagePredictions(first, proposals)
        if self.training and targets is not None and self.sample is not None:
            proposals = self.sample(proposals, targets)
        if not isinstance(self.second, BoxClassifier):
            return TwoStagePredictions(first, proposals, self.second(maps, proposals, size))
        predictions = TwoStagePredictions(first, proposals, self.second(maps, proposals, size, context))
        if self.masks is not None:
            predictions = replace(predictions, instances=self.masks(maps, predictions, self.second, true_sizes))
        if self.final is not None and not self.training:
            # Detected here too: features of the final boxes are outputs of the network, before any postprocessor runs.
            detections = self.final.detect(predictions, true_sizes)
            predictions = replace(predictions, final=self.second.at(maps, detections, size, self.final))
        return predictions
