"""The classifier that embeddings of objects are learned with: which of the known individuals each is (FairMOT, 2020).

Dimensions: B batch, N objects of an image, E numbers of an embedding, T identities.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn

from boxwright.nn.batch_norm import BatchNormSettings, make_norm
from boxwright.nn.layers import Dense, KernelRule

# Keras's defaults.
_NORM = BatchNormSettings(decay=0.99)


class IdentityClassifier(nn.Sequential):
    """Dense layers, of which all but the last are normalized and activated."""

    def __init__(self, size: int, identities: int, layers: int) -> None:
        """Build the layers.

        Args:
            size: E.
            identities: T.
            layers: The number of dense layers.
        """
        rule, built = KernelRule(), list[nn.Module]()
        for _ in range(layers - 1):
            built += [rule.apply(Dense(size, size)), make_norm(size, _NORM), nn.ReLU()]
        super().__init__(*built, rule.apply(Dense(size, identities)))

    def forward(self, embeddings: Tensor) -> Tensor:
        """Return logits [B, N, T] for embeddings [B, N, E]."""
        rows = embeddings.flatten(0, 1)
        count = len(rows)
        if count < 2:
            # PyTorch normalizes no single row: one beside an equal one has the same statistics. Without any row, other
            # processes still wait for gradients.
            rows = rows.repeat(2, 1) if count else rows.new_zeros(2, rows.shape[1]) + 0.0 * embeddings.sum()
        logits = rows[..., None, None]
        for layer in self:
            logits = layer(logits)
        return torch.flatten(logits[:count], 1).view(*embeddings.shape[:2], logits.shape[1])
