"""Predictions of D-FINE, and the queries that its training adds.

Dimensions: B batch, Q queries, K classes, N + 1 bins of a distance, R queries of denoising, L decoder layers, G objects
(padded).

Boxes are center x, center y, width, height, in 0..1 of the input.
"""

from __future__ import annotations

from dataclasses import dataclass

from torch import Tensor


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
    """

    queries: DecoderOutputs
    encoder: QueryOutputs
    bins: Tensor
    scale: Tensor
    input_size: tuple[int, int]
    denoised: Denoised | None = None
