"""RF-DETR's queries, which start from the likeliest cells, in groups that do not see each other, and their decoder.

Group DETR: Chen et al., 2023; deformable attention: Zhu et al., 2021. Only the first group detects, so that the others,
which learn beside it in training, cost nothing afterwards.

Dimensions: B batch, Q queries of a group, G groups, D width, T cells of all levels together, L levels, C columns of the
class head. Boxes are center x, center y, width, height, in 0..1 of the input.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from boxwright.base.device import constants
from boxwright.nn.attention import CLASS_BIAS, Grids, Mlp, SelfAttention, deformable_attention, star_directions

# Moves a reference by what a network returns for it.
MoveBox = Callable[[Tensor, Tensor], Tensor]


def move_relative(references: Tensor, moves: Tensor) -> Tensor:
    """Return boxes [..., 4] whose centers move in units of the references' sides, and whose sides grow by exp."""
    centers = moves[..., :2] * references[..., 2:] + references[..., :2]
    return torch.cat([centers, moves[..., 2:].exp() * references[..., 2:]], -1)


@dataclass(frozen=True)
class BoxForm:
    """How references stand for boxes.

    Attributes:
        start: Boxes of cells to references.
        move: References to references.
        finish: References to boxes.
        void: What stands for the box of a cell that does not count.
    """

    start: Callable[[Tensor], Tensor]
    move: MoveBox
    finish: Callable[[Tensor], Tensor]
    void: float


# References are boxes, as in every published size; or, as in LW-DETR, the logits of boxes.
RELATIVE = BoxForm(lambda boxes: boxes, move_relative, lambda references: references, 0.0)
LOGITS = BoxForm(lambda boxes: (boxes / (1 - boxes)).log(), torch.add, torch.sigmoid, math.inf)


@dataclass(frozen=True)
class DecoderLayout:
    """The shape of the queries and their decoder.

    Attributes:
        depth: Width of queries.
        feedforward: Width of the layers' feed-forward networks.
        levels: How many maps there are.
        taps: How many places of each map a head reads.
        self_heads: Heads of the attention among queries.
        cross_heads: Heads of the attention to maps.
        queries: Of a group.
        groups: In training.
        columns: Columns of the class head, the background included.
        refines: Whether each layer starts from the boxes of the one before, instead of all from the first.
    """

    depth: int
    num_layers: int
    feedforward: int
    levels: int = 1
    taps: int = 2
    self_heads: int = 8
    cross_heads: int = 16
    queries: int = 300
    groups: int = 13
    columns: int = 91
    refines: bool = False
    form: BoxForm = RELATIVE


@dataclass(frozen=True)
class QuerySet:
    """One set of outputs: a class and a box of each query.

    Attributes:
        logits: float [B, Q, C].
        boxes: float [B, Q, 4].
        features: float [B, Q, D]; what the outputs are made of.
    """

    logits: Tensor
    boxes: Tensor
    features: Tensor


@dataclass(frozen=True)
class Memory:
    """The cells of all maps.

    Attributes:
        cells: [B, T, D].
        grids: (height, width) of each map.
        padding: bool [B, T]; True for cells beside the image.
        shares: float32 [B, L, 2]; the image's share of the width and height of each map.
    """

    cells: Tensor
    grids: Grids
    padding: Tensor
    shares: Tensor


def read_memory(cells: Tensor, grids: Grids, true_sizes: Tensor, input_size: tuple[int, int]) -> Memory:
    """Return the cells with what is padding among them.

    Args:
        cells: [B, T, D].
        grids: (height, width) of each map.
        true_sizes: int64 [B, 2]; the (height, width) of each input without its padding.
        input_size: (height, width) of the input.
    """
    padding, shares = [], []
    for grid in grids:
        # The nearest pixel decides whether a cell is of the image.
        inside = [
            (torch.arange(count, device=cells.device) * side // count)[None] < true_sizes[:, axis, None]
            for axis, (count, side) in enumerate(zip(grid, input_size, strict=True))
        ]
        shares.append(torch.stack([inside[1].float().mean(1), inside[0].float().mean(1)], -1))
        padding.append((inside[0][:, :, None] & inside[1][:, None]).logical_not().flatten(1))
    return Memory(cells, grids, torch.cat(padding, 1), torch.stack(shares, 1))


# Side of a cell's initial box on the first map, and how far inside the image it has to lie.
_CELL_SIDE, _MARGIN = 0.05, 0.01


def cell_boxes(memory: Memory) -> tuple[Tensor, Tensor]:
    """Return the initial box of each cell, float32 [B, T, 4], and which count, bool [B, T].

    A box is around its cell's center, of a side that doubles from map to map; one near the border does not count.
    """
    parts = []
    for level, (height, width) in enumerate(memory.grids):
        rows, columns = (
            torch.arange(count, dtype=torch.float32, device=memory.cells.device) + 0.5 for count in (height, width)
        )
        centers = torch.stack([columns[None].expand(height, -1), rows[:, None].expand(-1, width)], -1).flatten(0, 1)
        whole = memory.shares[:, level, None] * constants([width, height], memory.cells.device)
        placed = centers / whole
        parts.append(torch.cat([placed, torch.full_like(placed, _CELL_SIDE * 2**level)], -1))
    boxes = torch.cat(parts, 1)
    inside = ((boxes > _MARGIN) & (boxes < 1 - _MARGIN)).all(-1)
    return boxes, inside & memory.padding.logical_not()


def _gather(values: Tensor, places: Tensor) -> Tensor:
    """Return rows [B, Q, D] of values [B, T, D] at places [B, Q]."""
    return values.gather(1, places[..., None].expand(-1, -1, values.shape[-1]))


class QuerySelection(nn.Module):
    """From cells to queries: each group has layers of its own that choose and score its cells."""

    def __init__(self, layout: DecoderLayout) -> None:
        """Build the layers of all groups."""
        super().__init__()
        depth, groups = layout.depth, range(layout.groups)
        self.layout = layout
        self.enc_output = nn.ModuleList(nn.Linear(depth, depth) for _ in groups)
        self.enc_output_norm = nn.ModuleList(nn.LayerNorm(depth) for _ in groups)
        self.enc_out_class_embed = nn.ModuleList(nn.Linear(depth, layout.columns) for _ in groups)
        self.enc_out_bbox_embed = nn.ModuleList(Mlp((depth, depth, depth, 4), nn.ReLU, zero_last=True) for _ in groups)
        self.refpoint_embed = nn.Embedding(layout.queries * layout.groups, 4)
        self.query_feat = nn.Embedding(layout.queries * layout.groups, depth)
        nn.init.zeros_(self.refpoint_embed.weight)
        for head in self.enc_out_class_embed:
            nn.init.constant_(head.get_parameter("bias"), CLASS_BIAS)
        for layer in self.enc_output:
            nn.init.xavier_uniform_(layer.get_parameter("weight"))

    def forward(self, memory: Memory) -> tuple[Tensor, Tensor, QuerySet]:
        """Return contents [B, G · Q, D] and references [B, G · Q, 4] of queries, and the chosen cells as detections.

        In training there are all groups, one after the other; otherwise the first alone. A group chooses all cells
        where there are fewer than queries; the queries after those of all groups then keep their learned references.
        """
        layout = self.layout
        groups = layout.groups if self.training else 1
        boxes, inside = cell_boxes(memory)
        started = layout.form.start(boxes)
        started = torch.where(inside[..., None], started, layout.form.void).to(memory.cells.dtype)
        cells = memory.cells * inside[..., None]
        chosen = [self._choose(group, cells, started) for group in range(groups)]
        starts = torch.cat([outputs.boxes for outputs in chosen], 1)
        encoder = QuerySet(
            torch.cat([outputs.logits for outputs in chosen], 1),
            layout.form.finish(starts),
            torch.cat([outputs.features for outputs in chosen], 1),
        )
        count = groups * layout.queries
        batch = cells.shape[0]
        learned = self.refpoint_embed.weight[:count].expand(batch, -1, -1)
        references = layout.form.move(starts.detach(), learned[:, : starts.shape[1]])
        if starts.shape[1] < count:
            references = torch.cat([references, learned[:, starts.shape[1] :]], 1)
        return self.query_feat.weight[:count].expand(batch, -1, -1), references, encoder

    def _choose(self, group: int, cells: Tensor, started: Tensor) -> QuerySet:
        """Return a group's best cells, whose boxes are references."""
        encoded = self.enc_output_norm[group](self.enc_output[group](cells))
        logits = self.enc_out_class_embed[group](encoded)
        best = logits.amax(-1).topk(min(self.layout.queries, cells.shape[1]), dim=1).indices
        features = _gather(encoded, best)
        references = self.layout.form.move(_gather(started, best), self.enc_out_bbox_embed[group](features))
        return QuerySet(_gather(logits, best), references, features)


def sine_embedding(boxes: Tensor, depth: int) -> Tensor:
    """Return sines and cosines of boxes [..., 4], D / 2 of each number in the order y, x, w, h: [..., 2 · D]."""
    half = depth // 2
    steps = torch.arange(half, dtype=torch.float32, device=boxes.device)
    x, y, width, height = boxes.unbind(-1)
    # Indexing with a list would copy the list to a GPU and wait for it.
    ordered = torch.stack([y, x, width, height], -1)[..., None]
    angles = ordered * (2 * math.pi) / 10000 ** (2 * (steps // 2) / half)
    waves = torch.stack([angles[..., 0::2].sin(), angles[..., 1::2].cos()], -1)
    return waves.flatten(-3)


# How far a tap's offset of 1 is from the reference, relative to its box's half.
_OFFSET_SCALE = 0.5


class DeformableAttention(nn.Module):
    """Cross-attention to a few places of each map around a query's box."""

    def __init__(self, layout: DecoderLayout) -> None:
        """Build the layers; taps start on a star around the box's center."""
        super().__init__()
        self.heads, self.levels, self.taps = layout.cross_heads, layout.levels, layout.taps
        depth, count = layout.depth, layout.cross_heads * layout.levels * layout.taps
        self.sampling_offsets = nn.Linear(depth, 2 * count)
        self.attention_weights = nn.Linear(depth, count)
        self.value_proj, self.output_proj = nn.Linear(depth, depth), nn.Linear(depth, depth)
        for parameter in (self.sampling_offsets.weight, *self.attention_weights.parameters()):
            nn.init.zeros_(parameter)
        for layer in (self.value_proj, self.output_proj):
            nn.init.xavier_uniform_(layer.weight)
            nn.init.zeros_(layer.bias)
        with torch.no_grad():
            star = star_directions(layout.cross_heads, [layout.taps] * layout.levels)
            self.sampling_offsets.bias.copy_(star.flatten())

    def forward(self, queries: Tensor, references: Tensor, memory: Memory) -> Tensor:
        """Return [B, Q, D] for queries [B, Q, D] and their boxes on each map [B, Q, L, 4]."""
        shape = (self.heads, self.levels, self.taps)
        offsets = self.sampling_offsets(queries).unflatten(-1, (*shape, 2))
        weights = self.attention_weights(queries).unflatten(-1, (self.heads, -1)).softmax(-1)
        boxes = references[:, :, None, :, None]
        locations = boxes[..., :2] + offsets / self.taps * boxes[..., 2:] * _OFFSET_SCALE
        values = self.value_proj(memory.cells).masked_fill(memory.padding[..., None], 0)
        taps = [self.taps] * self.levels
        read = deformable_attention(values, memory.grids, taps, locations.flatten(3, 4), weights)
        outputs: Tensor = self.output_proj(read)
        return outputs


class DecoderLayer(nn.Module):
    """Attention among the queries of a group, to the maps, and a feed-forward network, each normalized after it."""

    def __init__(self, layout: DecoderLayout) -> None:
        """Build the layers."""
        super().__init__()
        depth = layout.depth
        self.self_attn, self.cross_attn = SelfAttention(depth, layout.self_heads), DeformableAttention(layout)
        self.linear1, self.linear2 = nn.Linear(depth, layout.feedforward), nn.Linear(layout.feedforward, depth)
        self.norm1, self.norm2, self.norm3 = (nn.LayerNorm(depth) for _ in range(3))
        for linear in (self.linear1, self.linear2, self.self_attn.out_proj):
            nn.init.xavier_uniform_(linear.weight)

    def forward(self, queries: Tensor, positions: Tensor, references: Tensor, memory: Memory, groups: int) -> Tensor:
        """Return [B, G · Q, D]."""
        batch = queries.shape[0]
        in_groups = (tensor.unflatten(1, (groups, -1)).flatten(0, 1) for tensor in (queries, positions))
        attended = self.self_attn(*in_groups).unflatten(0, (batch, groups)).flatten(1, 2)
        queries = self.norm1(queries + attended)
        queries = self.norm2(queries + self.cross_attn(queries + positions, references, memory))
        outputs: Tensor = self.norm3(queries + self.linear2(F.relu(self.linear1(queries))))
        return outputs


class QueryDecoder(nn.Module):
    """The layers, and the heads that they share."""

    def __init__(self, layout: DecoderLayout) -> None:
        """Build the layers."""
        super().__init__()
        depth = layout.depth
        self.layout = layout
        self.layers = nn.ModuleList(DecoderLayer(layout) for _ in range(layout.num_layers))
        self.norm = nn.LayerNorm(depth)
        self.ref_point_head = Mlp((2 * depth, depth, depth), nn.ReLU)
        self.class_embed = nn.Linear(depth, layout.columns)
        self.bbox_embed = Mlp((depth, depth, depth, 4), nn.ReLU, zero_last=True)
        nn.init.constant_(self.class_embed.bias, CLASS_BIAS)

    def forward(self, contents: Tensor, references: Tensor, memory: Memory) -> tuple[QuerySet, ...]:
        """Return the outputs of each layer in training mode, else the last layer's.

        Args:
            contents: [B, G · Q, D].
            references: [B, G · Q, 4].
            memory: The maps' cells.
        """
        groups = self.layout.groups if self.training else 1
        queries, start, outputs = contents, references, []
        positions, on_maps = self._place(references, memory)
        for number, layer in enumerate(self.layers):
            queries = layer(queries, positions, on_maps, memory, groups)
            if self.training or number == len(self.layers) - 1:
                outputs.append(self._detect(self.norm(queries), references))
            if self.layout.refines:
                references = self.layout.form.move(start, self.bbox_embed(queries))
                # Heads learn through the layer before, but no layer through all those before it.
                start = references.detach()
                positions, on_maps = self._place(start, memory)
        return tuple(outputs)

    def _place(self, references: Tensor, memory: Memory) -> tuple[Tensor, Tensor]:
        """Return the positions [B, Q, D] of references, and their boxes on each map [B, Q, L, 4]."""
        shares = torch.cat([memory.shares, memory.shares], -1).to(references.dtype)
        on_maps = self.layout.form.finish(references)[:, :, None] * shares[:, None]
        # At least in float32, as angles reach 2π.
        first = on_maps[:, :, 0].to(torch.promote_types(on_maps.dtype, torch.float32))
        embedded = sine_embedding(first, self.layout.depth)
        return self.ref_point_head(embedded.to(references.dtype)), on_maps

    def _detect(self, features: Tensor, references: Tensor) -> QuerySet:
        form = self.layout.form
        boxes = form.finish(form.move(references, self.bbox_embed(features)))
        return QuerySet(self.class_embed(features), boxes, features)
