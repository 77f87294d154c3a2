"""D-FINE: Redefine Regression Task in DETRs as Fine-grained Distribution Refinement (Peng et al., 2024).

The likeliest cells of the maps become queries, which a decoder turns into classes and boxes: at most one per object, so
that nothing has to be suppressed. Modules have the names of the published weights, which thereby load by name.

Dimensions: B batch, C channels, Q queries.
"""

from __future__ import annotations

from collections.abc import Callable

from torch import Tensor

from boxwright.families.d_fine.decoder import DistributionDecoder, QuerySelection
from boxwright.families.d_fine.encoder import HybridEncoder
from boxwright.families.d_fine.predictions import DecoderOutputs, Denoised, DFinePredictions, NoisyQueries, QueryOutputs
from boxwright.nn.backbones.backbone import Backbone
from boxwright.nn.network import ClassLayer, Network, Parts
from boxwright.types import Targets

# From targets, the input's (height, width) and the number of queries that detect.
Denoiser = Callable[[Targets, tuple[int, int], int], NoisyQueries]


class DFine(Network):
    """Backbone, hybrid encoder, and the decoder of queries."""

    def __init__(
        self,
        backbone: Backbone,
        encoder: HybridEncoder,
        queries: QuerySelection,
        decoder: DistributionDecoder,
        denoiser: Denoiser | None = None,
    ) -> None:
        """Assemble the network; in training, `denoiser` makes further queries of the targets."""
        super().__init__()
        self.backbone, self.encoder, self.queries, self.decoder = backbone, encoder, queries, decoder
        self.denoiser = denoiser

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
        )

    def forward(self, inputs: Tensor, true_sizes: Tensor, targets: Targets | None = None) -> DFinePredictions:
        """Return predictions for inputs [B, C, H, W], whose sides are multiples of 32.

        In training mode they are of all layers, and of noisy queries too, if there are targets.
        """
        decoder, size = self.decoder, (inputs.shape[2], inputs.shape[3])
        memory, grids = self.queries.memory_of(self.encoder(self.backbone(inputs)))
        contents, references, encoder = self.queries.select(memory, grids)
        noisy = None
        if self.training and targets is not None and self.denoiser is not None:
            noisy = self.denoiser(targets, size, contents.shape[1])
        contents, references, blocked = self.queries.with_noisy(contents, references, noisy)
        outputs, denoised = decoder(contents, references, memory, grids, blocked), None
        if noisy is not None:
            count = noisy.labels.shape[1]
            denoised = Denoised(_slice_queries(outputs, slice(0, count)), noisy.objects, noisy.groups)
            outputs = _slice_queries(outputs, slice(count, None))
        return DFinePredictions(outputs, encoder, decoder.bin_distances(), decoder.reg_scale, size, denoised)


def _slice_queries(outputs: DecoderOutputs, part: slice) -> DecoderOutputs:
    """Return the outputs of some of the queries."""

    def slice_layer(layer: QueryOutputs) -> QueryOutputs:
        distances = None if layer.distances is None else layer.distances[:, part]
        return QueryOutputs(layer.logits[:, part], layer.boxes[:, part], distances)

    pre = None if outputs.pre is None else slice_layer(outputs.pre)
    return DecoderOutputs(tuple(slice_layer(layer) for layer in outputs.layers), outputs.frame[:, part], pre)
