"""RF-DETR (Robinson et al., 2025): a vision transformer with windows, a projector, and queries that detect.

Dimensions: B batch, C channels, H W input, Q queries.
"""

from __future__ import annotations

from dataclasses import dataclass

from torch import Tensor

from boxwright.families.rf_detr.backbone import Projector, WindowedVit
from boxwright.families.rf_detr.decoder import QueryDecoder, QuerySelection, QuerySet, read_memory
from boxwright.families.rf_detr.masks import MaskFactors, MaskHead
from boxwright.nn.attention import flatten_maps
from boxwright.nn.network import ClassLayer, Network, Parts
from boxwright.types import Targets


@dataclass(frozen=True)
class RfDetrPredictions:
    """Predictions of RF-DETR.

    Attributes:
        layers: Of each layer of the decoder; outside of training of the last alone.
        encoder: The cells of the maps that became queries, as detections of their own.
        groups: How many groups the queries are in, one after the other; 1 outside of training.
        input_size: (height, width) of the network's input.
        masks: Of each of the layers, and after them of the encoder, which detection leaves out; empty without masks.
    """

    layers: tuple[QuerySet, ...]
    encoder: QuerySet
    groups: int
    input_size: tuple[int, int]
    masks: tuple[MaskFactors, ...] = ()

    @property
    def detections(self) -> QuerySet:
        """The outputs that detections are made of: the last layer's."""
        return self.layers[-1]

    def mask_logits(self, queries: Tensor) -> Tensor:
        """Return the masks of the input [B, R, h, w] of detections' queries, int64 [B, R]."""
        return self.masks[len(self.layers) - 1].logits(queries)


class RfDetr(Network):
    """Backbone, projector, selection of queries, their decoder, and the head of masks if there is one.

    Attributes:
        keeps_rows_by_position: Whether class heads take the rows of an authors' file by number, not by name.
    """

    keeps_rows_by_position: bool = False

    def __init__(
        self,
        backbone: WindowedVit,
        projector: Projector,
        queries: QuerySelection,
        decoder: QueryDecoder,
        masks: MaskHead | None = None,
    ) -> None:
        """Assemble the network; the heads that score cells start as copies of the decoder's."""
        super().__init__()
        self.backbone, self.projector, self.queries, self.decoder = backbone, projector, queries, decoder
        self.masks, self.learns_masks = masks, masks is not None
        self.most_objects = decoder.layout.queries
        for head in queries.enc_out_class_embed:
            head.load_state_dict(decoder.class_embed.state_dict())
        for box_head in queries.enc_out_bbox_embed:
            box_head.load_state_dict(decoder.bbox_embed.state_dict())

    @property
    def parts(self) -> Parts:
        """The network's modules by role."""
        columns, groups = self.decoder.layout.columns, range(self.decoder.layout.groups)
        scores = ("decoder.class_embed", *(f"queries.enc_out_class_embed.{group}" for group in groups))
        return Parts(
            backbone=("backbone",),
            necks=("projector",),
            heads=("queries", "decoder") if self.masks is None else ("queries", "decoder", "masks"),
            class_outputs=scores,
            box_outputs=("queries.enc_out_bbox_embed", "decoder.bbox_embed"),
            class_layers=tuple(ClassLayer(name, columns) for name in scores),
        )

    def forward(self, inputs: Tensor, true_sizes: Tensor, targets: Targets | None = None) -> RfDetrPredictions:
        """Return predictions for inputs [B, C, H, W], whose sides divide by the backbone's patches and windows."""
        size = (inputs.shape[2], inputs.shape[3])
        maps = self.projector(self.backbone(inputs))
        cells, grids = flatten_maps(maps)
        memory = read_memory(cells, grids, true_sizes, size)
        contents, references, encoder = self.queries(memory)
        layers = self.decoder(contents, references, memory)
        masks: tuple[MaskFactors, ...] = ()
        if self.masks is not None:
            # The encoder's masks are compared with groundtruth alone.
            chosen = encoder.features if self.training or targets is not None else None
            masks = self.masks(maps[0], [layer.features for layer in layers], chosen, size)
        groups = self.decoder.layout.groups if self.training else 1
        return RfDetrPredictions(layers, encoder, groups, size, masks)
