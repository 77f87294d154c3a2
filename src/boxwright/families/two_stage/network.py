"""Faster R-CNN (Ren et al., 2015) and Mask R-CNN (He et al., 2017): proposals, then a classifier of each.

A head predicts objectness and boxes, from which proposals are selected (section 3.1). Training samples some for the
second stage (section 3.2; TF's FasterRCNNMetaArch).

Dimensions: B batch, C channels, H W image, A anchors, R regions of an image, L levels, S sampled regions, G groundtruth
boxes (padded), K foreground classes, D detections.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Literal, Protocol

import torch
from torch import Tensor, nn

from boxwright.families.two_stage.context_attention import ContextAttention
from boxwright.families.two_stage.second_stage import BoxClassifier, CornerCrop, FinalOutputs, SecondStage
from boxwright.families.two_stage.third_stage import MaskPredictor
from boxwright.nn.anchor_grids import AnchorGenerator
from boxwright.nn.anchor_layer import AnchorLayer
from boxwright.nn.criteria.example_selection import MinibatchSampler
from boxwright.nn.criteria.target_assigner import TargetAssigner
from boxwright.nn.heads.convolutional import AnchorHead
from boxwright.nn.layers import padded_to_multiple
from boxwright.nn.network import Backbone, ClassLayer, Network, Parts
from boxwright.nn.ops.boxes import BoxCoder, clip_boxes
from boxwright.nn.postprocessing.nms import Nms, PerClass
from boxwright.types import AnchorPredictions, PaddedDetections, Proposals, Targets, TwoStagePredictions
from boxwright.types.context_features import ContextFeatures


class RegionProposalHead(AnchorHead):
    """One convolution for all levels, then box codes and two class logits for each anchor."""

    def __init__(self, convolve: nn.Module, predict: AnchorHead, levels: int) -> None:
        """Assemble the head.

        Args:
            predict: From its maps to codes and logits; columns are background, object.
            levels: How many maps there are.
        """
        super().__init__()
        convolve.calls_per_pass = levels  # type: ignore[assignment]  # what counts updates of statistics reads it
        self.convolve, self.predict, self.output = convolve, predict, predict.output

    @property
    def class_layers(self) -> tuple[str, ...]:
        """Empty: objectness has no classes."""
        return ()

    def forward(self, features: list[Tensor]) -> tuple[Tensor, Tensor]:
        """Return box codes [B, A, 4] and class logits [B, A, 2], level by level, row by row."""
        codes, logits = self.predict([self.convolve(level) for level in features])
        return codes, logits


@dataclass(frozen=True)
class RegionSampler:
    """Sample proposals with a maximum fraction of positives, keeping their order.

    Attributes:
        add_groundtruth: Whether groundtruth boxes are added to the proposals.
    """

    assigner: TargetAssigner
    sampler: MinibatchSampler
    add_groundtruth: bool = False

    @torch.no_grad()
    def __call__(self, proposals: Proposals, targets: Targets) -> Proposals:
        """Return S proposals per image, and which of them are positive."""
        if self.add_groundtruth:
            proposals = with_groundtruth(proposals, targets)
        assigned = self.assigner(proposals.boxes, targets)
        # Padding is no candidate, nor is what matches a groundtruth box without weight.
        candidates = proposals.valid & (assigned.class_weights.mean(-1) > 0)
        positive = assigned.match >= 0
        chosen = self.sampler(positive, candidates)
        count = min(self.sampler.size, chosen.shape[1])
        # A stable sort instead of `nonzero`, whose shape depends on data.
        index = (~chosen).byte().argsort(dim=1, stable=True)[:, :count]
        taken = chosen.gather(1, index)

        def picked(values: Tensor) -> Tensor:
            return torch.where(taken, values.gather(1, index), 0)

        boxes = proposals.boxes.gather(1, index[..., None].expand(-1, -1, 4)) * taken[..., None]
        return Proposals(boxes, picked(proposals.scores), taken, taken & positive.gather(1, index))


def with_groundtruth(proposals: Proposals, targets: Targets) -> Proposals:
    """Return the proposals followed by the groundtruth boxes with weight, with score 1."""
    valid = targets.valid & (targets.weights > 0)
    return Proposals(
        torch.cat([proposals.boxes, targets.boxes * valid[..., None]], dim=1),
        torch.cat([proposals.scores, valid.to(proposals.scores)], dim=1),
        torch.cat([proposals.valid, valid], dim=1),
    )


@dataclass(frozen=True)
class RegionProposals:
    """Suppress among all anchors, then clip to the image; boxes left without area are not replaced (TF's rule)."""

    box_coder: BoxCoder
    nms: Nms
    nms_in_training: Nms

    @torch.no_grad()
    def __call__(self, predictions: AnchorPredictions, true_sizes: Tensor, *, training: bool) -> Proposals:
        """Return the proposals of a batch, clipped to the true sizes [B, 2]."""
        nms = self.nms_in_training if training else self.nms
        boxes = self.box_coder.decode(predictions.box_codes.float(), predictions.anchors)
        # TF proposes by probabilities, which tie at 1 where logits differ; the lower anchor then comes first.
        scores = predictions.class_logits.float().softmax(-1)[..., 1:]
        return _proposals(nms(boxes, scores, true_sizes.to(boxes)))


@dataclass(frozen=True)
class LevelProposals:
    """Select the best of each level, clip to the image, then suppress (as in Detectron, kerod and torchvision).

    Attributes:
        iou_threshold: Boxes that overlap a better one by more are dropped.
        per_level: The maximum per level; (in training, otherwise).
        most: The maximum of proposals per image, R; (in training, otherwise).
        across_levels: Whether boxes suppress boxes of all levels, or only of their own.
        score: "logit": the object's logit, with those below 0 never proposed; or "probability".
    """

    box_coder: BoxCoder
    iou_threshold: float = 0.7
    per_level: tuple[int, int] = (2000, 1000)
    most: tuple[int, int] = (2000, 1000)
    across_levels: bool = False
    score: Literal["logit", "probability"] = "probability"

    @torch.no_grad()
    def __call__(self, predictions: AnchorPredictions, true_sizes: Tensor, *, training: bool) -> Proposals:
        """Return the proposals of a batch, clipped to the true sizes [B, 2]."""
        per_level, most = (counts[0] if training else counts[1] for counts in (self.per_level, self.most))
        logits = predictions.class_logits.float()
        scores = logits[..., 1] if self.score == "logit" else logits.softmax(-1)[..., 1]
        # In the order of the probabilities, which in float32 are 1 for all large differences, and so tie.
        rank = scores if self.score == "logit" else logits[..., 1] - logits[..., 0]
        sizes_of_levels = predictions.level_sizes or (scores.shape[1],)
        chosen, levels = _best_of_levels(rank, sizes_of_levels, per_level)
        # Decoded after the choice: a few thousand boxes instead of hundreds of thousands.
        anchors = predictions.anchors[chosen]
        codes = predictions.box_codes.float().gather(1, chosen[..., None].expand(-1, -1, 4))
        sizes = true_sizes.to(codes)
        boxes = clip_boxes(self.box_coder.decode(codes, anchors), sizes[:, :1], sizes[:, 1:])
        scores = scores.gather(1, chosen)[..., None]
        if self.across_levels:
            # kerod keeps boxes that clipping left without area.
            return _proposals(Nms(PerClass(self.iou_threshold, most), 0.0, most, outside="keep")(boxes, scores, sizes))
        # With suppression in rounds this took a step of Faster R-CNN with eight images, on an H200, from 1.9 times
        # torchvision's time to 0.76.
        if boxes.is_cuda and not torch.compiler.is_compiling():
            counts = [min(per_level, size) for size in sizes_of_levels]
            return suppressed_by_level(boxes, scores[..., 0], sizes, counts, self.iou_threshold, most)
        of_level = levels[:, None] == torch.arange(len(sizes_of_levels), device=levels.device)
        columns = torch.where(of_level, scores, -torch.inf)
        # The threshold also accepts a probability of 0, and boxes without area take no place, as in torchvision.
        return _proposals(Nms(PerClass(self.iou_threshold, per_level), -1.0, most)(boxes, columns, sizes))


def _best_of_levels(scores: Tensor, level_sizes: Sequence[int], count: int) -> tuple[Tensor, Tensor]:
    """Return the indices int64 [B, n] of the best anchors of each level, level by level, and the levels [n]."""
    indices, levels, first = [], [], 0
    for number, size in enumerate(level_sizes):
        best = scores[:, first : first + size].topk(min(count, size), dim=1).indices
        indices.append(first + best)
        levels.append(torch.full((best.shape[1],), number, device=scores.device))
        first += size
    return torch.cat(indices, dim=1), torch.cat(levels)


def suppressed_by_level(
    boxes: Tensor, scores: Tensor, sizes: Tensor, counts: Sequence[int], iou_threshold: float, most: int
) -> Proposals:
    """Return the best boxes after suppression within each level, computed as if levels were images.

    A GPU compares all pairs of boxes that are suppressed together; five levels apart have a fifth of the pairs.

    Args:
        boxes: float32 [B, A, 4], clipped to the images, level by level.
        scores: float32 [B, A].
        sizes: float32 [B, 2]; the (height, width) of each image.
        counts: The number of boxes of each level.
        most: The maximum per image.
    """
    batch, levels, longest, pad = len(boxes), len(counts), max(counts), torch.nn.functional.pad
    of_levels = zip(boxes.split_with_sizes(counts, 1), scores.split_with_sizes(counts, 1), counts, strict=True)
    padded = [
        (pad(box, (0, 0, 0, longest - count)), pad(score, (0, longest - count), value=-torch.inf))
        for box, score, count in of_levels
    ]
    boxes, scores = (torch.stack(values, 1) for values in zip(*padded, strict=True))
    # As in the general way below: a probability of 0 passes, the padding's minus infinity does not.
    nms = Nms(PerClass(iou_threshold, longest), -1.0, longest)
    kept = nms(boxes.flatten(0, 1), scores.flatten(0, 1)[..., None], sizes.repeat_interleave(levels, 0))
    ranked = torch.where(kept.valid, kept.scores, -torch.inf).view(batch, -1)
    rows = ranked.topk(min(most, ranked.shape[1]), 1).indices
    # Later stages have one shape, whatever the number of anchors.
    missing = most - rows.shape[1]
    return Proposals(
        pad(kept.boxes.view(batch, -1, 4).gather(1, rows[..., None].expand(-1, -1, 4)), (0, 0, 0, missing)),
        pad(kept.scores.view(batch, -1).gather(1, rows), (0, missing)),
        pad(kept.valid.view(batch, -1).gather(1, rows), (0, missing)),
    )


def _proposals(detections: PaddedDetections) -> Proposals:
    return Proposals(detections.boxes, detections.scores, detections.valid, complete=detections.complete)


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
