"""The heads of CenterNet: each predicts one map from a feature map of stride 4 (Objects as Points, section 5).

The classifier that embeddings of objects are learned with: which of the known individuals each is (FairMOT, 2020).

Dimensions: B batch, N objects of an image, E numbers of an embedding, T identities.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor, nn

from boxwright.nn.batch_norm import BatchNormSettings, make_norm
from boxwright.nn.layers import ConvSettings, Dense, KernelRule, KernelSize, full_conv, make_conv, separable_conv

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


_KERAS = ConvSettings(norm=None, activation="RELU")


@dataclass(frozen=True)
class HeadLayers:
    """The hidden convolutions of a head, each followed by a ReLU.

    Attributes:
        widths: Channels of each.
        kernel_sizes: The side of each one's kernel, or (height, width).
        separable: Whether they are depthwise separable.
    """

    widths: tuple[int, ...] = (256,)
    kernel_sizes: tuple[KernelSize, ...] = (3,)
    separable: bool = False


class MapHead(nn.Sequential):
    """Hidden convolutions and a 1×1 convolution, `output`, to a map's channels."""

    def __init__(self, in_channels: int, channels: int, layers: HeadLayers, *, bias: float = 0.0) -> None:
        """Build the layers.

        Args:
            channels: Channels of the map.
            bias: The first value of the output's bias.
        """
        super().__init__()
        self.channels = channels
        make = separable_conv if layers.separable else full_conv
        for number, (width, kernel_size) in enumerate(zip(layers.widths, layers.kernel_sizes, strict=True)):
            self.add_module(f"hidden{number}", make(in_channels, width, kernel_size, _KERAS, bias=True))
            self.add_module(f"activation{number}", nn.ReLU(inplace=True))
            in_channels = width
        output = make_conv(in_channels, channels, 1, KernelRule(), bias=True)
        if output.bias is not None:
            nn.init.constant_(output.bias, bias)
        self.add_module("output", output)
