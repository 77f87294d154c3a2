"""The queries of D-FINE's decoder: the likeliest cells of the maps, and in training disturbed objects.

Modules have the names of the published weights, which thereby load by name.

Dimensions: B batch, D width, Q queries, K classes, T cells of all maps together.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Sequence

import torch
from torch import Tensor, nn

from boxwright.families.d_fine.decoder import CLASS_BIAS, DecoderLayout, Grids, Mlp
from boxwright.families.d_fine.encoder import ConvNorm
from boxwright.families.d_fine.predictions import NoisyQueries, QueryOutputs

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
        projected = [project(one) for project, one in zip(self.input_proj, maps, strict=True)]
        grids = [(one.shape[-2], one.shape[-1]) for one in projected]
        return torch.cat([one.flatten(2).transpose(1, 2) for one in projected], 1), grids

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
            one.gather(1, best[..., None].expand(-1, -1, one.shape[-1]))
            for one in (encoded, logits, cells.expand(memory.shape[0], -1, -1))
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
