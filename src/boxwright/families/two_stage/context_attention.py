"""Attention of a region's features to those of other images (Context R-CNN; Beery et al., 2020, section 3.3).

Dimensions: B batch, R regions of an image, C channels, M context features (padded), F numbers of a feature,
H W grid of a region's features.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Literal

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from boxwright.base.errors import DataError
from boxwright.types.context_features import ContextFeatures

# Makes a projection from its numbers of channels: a dense layer, ReLU6 and batch normalization in some order.
Project = Callable[[int, int], nn.Module]
# What attends: the crops of proposals (TF's POST_RPN), or the box classifier's features (POST_BOX_CLASSIFIER).
Place = Literal["crops", "features"]

# TF's weight of padding, before the temperature divides it.
_PADDING = -100_000.0
# TF's `l2_normalize` has 1e-12 under the root; ours divides by the norm itself.
_SMALLEST_NORM = 1e-6


class AttentionBlock(nn.Module):
    """Dot-product attention with normalized queries, keys and values."""

    def __init__(self, project: Project, channels: int, length: int, width: int, temperature: float) -> None:
        """Build the projections.

        Args:
            channels: Channels of queries before their projection, and of the output.
            length: The same of keys and values.
            width: Channels of projected queries, keys and values.
            temperature: Divides the weights before their softmax.
        """
        super().__init__()
        self.query, self.key, self.value = project(channels, width), project(length, width), project(length, width)
        self.output = project(width, channels)
        self.temperature = temperature

    def forward(self, inputs: Tensor, inputs_valid: Tensor, context: Tensor, context_valid: Tensor) -> Tensor:
        """Return [B, R, C].

        Args:
            inputs: [B, R, C].
            inputs_valid: bool [B, R].
            context: [B, M, F].
            context_valid: bool [B, M].
        """
        # A padded query is 0, so that it weighs all of the context alike: its output counts in TF's batch statistics.
        queries = _normalized(self.query, inputs) * inputs_valid[..., None]
        keys, values = _normalized(self.key, context), _normalized(self.value, context)
        # In float32 under autocast: the weight of padding is beyond float16.
        weights = (queries @ keys.transpose(1, 2)).float().masked_fill(~context_valid[:, None], _PADDING)
        attention = (weights / self.temperature).softmax(dim=-1)
        # Without any valid feature the softmax is uniform; values of 0 make the result 0.
        attended = attention.to(values.dtype) @ (values * context_valid[..., None])
        return _projected(self.output, attended)


def _projected(projection: nn.Module, features: Tensor) -> Tensor:
    rows: Tensor = projection(features.flatten(0, 1)[..., None, None])
    return rows.view(*features.shape[:2], rows.shape[1])


def _normalized(projection: nn.Module, features: Tensor) -> Tensor:
    return F.normalize(_projected(projection, features), dim=-1, eps=_SMALLEST_NORM)


class LayeredAttention(nn.Module):
    """Self-attention among an image's regions, and layers of several heads that attend to the context, as in TF1.

    In sequence, the layers start from the mean of the regions and their self-attention; in parallel, from the regions,
    and self-attention is added to their output.
    """

    def __init__(
        self, itself: AttentionBlock | None, blocks: list[AttentionBlock], heads: int, *, in_sequence: bool = False
    ) -> None:
        """Assemble the blocks.

        Args:
            itself: Attends to the image's own regions; None for none.
            blocks: The heads of the first layer, of the second, and so on; empty for self-attention alone.
            heads: Blocks of a layer.
            in_sequence: Whether the layers start from self-attention's output.
        """
        super().__init__()
        self.itself, self.blocks = itself, nn.ModuleList(blocks)
        self.heads, self.in_sequence = heads, in_sequence

    def forward(self, regions: Tensor, valid: Tensor, context: Tensor, context_valid: Tensor) -> Tensor:
        """Return what is added to regions [B, R, C]; the other arguments are an `AttentionBlock`'s."""
        own = None if self.itself is None else self.itself(regions, valid, regions, valid)
        if not len(self.blocks):
            return torch.zeros_like(regions) if own is None else own
        first = attended = (own + regions) / 2 if own is not None and self.in_sequence else regions
        for start in range(0, len(self.blocks), self.heads):
            layer = self.blocks[start : start + self.heads]
            outputs = torch.stack([block(attended, valid, context, context_valid) for block in layer])
            attended = attended + outputs.mean(0)
        # TF adds the layers' input again, although what is returned is itself added to the regions.
        attended = attended + first
        return attended if own is None or self.in_sequence else own + attended


class ContextAttention(nn.Module):
    """Adds to regions' features what they find in the context.

    Attributes:
        memory: float32 [M, F]; the context of images that come without any, outside training; or None.
    """

    memory: Tensor | None

    def __init__(
        self, attend: AttentionBlock | LayeredAttention, place: Place, length: int, most: int, every: int = 1
    ) -> None:
        """Assemble the module.

        Args:
            length: Numbers of a context feature.
            most: Context features per image; the first ones if there are more.
            every: The step between the rows and columns to return, as what follows reads no others.
        """
        super().__init__()
        self.attend, self.place, self.length, self.most, self.every = attend, place, length, most, every
        self.register_buffer("memory", None, persistent=False)

    def remember(self, features: Tensor) -> None:
        """Use features [M, F] as the context of images that come without any; graphs carry them as a constant.

        Raises:
            DataError: If they are of another length.
        """
        if features.ndim != 2 or features.shape[1] != self.length:
            raise DataError(
                f"context features of shape {list(features.shape)}, but context_config.context_feature_length is "
                f"{self.length}"
            )
        self.memory = features[: self.most].to(next(self.parameters()))

    def forward(self, features: Tensor, valid: Tensor, context: ContextFeatures | None) -> Tensor:
        """Return features of the same shape, or every few rows and columns of them.

        Args:
            features: [B · R, C, H, W]; all of them count in the means that attend.
            valid: bool [B, R].
            context: None stands for `memory`; without one, it is the same as an image without any.

        Raises:
            DataError: For context features of another length.
        """
        batch = valid.shape[0]  # not len(), which is a constant in an exported graph
        if context is None and self.memory is not None and not self.training:
            counts = torch.full((batch,), self.memory.shape[0], device=features.device)
            context = ContextFeatures(self.memory.expand(batch, -1, -1), counts)
        if context is None or context.features.shape[1] == 0:
            nothing = features.new_zeros(batch, 0, self.length)
            context = ContextFeatures(nothing, torch.zeros(batch, dtype=torch.int64, device=features.device))
        length = context.features.shape[-1]
        if length != self.length:
            raise DataError(
                f"context features of {length} numbers, but context_config.context_feature_length is {self.length}"
            )
        # In training, padding counts in batch statistics, as in TF, which always pads to the maximum.
        if self.training or context.features.shape[1] > self.most:
            context = context.resized(self.most)
        regions = features.mean((2, 3)).view(*valid.shape, -1)
        attended: Tensor = self.attend(regions, valid, context.features, context.valid)
        read = features[..., :: self.every, :: self.every]
        return read + attended.flatten(0, 1)[..., None, None].to(features.dtype)
