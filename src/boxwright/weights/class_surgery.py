"""Transfer of a class predictor to other classes: columns of shared classes are kept, by name.

Dimensions: A anchors per location, C columns of the class head.
"""

from __future__ import annotations

from dataclasses import replace

import torch
from torch import Tensor

from boxwright.nn.network import ClassLayer, Network
from boxwright.types import Categories

# Of a predictor's convolution, and of its normalization.
_TENSORS = ("weight", "bias", "running_mean", "running_var")


class ClassSurgery:
    """The mapping of a class predictor's columns to those for other classes."""

    def __init__(self, source: Categories, target: Categories, num_classes: int) -> None:
        """Match classes by name."""
        self.num_classes = num_classes
        self.pairs: list[tuple[int, int]] = []
        self.kept: list[str] = []
        self.fresh: list[str] = []
        for category in target:
            same = source.by_name(category.name)
            if same is None:
                self.fresh.append(category.name)
            else:
                self.kept.append(category.name)
                self.pairs.append((category.label, same.label))

    def apply(self, old: Tensor, new: Tensor, layer: ClassLayer) -> Tensor | None:
        """Return a tensor of a predictor's last layers, with columns of shared classes from the source.

        Args:
            old: [A · C' · n, …], from the source; and the rows after all columns, if the layer has such.
            new: [A · C · n, …], of the detector, with initial values; and those rows.

        Returns:
            Like `new`; None if the two differ in more than their classes.
        """
        if layer.after:
            old, new, others = old[: -layer.after], new[: -layer.after], old[-layer.after :]
            kept = self.apply(old, new, replace(layer, after=0)) if others.shape[1:] == new.shape[1:] else None
            return None if kept is None else torch.cat([kept, others.to(kept)])
        background = layer.columns - self.num_classes
        anchors, rest = divmod(len(new), layer.columns * layer.numbers)
        if rest or len(old) % (anchors * layer.numbers) or old.shape[1:] != new.shape[1:]:
            return None
        before = old.reshape(anchors, -1, layer.numbers, *old.shape[1:])
        after = new.clone().reshape(anchors, layer.columns, layer.numbers, *new.shape[1:])
        # The background is the same class in every detector, and keeps its column.
        pairs = [(column, column) for column in range(background)]
        pairs += [(background + label, background + same) for label, same in self.pairs]
        # The source has fewer columns than classes, as one without background, or with a class-agnostic head, has.
        if max(column for _, column in pairs) >= before.shape[1]:
            return None
        for column, same in pairs:
            after[:, column] = before[:, same].to(after)
        return after.reshape(new.shape)


def map_classes(network: Network, values: dict[str, Tensor], surgery: ClassSurgery) -> dict[str, Tensor] | None:
    """Return the last layers of the class predictors for the detector's classes, by our names.

    Args:
        network: The network, with initial values in its class predictor.

    Returns:
        None if source and network do not have the same kind of class predictor.
    """
    state, parts = network.state_dict(), network.parts
    changed: dict[str, Tensor] = {}
    for layer in parts.class_layers:
        for name in (f"{layer.name}.{own}" for own in _TENSORS):
            if name in state and name in values:
                mapped = surgery.apply(values[name], state[name].cpu(), layer)
                if mapped is None:
                    return None
                changed[name] = mapped
    return changed or None
