"""D-FINE's decoder, and predictions: queries attend to each other and to the maps, and refine distributions of sides.

Each side of a frame moves by a distance: the mean of a softmax over bins that are dense around 0 and sparse far away
(section 4.1). Modules have the names of the published weights, which thereby load by name.

Dimensions: B batch, Q queries, R queries of denoising, D width, M heads, P taps of all levels together, T cells of all
levels together, N + 1 bins of a distance, N tokens, c channels of a head, L levels or decoder layers, K classes, G
objects (padded). Boxes are center x, center y, width, height, in 0..1 of the input; sides are left, top, right and
bottom.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor, nn

from boxwright.families.d_fine.distillation import Imitation
from boxwright.nn.attention import CLASS_BIAS, Grids, Mlp, SelfAttention, deformable_attention, star_directions


@dataclass(frozen=True)
class QueryOutputs:
    """One set of outputs: a class and a box of each query.

    Attributes:
        logits: float [B, Q, K].
        boxes: float32 [B, Q, 4].
        distances: float32 [B, Q, 4 · (N + 1)]; logits of the distances of left, top, right and bottom of the frame to
            the box's sides; None for sets without.
    """

    logits: Tensor
    boxes: Tensor
    distances: Tensor | None = None


@dataclass(frozen=True)
class DecoderOutputs:
    """The sets of outputs of one group of queries.

    Attributes:
        layers: Of each layer of the decoder; outside of training of the last alone.
        frame: float32 [B, Q, 4]; the boxes that all layers' distances refer to, without a graph.
        pre: The first layer's own boxes and plain logits, before any distances; None outside of training.
    """

    layers: tuple[QueryOutputs, ...]
    frame: Tensor
    pre: QueryOutputs | None = None

    @property
    def sets(self) -> tuple[QueryOutputs, ...]:
        """Every set of outputs: the layers', and the first layer's own where there are any."""
        return self.layers if self.pre is None else (*self.layers, self.pre)


@dataclass(frozen=True)
class NoisyQueries:
    """Objects whose labels and boxes are disturbed, as additional queries of the decoder.

    Attributes:
        labels: int64 [B, R]; K for padding.
        references: float32 [B, R, 4]; the disturbed boxes, as logits.
        objects: int64 [B, R]; the index of the object that a query has to find, in `Targets`; -1 for those that have to
            find none.
        blocked: bool [R + Q, R + Q]; True where a query (row) does not see another (column).
        groups: Into how many groups the queries are divided, each of which has every object once.
    """

    labels: Tensor
    references: Tensor
    objects: Tensor
    blocked: Tensor
    groups: int


@dataclass(frozen=True)
class Denoised:
    """What is predicted for noisy queries.

    Attributes:
        objects: As in `NoisyQueries`.
        groups: As in `NoisyQueries`.
    """

    outputs: DecoderOutputs
    objects: Tensor
    groups: int


@dataclass(frozen=True)
class DFinePredictions:
    """Predictions of D-FINE.

    Attributes:
        queries: Of the queries that detect.
        encoder: The cells of the maps that became queries, as detections of their own.
        bins: float32 [N + 1]; the distance that each bin stands for.
        scale: float32 [1]; in which share of the frame's sides distances are.
        input_size: (height, width) of the network's input.
        denoised: None outside of training, and without denoising.
        imitation: None outside of training, and without distillation.
    """

    queries: DecoderOutputs
    encoder: QueryOutputs
    bins: Tensor
    scale: Tensor
    input_size: tuple[int, int]
    denoised: Denoised | None = None
    imitation: Imitation | None = None

    @property
    def detections(self) -> QueryOutputs:
        """The outputs that detections are made of: the last layer's."""
        return self.queries.layers[-1]


_LEAST = 1e-5


def logit(shares: Tensor) -> Tensor:
    """Return the inverse of the sigmoid, between ±11.5: shares and their complements count as at least 1e-5."""
    shares = shares.clamp(0, 1)
    return shares.clamp(min=_LEAST).log() - (1 - shares).clamp(min=_LEAST).log()


def bin_distances(scale: Tensor, up: Tensor, count: int) -> Tensor:
    """Return the distance that each bin stands for, float32 [count + 1], rising from -2a to 2a with a = up · scale.

    Args:
        scale: float32 [1]; `reg_scale`.
        up: float32 [1].
        count: N, an even number.
    """
    largest = (up * scale).abs().float()
    powers = torch.arange(1, count // 2, dtype=torch.float32, device=scale.device)
    inner: Tensor = (largest + 1) ** (2 * powers / (count - 2)) - 1
    return torch.cat([-2 * largest, -inner.flip(0), torch.zeros_like(largest), inner, 2 * largest])


def expected_distances(logits: Tensor, bins: Tensor) -> Tensor:
    """Return the mean distance of each side, float32 [..., 4], of logits [..., 4 · (N + 1)] over bins [N + 1]."""
    shares = logits.float().unflatten(-1, (4, len(bins))).softmax(-1)
    means: Tensor = (shares * bins).sum(-1)
    return means


def move_sides(frame: Tensor, distances: Tensor, scale: Tensor) -> Tensor:
    """Return boxes [..., 4] whose sides are moved from those of a frame [..., 4].

    Args:
        distances: [..., 4], in shares 1 / scale of the frame's sides; positive ones move outwards.
        scale: [1]; `reg_scale`.
    """
    scale = scale.abs()
    moved = (0.5 * scale + distances) / scale
    low = frame[..., :2] - moved[..., :2] * frame[..., 2:]
    high = frame[..., :2] + moved[..., 2:] * frame[..., 2:]
    return torch.cat([(low + high) / 2, high - low], -1)


def measure_distances(frame: Tensor, boxes: Tensor, scale: Tensor) -> Tensor:
    """Return the distances [..., 4] that move a frame's sides to those of boxes [..., 4]."""
    scale = scale.abs()
    low, high = boxes[..., :2] - boxes[..., 2:] / 2, boxes[..., :2] + boxes[..., 2:] / 2
    # A frame without extent reaches nothing, and its distances need only be finite.
    unit = (frame[..., 2:] / scale).clamp(min=1e-16)
    return torch.cat([(frame[..., :2] - low) / unit, (high - frame[..., :2]) / unit], -1) - 0.5 * scale


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
        self,
        contents: Tensor,
        references: Tensor,
        memory: Tensor,
        grids: Grids,
        bins: Tensor,
        blocked: Tensor | None = None,
    ) -> DecoderOutputs:
        """Return every set of outputs in training mode, else the last layer's.

        Args:
            contents: [B, Q, D].
            references: float32 [B, Q, 4]; boxes as logits, without a graph.
            memory: [B, T, D]; the cells of all maps.
            grids: (height, width) of each map.
            bins: As `bin_distances` returns them.
            blocked: bool [Q, Q]; as in `SelfAttention`.
        """
        boxes = references.sigmoid()
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
            refined = move_sides(frame, expected_distances(distances, bins), self.reg_scale)
            if self.training or number == len(self.decoder.layers) - 1:
                logits = self.decoder.lqe_layers[number](self.dec_score_head[number](queries), distances)
                layer_outputs.append(QueryOutputs(logits, refined, distances))
            before, boxes = queries, refined.detach()
        return DecoderOutputs(tuple(layer_outputs), frame, pre)
