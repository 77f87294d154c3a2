"""Anchors as part of a network.

Dimensions: A anchors of all levels.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Protocol, cast

import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.overrides import TorchFunctionMode

from boxwright.anchors.grid import AnchorGenerator, Size
from boxwright.device import without_wait

__all__ = ["AnchorLayer", "HasFeatureMaps", "grids_of"]

# Of as many sizes of input anchors are kept; RetinaNet's at 800 × 1344 take 4 MB each.
_MOST_SIZES = 64


class HasFeatureMaps(Protocol):
    """A network that predicts from feature maps."""

    def feature_maps(self, inputs: Tensor) -> list[Tensor]:
        """Return the maps that anchors are laid over, finest first."""
        ...


class AnchorLayer(nn.Module):
    """Lay anchors over feature maps, once for each size of input.

    Those of a detector whose inputs have one size are buffers, which a graph can carry. Of others those of the last
    sizes are kept on the device: laying RetinaNet's at 800 × 1344 takes a CPU 23 ms, and they follow from the sizes.
    """

    anchors: Tensor

    def __init__(self, generator: AnchorGenerator) -> None:
        """Start without buffers.

        Args:
            generator: Lays anchors, in the order of a head's rows.
        """
        super().__init__()
        self.generator = generator
        self.laid_for: tuple[tuple[Size, ...], Size] | None = None
        self.level_sizes: tuple[int, ...] = ()
        self.register_buffer("anchors", torch.zeros(0, 4), persistent=False)
        self._kept: dict[tuple[tuple[Size, ...], Size, torch.device], tuple[Tensor, tuple[int, ...]]] = {}

    def lay(self, grids: Sequence[Size], input_size: Size) -> None:
        """Keep the anchors of one size of input, on the device that the buffer has.

        Args:
            grids: (height, width) of each feature map.
            input_size: (height, width) of the network's input.
        """
        anchors, self.level_sizes = self.generate(grids, input_size)
        self.anchors = anchors.to(self.anchors.device)
        self.laid_for = (tuple(grids), input_size)

    def forward(self, maps: Sequence[Tensor], input_size: Size) -> tuple[Tensor, tuple[int, ...]]:
        """Return anchors float32 [A, 4], xyxy in pixels of the input; and how many of them each map has, in order."""
        grids = tuple((level.shape[-2], level.shape[-1]) for level in maps)
        if self.laid_for == (grids, input_size):
            return self.anchors, self.level_sizes
        if torch.compiler.is_compiling():
            anchors, sizes = self.generate(grids, input_size)
            return anchors.to(maps[0].device), sizes
        key = grids, input_size, maps[0].device
        laid = self._kept.get(key)
        if laid is None:
            anchors, sizes = self.generate(grids, input_size)
            laid = without_wait(anchors, maps[0].device), sizes
            if len(self._kept) >= _MOST_SIZES:
                self._kept = {}
            self._kept[key] = laid
        return laid

    def generate(self, grids: Sequence[Size], input_size: Size) -> tuple[Tensor, tuple[int, ...]]:
        """Return what `forward` returns, on the CPU; nothing is kept."""
        by_level = self.generator(grids, input_size)
        return torch.cat(by_level), tuple(len(anchors) for anchors in by_level)


class _FeatureMaps(nn.Module):
    """A network up to its feature maps, as a module."""

    def __init__(self, network: nn.Module) -> None:
        super().__init__()
        self.network = network

    def forward(self, inputs: Tensor) -> list[Tensor]:
        return cast(HasFeatureMaps, self.network).feature_maps(inputs)


class _ShapesAlone(TorchFunctionMode):
    """Leave out what changes no shape: on the device of shapes each such operation costs milliseconds."""

    _SAME_SHAPE = frozenset((F.batch_norm, F.hardtanh, F.relu, F.relu6, F.silu, F.hardswish, F.hardsigmoid, F.dropout))

    def __torch_function__(
        self, func: Callable[..., Any], types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        del types
        return args[0] if func in self._SAME_SHAPE else func(*args, **(kwargs or {}))


def grids_of(network: nn.Module, input_size: Size, channels: int) -> list[Size]:
    """Return the (height, width) of each of a network's feature maps, without computing them."""
    module = _FeatureMaps(network)
    state = {**dict(module.named_parameters()), **dict(module.named_buffers())}
    meta = {name: value.detach().to("meta") for name, value in state.items()}
    with torch.no_grad():
        # Two images: normalization in training wants more than one value a channel.
        inputs = torch.empty(2, channels, *input_size, device="meta")
        with _ShapesAlone():
            maps = torch.func.functional_call(module, meta, (inputs,))
    return [(level.shape[-2], level.shape[-1]) for level in maps]
