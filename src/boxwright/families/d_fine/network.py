"""D-FINE: Redefine Regression Task in DETRs as Fine-grained Distribution Refinement (Peng et al., 2024).

A hybrid encoder (RT-DETR) makes the backbone's maps one depth: attention within the coarsest, convolutions between
maps. The likeliest cells of the maps become queries, which a decoder turns into classes and boxes: at most one per
object, so that nothing has to be suppressed. In training disturbed objects are further queries (DN-DETR, DINO). Modules
have the names of the published weights, which thereby load by name.

Dimensions: B batch, C channels, H W grid, N tokens, Q queries, D width, T cells of all levels together, G objects
(padded), K classes, R noisy queries. Boxes are center x, center y, width, height, in 0..1 of the input.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from boxwright.families.d_fine.decoder import (
    DecoderLayout,
    DecoderOutputs,
    Denoised,
    DFinePredictions,
    DistributionDecoder,
    NoisyQueries,
    QueryOutputs,
    logit,
)
from boxwright.families.d_fine.distillation import Distiller
from boxwright.nn.attention import CLASS_BIAS, Grids, Mlp, SelfAttention, flatten_maps
from boxwright.nn.backbones.hgnetv2 import NORM
from boxwright.nn.batch_norm import make_norm
from boxwright.nn.network import Backbone, ClassLayer, Network, Parts
from boxwright.nn.ops.boxes import from_corners, normalized
from boxwright.nn.uniforms import uniforms
from boxwright.types import Targets


class EncoderLayer(nn.Module):
    """A transformer's encoder layer, normalized after each sum, with GELU."""

    def __init__(self, width: int, heads: int, feedforward: int) -> None:
        """Build the layers."""
        super().__init__()
        self.self_attn = SelfAttention(width, heads)
        self.linear1, self.linear2 = nn.Linear(width, feedforward), nn.Linear(feedforward, width)
        self.norm1, self.norm2 = nn.LayerNorm(width), nn.LayerNorm(width)

    def forward(self, tokens: Tensor, positions: Tensor) -> Tensor:
        """Return [B, N, D]; positions broadcast to that."""
        tokens = self.norm1(tokens + self.self_attn(tokens, positions))
        outputs: Tensor = self.norm2(tokens + self.linear2(F.gelu(self.linear1(tokens))))
        return outputs


def sine_positions(height: int, width: int, channels: int, device: torch.device) -> Tensor:
    """Return positions of a grid's cells, row by row, float32 [height · width, channels].

    A quarter of the channels each has sine and cosine of the row, and sine and cosine of the column.
    """
    quarter = channels // 4
    steps = torch.arange(quarter, dtype=torch.float32, device=device) / quarter
    frequencies = 1.0 / 10000**steps
    rows, columns = (
        torch.arange(count, dtype=torch.float32, device=device)[:, None] * frequencies for count in (height, width)
    )
    of_rows = torch.cat([rows.sin(), rows.cos()], -1)[:, None].expand(-1, width, -1)
    of_columns = torch.cat([columns.sin(), columns.cos()], -1)[None].expand(height, -1, -1)
    return torch.cat([of_rows, of_columns], -1).flatten(0, 1)


@dataclass(frozen=True)
class EncoderLayout:
    """The shape of a hybrid encoder.

    Attributes:
        depth: Channels of every map that it returns.
        expansion: Width of the blocks between maps, relative to `depth`.
        repeats: Convolutions in a row within such a block.
        feedforward: Width of the attention layer's feed-forward network.
        heads: Of the attention layer.
    """

    depth: int
    expansion: float
    repeats: int
    feedforward: int
    heads: int = 8


class ConvNorm(nn.Module):
    """A convolution and batch normalization, and possibly SiLU."""

    def __init__(
        self,
        channels: int,
        out: int,
        kernel: int,
        stride: int = 1,
        *,
        activation: nn.Module | None = None,
        depthwise: bool = False,
    ) -> None:
        """Build the layers; without an activation there is none."""
        super().__init__()
        self.conv = nn.Conv2d(channels, out, kernel, stride, kernel // 2, groups=out if depthwise else 1, bias=False)
        self.norm = make_norm(out, NORM)
        self.act = activation or nn.Identity()

    def forward(self, inputs: Tensor) -> Tensor:
        """Return [B, out, H', W']."""
        outputs: Tensor = self.act(self.norm(self.conv(inputs)))
        return outputs


class RepeatedConv(nn.Module):
    """SiLU of a 3×3 and a 1×1 convolution together."""

    def __init__(self, channels: int) -> None:
        """Build the layers."""
        super().__init__()
        self.conv1, self.conv2 = ConvNorm(channels, channels, 3), ConvNorm(channels, channels, 1)

    def forward(self, inputs: Tensor) -> Tensor:
        """Return [B, C, H, W]."""
        return F.silu(self.conv1(inputs) + self.conv2(inputs))


class CrossStage(nn.Module):
    """Two paths side by side, one of them deep (CSP)."""

    def __init__(self, channels: int, out: int, repeats: int) -> None:
        """Build the layers."""
        super().__init__()
        self.conv1, self.conv2 = (ConvNorm(channels, out, 1, activation=nn.SiLU()) for _ in range(2))
        self.bottlenecks = nn.Sequential(*(RepeatedConv(out) for _ in range(repeats)))

    def forward(self, inputs: Tensor) -> Tensor:
        """Return [B, out, H, W]."""
        outputs: Tensor = self.bottlenecks(self.conv1(inputs)) + self.conv2(inputs)
        return outputs


class FusionBlock(nn.Module):
    """Two maps on top of each other into one (RepNCSPELAN4)."""

    def __init__(self, depth: int, hidden: int, repeats: int) -> None:
        """Build the layers for an input of twice the depth."""
        super().__init__()
        self.cv1 = ConvNorm(2 * depth, 2 * depth, 1, activation=nn.SiLU())
        self.cv2, self.cv3 = (
            nn.Sequential(CrossStage(into, hidden, repeats), ConvNorm(hidden, hidden, 3, activation=nn.SiLU()))
            for into in (depth, hidden)
        )
        self.cv4 = ConvNorm(2 * depth + 2 * hidden, depth, 1, activation=nn.SiLU())

    def forward(self, inputs: Tensor) -> Tensor:
        """Return [B, depth, H, W]."""
        halves = self.cv1(inputs).chunk(2, 1)
        third = self.cv2(halves[1])
        outputs: Tensor = self.cv4(torch.cat([*halves, third, self.cv3(third)], 1))
        return outputs


class AttentionStack(nn.Module):
    """The attention within one map; a stack of one layer, as in the published weights' names."""

    def __init__(self, layout: EncoderLayout) -> None:
        """Build the layer."""
        super().__init__()
        self.layers = nn.ModuleList([EncoderLayer(layout.depth, layout.heads, layout.feedforward)])

    def forward(self, inputs: Tensor) -> Tensor:
        """Return [B, C, H, W]."""
        channels, height, width = inputs.shape[1:]
        tokens: Tensor = inputs.flatten(2).transpose(1, 2)
        positions = sine_positions(height, width, channels, inputs.device)
        for layer in self.layers:
            tokens = layer(tokens, positions)
        outputs: Tensor = tokens.transpose(1, 2).unflatten(2, (height, width))
        return outputs


class Downsampling(nn.Sequential):
    """A pointwise and a depthwise convolution that halve a map, both without an activation."""

    def __init__(self, depth: int) -> None:
        """Build the layers."""
        super().__init__()
        self.add_module("cv1", ConvNorm(depth, depth, 1))
        self.add_module("cv2", ConvNorm(depth, depth, 3, 2, depthwise=True))


class HybridEncoder(nn.Module):
    """Maps of a backbone to as many of one depth: attention in the coarsest, then down and up again."""

    def __init__(self, channels: Sequence[int], layout: EncoderLayout) -> None:
        """Build the layers for maps of so many channels, finest first."""
        super().__init__()
        depth, between = layout.depth, len(channels) - 1
        hidden = round(layout.expansion * depth // 2)
        self.input_proj = nn.ModuleList(ConvNorm(count, depth, 1) for count in channels)
        self.encoder = nn.ModuleList([AttentionStack(layout)])
        self.lateral_convs = nn.ModuleList(ConvNorm(depth, depth, 1) for _ in range(between))
        self.downsample_convs = nn.ModuleList(nn.Sequential(Downsampling(depth)) for _ in range(between))
        self.fpn_blocks, self.pan_blocks = (
            nn.ModuleList(FusionBlock(depth, hidden, layout.repeats) for _ in range(between)) for _ in range(2)
        )

    def forward(self, maps: Sequence[Tensor]) -> tuple[list[Tensor], Tensor]:
        """Return one map [B, depth, H, W] for each, finest first; and the coarsest as the attention left it."""
        projected = [project(features) for project, features in zip(self.input_proj, maps, strict=True)]
        coarsest = attended = self.encoder[0](projected[-1])
        down: list[Tensor] = []  # coarsest first
        for finer, lateral, block in zip(projected[-2::-1], self.lateral_convs, self.fpn_blocks, strict=True):
            # What goes on upwards is the lateral map itself, not what it was made of.
            coarsest = lateral(coarsest)
            down.append(coarsest)
            coarsest = block(torch.cat([F.interpolate(coarsest, finer.shape[-2:], mode="nearest"), finer], 1))
        up = [coarsest]
        for coarser, halve, block in zip(reversed(down), self.downsample_convs, self.pan_blocks, strict=True):
            up.append(block(torch.cat([halve(up[-1]), coarser], 1)))
        return up, attended


# Side of a cell's initial box on the finest map, and how far inside the image it has to lie.
_CELL_SIDE, _MARGIN = 0.05, 0.01
# The logit of a cell that does not count: its sigmoid is 1 in float32.
_VOID = 1e4


class QuerySelection(nn.Module):
    """From maps to queries: their likeliest cells, and in training disturbed objects."""

    def __init__(self, channels: int, layout: DecoderLayout, num_classes: int, num_queries: int) -> None:
        """Build the layers for maps of so many channels each."""
        super().__init__()
        depth = layout.depth
        self.num_classes, self.num_queries = num_classes, num_queries
        self.input_proj = nn.ModuleList(
            ConvNorm(channels, depth, 1) if channels != depth else nn.Identity() for _ in layout.taps
        )
        self.enc_output = nn.Sequential(
            OrderedDict[str, nn.Module](proj=nn.Linear(depth, depth), norm=nn.LayerNorm(depth))
        )
        self.enc_score_head = nn.Linear(depth, num_classes)
        self.enc_bbox_head = Mlp((depth, depth, depth, 4), layout.activation, zero_last=True)
        # Row K is of padding, and stays 0.
        self.denoising_class_embed = nn.Embedding(num_classes + 1, depth, padding_idx=num_classes)
        nn.init.constant_(self.enc_score_head.bias, CLASS_BIAS)
        with torch.no_grad():
            nn.init.normal_(self.denoising_class_embed.weight[:-1])

    def project(self, maps: Sequence[Tensor]) -> tuple[Tensor, Grids]:
        """Return the cells of all maps, finest first, [B, T, D], and the maps' (height, width)."""
        return flatten_maps([project(features) for project, features in zip(self.input_proj, maps, strict=True)])

    def select(self, memory: Tensor, grids: Grids) -> tuple[Tensor, Tensor, QueryOutputs]:
        """Return contents [B, Q, D] and references float32 [B, Q, 4] of the likeliest cells, and these as detections.

        Q is `num_queries`, or the number of cells where there are fewer.

        Contents and references have no graph; references are boxes as logits.
        """
        cells, inside = cell_boxes(grids, memory.device)
        encoded = self.enc_output(memory * inside[:, None])
        logits = self.enc_score_head(encoded)
        count = min(self.num_queries, memory.shape[1])
        best = logits.amax(-1).topk(count, dim=1).indices
        contents, taken, start = (
            tensor.gather(1, best[..., None].expand(-1, -1, tensor.shape[-1]))
            for tensor in (encoded, logits, cells.expand(memory.shape[0], -1, -1))
        )
        references = self.enc_bbox_head(contents).float() + start
        return contents.detach(), references.detach(), QueryOutputs(taken, references.sigmoid())

    def prepend_noisy(
        self, contents: Tensor, references: Tensor, noisy: NoisyQueries | None
    ) -> tuple[Tensor, Tensor, Tensor | None]:
        """Return contents and references with noisy queries before them, and which query does not see which."""
        table = self.denoising_class_embed
        if noisy is None:
            # In the graph all the same: processes that exchange gradients wait for each weight's.
            return contents + 0 * table.weight.sum() if self.training else contents, references, None
        embedded = table(noisy.labels).to(contents.dtype)
        return torch.cat([embedded, contents], 1), torch.cat([noisy.references, references], 1), noisy.blocked


def cell_boxes(grids: Grids, device: torch.device) -> tuple[Tensor, Tensor]:
    """Return the initial box of each cell, as logits float32 [T, 4], and which count, bool [T].

    A cell's box is around its center, of a side that doubles from map to map; one near the border does not count.
    """
    parts = []
    for level, (height, width) in enumerate(grids):
        rows, columns = (torch.arange(count, dtype=torch.float32, device=device) for count in (height, width))
        y = ((rows + 0.5) / height)[:, None].expand(height, width)
        x = ((columns + 0.5) / width)[None].expand(height, width)
        side = torch.full_like(x, _CELL_SIDE * 2**level)
        parts.append(torch.stack([x, y, side, side], -1).flatten(0, 1))
    boxes = torch.cat(parts)
    inside = ((boxes > _MARGIN) & (boxes < 1 - _MARGIN)).all(-1)
    return torch.where(inside[:, None], (boxes / (1 - boxes)).log(), _VOID), inside


# Numbers drawn for each query: a chance, a class, four signs and four shifts.
_DRAWS = 10


@dataclass(frozen=True)
class ObjectNoise:
    """Disturbs labels and boxes; half the queries of a group have to find their object, half have to find none.

    Attributes:
        num_queries: How many objects there are in all groups together, at most: G in each.
        label_noise: Twice the share of labels that become a random class.
        box_noise: How far corners move, relative to half a side: less than that where the object has to be found, and
            once to twice that where it has not.
    """

    num_classes: int
    num_queries: int
    label_noise: float = 0.5
    box_noise: float = 1.0

    @torch.no_grad()
    def __call__(self, targets: Targets, size: tuple[int, int], num_queries: int) -> NoisyQueries:
        """Return the noisy queries of a batch; none of them for one without objects.

        What is drawn follows from the keys of the targets; without keys it is the same in each call.

        Args:
            targets: Boxes in pixels of the input.
            size: (height, width) of the input.
            num_queries: Queries that stand after the noisy ones.
        """
        batch, count = targets.labels.shape
        # By the padded number of objects, which parts of a batch share.
        groups = max(1, self.num_queries // max(count, 1))
        drawn = uniforms(targets.drawing_keys(), groups * 2 * count * _DRAWS).view(batch, groups, 2, count, _DRAWS)
        valid = targets.valid & (targets.weights > 0)
        if targets.annotated is not None:
            valid = valid & targets.annotated[:, None]
        shape = (batch, groups, 2, count)
        labels = self._labels(targets.labels[:, None, None].expand(shape), drawn)
        labels = torch.where(valid[:, None, None], labels, self.num_classes)
        boxes = self._boxes(normalized(targets.boxes, size)[:, None, None].expand(*shape, 4), drawn)
        numbers = torch.arange(count, device=labels.device)
        positives = torch.where(valid, numbers, -1)[:, None].expand(batch, groups, count)
        objects = torch.stack([positives, torch.full_like(positives, -1)], 2)
        return NoisyQueries(
            labels.flatten(1),
            logit(boxes).flatten(1, 3),
            objects.flatten(1),
            blocked_between(groups, 2 * count, num_queries, labels.device),
            groups,
        )

    def _labels(self, labels: Tensor, drawn: Tensor) -> Tensor:
        others = (drawn[..., 1] * self.num_classes).long().clamp(max=self.num_classes - 1)
        return torch.where(drawn[..., 0] < self.label_noise / 2, others, labels)

    def _boxes(self, corners: Tensor, drawn: Tensor) -> Tensor:
        """Return disturbed boxes as center x, center y, width, height."""
        sides = corners[..., 2:] - corners[..., :2]
        # Positives are shifted by 0 to 1, negatives by 1 to 2.
        shifts = drawn[..., 6:] + torch.arange(2, device=drawn.device)[:, None, None]
        signs = torch.where(drawn[..., 2:6] < 0.5, -1.0, 1.0)
        moved = corners + signs * shifts * torch.cat([sides, sides], -1) * (0.5 * self.box_noise)
        return from_corners(moved.clamp(0, 1)).abs()


def blocked_between(groups: int, length: int, queries: int, device: torch.device) -> Tensor:
    """Return which query does not see which, bool [R + Q, R + Q], of groups of a length and the queries after them.

    Groups do not see each other, and ordinary queries, which would learn the answer from them, see none.
    """
    noisy = torch.arange(groups * length, device=device) // length
    group = torch.cat([noisy, torch.full((queries,), groups, device=device)])
    return (group[:, None] != group) & (group < groups)


class DFine(Network):
    """Backbone, hybrid encoder, and the decoder of queries."""

    def __init__(
        self,
        backbone: Backbone,
        encoder: HybridEncoder,
        queries: QuerySelection,
        decoder: DistributionDecoder,
        denoiser: ObjectNoise | None = None,
        distiller: Distiller | None = None,
    ) -> None:
        """Assemble the network.

        Args:
            denoiser: In training, makes further queries of the targets.
            distiller: In training, compares the coarsest map with a teacher's.
        """
        super().__init__()
        self.backbone, self.encoder, self.queries, self.decoder = backbone, encoder, queries, decoder
        self.denoiser, self.distiller = denoiser, distiller
        self.most_objects = queries.num_queries

    @property
    def parts(self) -> Parts:
        """The network's modules by role."""
        columns, layers = self.queries.num_classes, range(len(self.decoder.dec_score_head))
        scores = ("queries.enc_score_head", *(f"decoder.dec_score_head.{number}" for number in layers))
        embedding = "queries.denoising_class_embed"
        return Parts(
            backbone=("backbone",),
            beyond_classifier=tuple(f"backbone.{name}" for name in self.backbone.beyond_classifier),
            necks=("encoder",),
            heads=("queries", "decoder"),
            class_outputs=(*scores, embedding),
            box_outputs=("queries.enc_bbox_head", "decoder.pre_bbox_head", "decoder.dec_bbox_head"),
            class_layers=(
                *(ClassLayer(name, columns) for name in scores),
                ClassLayer(embedding, columns, after=1),
            ),
            training_only=() if self.distiller is None else ("distiller",),
        )

    def begin_step(self, step: int) -> None:
        """Take the number of the training step that begins, with which distillation's weight changes."""
        if self.distiller is not None:
            self.distiller.begin_step(step)

    def observe_gradients(self) -> None:
        """Look at a step's gradients, which distillation's weight follows."""
        if self.distiller is not None:
            self.distiller.observe(self.encoder.encoder.parameters(), self.parameters())

    def forward(self, inputs: Tensor, true_sizes: Tensor, targets: Targets | None = None) -> DFinePredictions:
        """Return predictions for inputs [B, C, H, W], whose sides are multiples of 32.

        In training mode they are of all layers, and of noisy queries too, if there are targets.
        """
        decoder, size = self.decoder, (inputs.shape[2], inputs.shape[3])
        maps, attended = self.encoder(self.backbone(inputs))
        memory, grids = self.queries.project(maps)
        contents, references, encoder = self.queries.select(memory, grids)
        noisy = None
        if self.training and targets is not None and self.denoiser is not None:
            noisy = self.denoiser(targets, size, contents.shape[1])
        contents, references, blocked = self.queries.prepend_noisy(contents, references, noisy)
        bins = decoder.bin_distances()
        outputs, denoised = decoder(contents, references, memory, grids, bins, blocked), None
        if noisy is not None:
            count = noisy.labels.shape[1]
            of_noisy, outputs = _split_queries(outputs, count)
            denoised = Denoised(of_noisy, noisy.objects, noisy.groups)
        imitation = None
        if self.training and targets is not None and self.distiller is not None:
            imitation = self.distiller(attended, inputs)
        return DFinePredictions(outputs, encoder, bins, decoder.reg_scale, size, denoised, imitation)


def _split_queries(outputs: DecoderOutputs, count: int) -> tuple[DecoderOutputs, DecoderOutputs]:
    """Return the outputs of the first queries, and of the others."""

    # Split, not sliced: the gradients of both parts are joined by one operation.
    def halves(tensor: Tensor) -> tuple[Tensor, ...]:
        parts: tuple[Tensor, ...] = tensor.split([count, tensor.shape[1] - count], 1)
        return parts

    def split_layer(layer: QueryOutputs) -> tuple[QueryOutputs, ...]:
        distances = (None, None) if layer.distances is None else halves(layer.distances)
        return tuple(map(QueryOutputs, halves(layer.logits), halves(layer.boxes), distances))

    layers = zip(*map(split_layer, outputs.layers), strict=True)
    pre = (None, None) if outputs.pre is None else split_layer(outputs.pre)
    first, others = map(DecoderOutputs, layers, halves(outputs.frame), pre)
    return first, others
