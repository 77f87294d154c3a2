"""BiFPN: repeated top-down and bottom-up passes with learned weights (EfficientDet, section 3).

Dimensions: B batch, C channels, H W grid, N inputs of a node.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from boxwright.nn.batch_norm import make_norm
from boxwright.nn.layers import ConvSettings, MaxPool2d, Padding, make_activation, make_conv, separable_conv

Combiner = Callable[[Tensor], Tensor]


def fast_attention(weights: Tensor) -> Tensor:
    """Return weights [N, 1] made positive, with a sum of almost 1 (EfficientDet, section 3.3)."""
    positive = weights.relu()
    return positive / (positive.sum() + 1e-4)


def attention(weights: Tensor) -> Tensor:
    """Return weights [N, 1] normalized as TF does, over an axis of one element: ones."""
    return torch.softmax(weights, dim=-1)


def weighted_sum(weights: Tensor) -> Tensor:
    """Return weights [N, 1] unchanged."""
    return weights


# TF's names of the combiners; "sum" has no weights.
COMBINERS: dict[str, Combiner | None] = {
    "fast_attention": fast_attention,
    "attention": attention,
    "weighted_sum": weighted_sum,
    "sum": None,
}


class Double(nn.Module):
    """Repeat each pixel twice in each direction."""

    def forward(self, inputs: Tensor) -> Tensor:
        """Return [B, C, 2 H, 2 W]."""
        return F.interpolate(inputs, scale_factor=2.0, mode="nearest")


class BiFpnNode(nn.Module):
    """Resize the input maps to one size, add them with learned weights, convolve."""

    def __init__(
        self, sources: Sequence[tuple[int, nn.Module]], depth: int, settings: ConvSettings, combiner: Combiner | None
    ) -> None:
        """Build the node.

        Args:
            sources: For each input the map's index and the layers that resize it; the first is at the node's level.
            combiner: Normalizes the weights; None adds without weights.
        """
        super().__init__()
        self.inputs = tuple(number for number, _ in sources)
        self.resample = nn.ModuleList([layers for _, layers in sources])
        self.combiner = combiner
        self.weights = nn.Parameter(torch.ones(len(sources), 1)) if combiner else None
        self.activation = make_activation(settings.activation)
        self.conv = separable_conv(depth, depth, 3, settings, bias=settings.bias)
        self.norm = make_norm(depth, settings.norm)

    def forward(self, maps: Sequence[Tensor]) -> Tensor:
        """Return [B, C, H, W]."""
        inputs = [layers(maps[number]) for number, layers in zip(self.inputs, self.resample, strict=True)]
        height, width = inputs[0].shape[-2:]
        # A doubled map is a pixel too large where the finer one's side is odd.
        inputs = [features[..., :height, :width] for features in inputs]
        if self.combiner is not None and self.weights is not None:
            shares = self.combiner(self.weights)
            inputs = [features * share for features, share in zip(inputs, shares, strict=True)]
        total = inputs[0]
        for features in inputs[1:]:
            total = total + features
        outputs: Tensor = self.norm(self.conv(self.activation(total)))
        return outputs


class BiFpn(nn.Module):
    """The whole pyramid.

    Maps are numbered: the backbone's, then those of `extra`, then each node's output.
    """

    def __init__(
        self,
        in_channels: Sequence[int],
        depth: int,
        settings: ConvSettings,
        *,
        extra_levels: int,
        iterations: int,
        combiner: Combiner | None = fast_attention,
        padding: Padding = "same",
    ) -> None:
        """Build the pyramid.

        Args:
            settings: Convolutions; both halves of separable ones use `kernel`.
            extra_levels: Number of coarser levels to append by pooling.
            combiner: How a node normalizes the weights of its inputs; None adds without weights.
            padding: Of pooling; "explicit" is PyTorch's, a pixel on every side.
        """
        super().__init__()
        self.padding = padding
        settings = replace(settings, separable_depthwise=settings.kernel, separable_pointwise=settings.kernel)
        given = len(in_channels)

        def pool() -> nn.Module:
            return MaxPool2d(3, 2) if padding == "same" else nn.MaxPool2d(3, 2, 1)

        def project(number: int) -> list[nn.Module]:
            """Return the projection of a backbone's map to the pyramid's channels, which later maps have already."""
            if number >= given:
                return []
            # TF projects a backbone's map once for each node that reads it, with weights of that node.
            conv = make_conv(in_channels[number], depth, 1, settings.kernel, bias=settings.bias)
            return [conv, make_norm(depth, settings.norm)]

        self.extra = nn.ModuleList(
            [nn.Sequential(*project(given - 1 + number), pool()) for number in range(extra_levels)]
        )
        top = given + extra_levels - 1
        nodes: list[BiFpnNode] = []

        def add(sources: Sequence[tuple[int, nn.Module | None]]) -> int:
            layers = [
                (number, nn.Sequential(*project(number), *([] if resize is None else [resize])))
                for number, resize in sources
            ]
            nodes.append(BiFpnNode(layers, depth, settings, combiner))
            return top + len(nodes)

        current = list(range(top + 1))
        for _ in range(iterations):
            down = {top: current[top]}
            for level in reversed(range(top)):
                down[level] = add([(current[level], None), (down[level + 1], Double())])
            up = [down[0]]
            for level in range(1, top + 1):
                # The coarsest level has no node of the way down between its input and its output.
                between = [(down[level], None)] if level < top else []
                up.append(add([(current[level], None), *between, (up[-1], pool())]))
            current = up
        self.nodes = nn.ModuleList(nodes)
        self.outputs = tuple(current)
        self.channels = (depth,) * (top + 1)

    def forward(self, features: list[Tensor]) -> list[Tensor]:
        """Return all levels, finest first."""
        maps = list(features)
        for layer in self.extra:
            maps.append(layer(maps[-1]))
        for node in self.nodes:
            maps.append(node(maps))
        return [maps[number] for number in self.outputs]
