"""D-FINE's decoder: queries attend to each other and to the maps, and refine distributions of their boxes' sides.

Modules have the names of the published weights, which thereby load by name.

Deformable attention (Zhu et al., 2021): each query reads a few places of each map, wherever it likes.

The queries of D-FINE's decoder: the likeliest cells of the maps, and in training disturbed objects.

Dimensions: B batch, Q queries, D width, M heads, P taps of all levels together, T cells of all levels together, N + 1
bins of a distance, c channels of a head, L levels, K classes. Boxes are center x, center y, width, height, in 0..1 of
the input.
"""

from __future__ import annotations

import math
from collections import OrderedDict
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from boxwright.families.d_fine.boxes import bin_distances, boxes_of_distances, expected_distances, logit
from boxwright.families.d_fine.encoder import ConvNorm, SelfAttention
from boxwright.families.d_fine.predictions import DecoderOutputs, NoisyQueries, QueryOutputs


def deformable_attention(
    values: Tensor, grids: Sequence[tuple[int, int]], taps: Sequence[int], locations: Tensor, weights: Tensor
) -> Tensor:
    """Return the weighted sum of what each query's taps read, [B, Q, M · c].

    Args:
        values: [B, T, M · c]; the cells of all levels, row by row.
        grids: (height, width) of each level.
        taps: Of each level, how many places a head reads; their sum is P.
        locations: float32 [B, Q, M, P, 2]; x and y in 0..1 of the map. Values are interpolated bilinearly between
            pixel centers, and are 0 outside.
        weights: [B, Q, M, P].
    """
    batch, queries, heads = weights.shape[:3]
    maps = values.unflatten(-1, (heads, -1)).permute(0, 2, 3, 1).flatten(0, 1).split([h * w for h, w in grids], -1)
    # Queries last: a sum over few taps in the innermost dimension took three times as long with its gradient on a CPU.
    places = (2 * locations - 1).permute(0, 2, 3, 1, 4).flatten(0, 1).split(list(taps), 1)
    shares = weights.permute(0, 2, 3, 1).flatten(0, 1)[:, None].split(list(taps), 2)
    read = [
        F.grid_sample(level.unflatten(-1, grid).float(), place.float(), "bilinear", "zeros", align_corners=False)
        for level, grid, place in zip(maps, grids, places, strict=True)
    ]
    summed = torch.stack([(sampled * share).sum(2) for sampled, share in zip(read, shares, strict=True)]).sum(0)
    return summed.view(batch, -1, queries).transpose(1, 2).to(values.dtype)


def star_directions(heads: int, taps: Sequence[int]) -> Tensor:
    """Return initial offsets float32 [M, P, 2]: head m looks along angle 2πm / M, and its taps ever farther."""
    angles = torch.arange(heads, dtype=torch.float32) * (2 * torch.pi / heads)
    directions = torch.stack([angles.cos(), angles.sin()], -1)
    directions = directions / directions.abs().amax(-1, keepdim=True)
    steps = torch.cat([torch.arange(1, count + 1, dtype=torch.float32) for count in taps])
    return directions[:, None] * steps[:, None]


Grids = Sequence[tuple[int, int]]

# A hundredth of all queries is taken for an object at first, as in RetinaNet.
CLASS_BIAS = -math.log(99)
# What float16 holds; as published.
_LARGEST = 65504.0
_LARGEST_POSITION = 10.0
# How many of the likeliest bins of each side judge the quality of a box, and the width of the network that does.
_LIKELIEST, _QUALITY_WIDTH = 4, 64
# How far a tap's offset of 1 is from the reference, relative to its box's half.
_OFFSET_SCALE = 0.5


@dataclass(frozen=True)
class DecoderLayout:
    """The shape of a decoder.

    Attributes:
        depth: Width of queries.
        taps: Of each level, finest first, how many places a head reads.
        feedforward: Width of the layers' feed-forward networks.
        activation: Builds the nonlinearity of feed-forward networks, positions, boxes and quality.
        bins: N, an even number.
        scale: `reg_scale`: distances are in shares 1 / scale of the frame's sides.
        up: Half the largest distance, in shares of the frame's sides.
    """

    depth: int
    num_layers: int
    taps: tuple[int, ...]
    feedforward: int
    activation: type[nn.Module] = nn.ReLU
    heads: int = 8
    bins: int = 32
    scale: float = 4.0
    up: float = 0.5


class Mlp(nn.Module):
    """Linear layers with an activation between them."""

    def __init__(self, widths: Sequence[int], activation: type[nn.Module], *, zero_last: bool = False) -> None:
        """Build layers from each width to the next; with `zero_last`, the last one starts at 0."""
        super().__init__()
        self.layers = nn.ModuleList(nn.Linear(a, b) for a, b in pairwise(widths))
        self.act = activation()
        if zero_last:
            last = self.layers[-1]
            nn.init.zeros_(last.get_parameter("weight"))
            nn.init.zeros_(last.get_parameter("bias"))

    def forward(self, inputs: Tensor) -> Tensor:
        """Return [..., the last width]."""
        for layer in self.layers[:-1]:
            inputs = self.act(layer(inputs))
        outputs: Tensor = self.layers[-1](inputs)
        return outputs


class DeformableAttention(nn.Module):
    """Cross-attention to a few places of each map around a query's box; without a projection of values."""

    scales: Tensor

    def __init__(self, layout: DecoderLayout) -> None:
        """Build the layers; taps start on a star around the box's center."""
        super().__init__()
        self.heads, self.taps = layout.heads, layout.taps
        count = layout.heads * sum(layout.taps)
        self.sampling_offsets = nn.Linear(layout.depth, 2 * count)
        self.attention_weights = nn.Linear(layout.depth, count)
        scales = [1 / taps for taps in layout.taps for _ in range(taps)]
        self.register_buffer("scales", torch.tensor(scales)[:, None], persistent=False)
        for parameter in (self.sampling_offsets.weight, *self.attention_weights.parameters()):
            nn.init.zeros_(parameter)
        with torch.no_grad():
            self.sampling_offsets.bias.copy_(star_directions(layout.heads, layout.taps).flatten())

    def forward(self, queries: Tensor, references: Tensor, memory: Tensor, grids: Grids) -> Tensor:
        """Return [B, Q, D] for queries [B, Q, D], boxes [B, Q, 4], and maps [B, T, D] of the given sizes."""
        offsets = self.sampling_offsets(queries).float().unflatten(-1, (self.heads, -1, 2))
        weights = self.attention_weights(queries).float().unflatten(-1, (self.heads, -1)).softmax(-1)
        boxes = references[:, :, None, None]
        locations = boxes[..., :2] + offsets * self.scales * boxes[..., 2:] * _OFFSET_SCALE
        return deformable_attention(memory, grids, self.taps, locations, weights)


class Gateway(nn.Module):
    """A learned mixture of two inputs, then normalized."""

    def __init__(self, width: int) -> None:
        """Build the layers; both inputs start with half a share."""
        super().__init__()
        self.gate, self.norm = nn.Linear(2 * width, 2 * width), nn.LayerNorm(width)
        nn.init.zeros_(self.gate.weight)
        nn.init.zeros_(self.gate.bias)

    def forward(self, first: Tensor, second: Tensor) -> Tensor:
        """Return [B, Q, D]."""
        of_first, of_second = self.gate(torch.cat([first, second], -1)).sigmoid().chunk(2, -1)
        outputs: Tensor = self.norm(of_first * first + of_second * second)
        return outputs


class DecoderLayer(nn.Module):
    """Attention among queries, to the maps, and a feed-forward network, each with its normalization after it."""

    def __init__(self, layout: DecoderLayout) -> None:
        """Build the layers."""
        super().__init__()
        self.self_attn, self.norm1 = SelfAttention(layout.depth, layout.heads), nn.LayerNorm(layout.depth)
        self.cross_attn, self.gateway = DeformableAttention(layout), Gateway(layout.depth)
        self.linear1 = nn.Linear(layout.depth, layout.feedforward)
        self.activation = layout.activation()
        self.linear2 = nn.Linear(layout.feedforward, layout.depth)
        self.norm3 = nn.LayerNorm(layout.depth)

    def forward(
        self,
        queries: Tensor,
        positions: Tensor,
        references: Tensor,
        memory: Tensor,
        grids: Grids,
        blocked: Tensor | None,
    ) -> Tensor:
        """Return [B, Q, D]; `blocked` as in `SelfAttention`."""
        queries = self.norm1(queries + self.self_attn(queries, positions, blocked))
        read = self.cross_attn(queries + positions, references, memory, grids)
        queries = self.gateway(queries, read)
        fed = queries + self.linear2(self.activation(self.linear1(queries)))
        outputs: Tensor = self.norm3(fed.clamp(-_LARGEST, _LARGEST))
        return outputs


class BoxQuality(nn.Module):
    """Raises or lowers all class logits of a query by how sure its distributions are."""

    def __init__(self, activation: type[nn.Module]) -> None:
        """Build the layers."""
        super().__init__()
        self.reg_conf = Mlp((4 * (_LIKELIEST + 1), _QUALITY_WIDTH, 1), activation, zero_last=True)

    def forward(self, logits: Tensor, distances: Tensor) -> Tensor:
        """Return logits [B, Q, K] for logits and distributions [B, Q, 4 · (N + 1)]."""
        shares = distances.unflatten(-1, (4, -1)).softmax(-1)
        # By their places: the converter for LiteRT has no top-k of which only values are used.
        likeliest = shares.gather(-1, shares.topk(_LIKELIEST, dim=-1).indices)
        outputs: Tensor = logits + self.reg_conf(
            torch.cat([likeliest, likeliest.mean(-1, keepdim=True)], -1).flatten(-2)
        )
        return outputs


class DecoderLayers(nn.Module):
    """The layers of a decoder, and the layer that scores the boxes of each."""

    def __init__(self, layout: DecoderLayout) -> None:
        """Build the layers."""
        super().__init__()
        self.layers = nn.ModuleList(DecoderLayer(layout) for _ in range(layout.num_layers))
        self.lqe_layers = nn.ModuleList(BoxQuality(layout.activation) for _ in range(layout.num_layers))


class DistributionDecoder(nn.Module):
    """Layers that refine the distributions of queries' boxes, and the heads of each."""

    up: Tensor
    reg_scale: Tensor

    def __init__(self, layout: DecoderLayout, num_classes: int) -> None:
        """Build the layers."""
        super().__init__()
        depth, codes = layout.depth, 4 * (layout.bins + 1)
        self.bins = layout.bins
        self.decoder = DecoderLayers(layout)
        self.query_pos_head = Mlp((4, 2 * depth, depth), layout.activation)
        self.pre_bbox_head = Mlp((depth, depth, depth, 4), layout.activation, zero_last=True)
        self.dec_score_head = nn.ModuleList(nn.Linear(depth, num_classes) for _ in range(layout.num_layers))
        self.dec_bbox_head = nn.ModuleList(
            Mlp((depth, depth, depth, codes), layout.activation, zero_last=True) for _ in range(layout.num_layers)
        )
        for head in self.dec_score_head:
            nn.init.constant_(head.get_parameter("bias"), CLASS_BIAS)
        # Buffers belong to the weights rather than to the configuration, as in the files of published weights.
        self.register_buffer("up", torch.tensor([layout.up]))
        self.register_buffer("reg_scale", torch.tensor([layout.scale]))

    def bin_distances(self) -> Tensor:
        """Return the distance that each bin stands for, float32 [N + 1]."""
        return bin_distances(self.reg_scale, self.up, self.bins)

    def forward(
        self, contents: Tensor, references: Tensor, memory: Tensor, grids: Grids, blocked: Tensor | None = None
    ) -> DecoderOutputs:
        """Return every set of outputs in training mode, else the last layer's.

        Args:
            contents: [B, Q, D].
            references: float32 [B, Q, 4]; boxes as logits, without a graph.
            memory: [B, T, D]; the cells of all maps.
            grids: (height, width) of each map.
            blocked: bool [Q, Q]; as in `SelfAttention`.
        """
        bins, boxes = self.bin_distances(), references.sigmoid()
        queries, before, distances = contents, torch.zeros_like(contents), torch.zeros(())
        frame, pre = boxes, None
        layer_outputs: list[QueryOutputs] = []
        for number, layer in enumerate(self.decoder.layers):
            positions = self.query_pos_head(boxes).clamp(-_LARGEST_POSITION, _LARGEST_POSITION)
            queries = layer(queries, positions, boxes, memory, grids, blocked)
            if number == 0:
                first = (self.pre_bbox_head(queries).float() + logit(boxes)).sigmoid()
                frame = first.detach()
                distances = torch.zeros_like(frame[..., :1])
                if self.training:
                    pre = QueryOutputs(self.dec_score_head[0](queries), first)
            distances = self.dec_bbox_head[number](queries + before.detach()).float() + distances
            refined = boxes_of_distances(frame, expected_distances(distances, bins), self.reg_scale)
            if self.training or number == len(self.decoder.layers) - 1:
                logits = self.decoder.lqe_layers[number](self.dec_score_head[number](queries), distances)
                layer_outputs.append(QueryOutputs(logits, refined, distances))
            before, boxes = queries, refined.detach()
        return DecoderOutputs(tuple(layer_outputs), frame, pre)


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

    def memory_of(self, maps: Sequence[Tensor]) -> tuple[Tensor, Grids]:
        """Return the cells of all maps, finest first, [B, T, D], and the maps' (height, width)."""
        projected = [project(features) for project, features in zip(self.input_proj, maps, strict=True)]
        grids = [(features.shape[-2], features.shape[-1]) for features in projected]
        return torch.cat([features.flatten(2).transpose(1, 2) for features in projected], 1), grids

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

    def with_noisy(
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
