"""A class predictor for other classes: columns of classes that both have are kept, by name.

Dimensions: A anchors a location, C columns of the class head.
"""

from __future__ import annotations

from torch import Tensor

from boxwright.models.network import Network
from boxwright.types import Categories

__all__ = ["ClassSurgery", "map_classes"]


class ClassSurgery:
    """Which columns of a class predictor another one's columns become."""

    def __init__(self, source: Categories, target: Categories, background: int) -> None:
        """Pair classes by name.

        Args:
            source: The classes of the weights.
            target: The classes of the detector.
            background: Columns before the foreground, in both.
        """
        self.pairs = [(column, column) for column in range(background)]
        self.kept: list[str] = []
        self.fresh: list[str] = []
        for category in target:
            same = source.by_name(category.name)
            if same is None:
                self.fresh.append(category.name)
            else:
                self.kept.append(category.name)
                self.pairs.append((background + category.label, background + same.label))

    def apply(self, old: Tensor, new: Tensor, columns: int) -> Tensor | None:
        """Fill a predictor's kernel or bias.

        Args:
            old: [A · C', …], of the weights.
            new: [A · C, …], of the detector, with fresh values.
            columns: C.

        Returns:
            Like `new`; None where the two differ in more than their classes.
        """
        anchors, rest = divmod(len(new), columns)
        if rest or len(old) % anchors or old.shape[1:] != new.shape[1:]:
            return None
        before, after = old.reshape(anchors, -1, *old.shape[1:]), new.clone().reshape(anchors, columns, *new.shape[1:])
        if max(column for _, column in self.pairs) >= before.shape[1]:
            return None
        for column, same in self.pairs:
            after[:, column] = before[:, same].to(after)
        return after.reshape(new.shape)


def map_classes(network: Network, values: dict[str, Tensor], surgery: ClassSurgery) -> dict[str, Tensor] | None:
    """Bring the last layer of each class predictor to the detector's classes.

    Args:
        network: The network, with fresh values in its class predictor.
        values: Tensors by our names.
        surgery: What becomes of columns.

    Returns:
        The changed tensors by our names; None where there is no class predictor of the same make in both.
    """
    state, parts = network.state_dict(), network.parts
    changed: dict[str, Tensor] = {}
    for layer in parts.class_layers:
        for name in (f"{layer}.weight", f"{layer}.bias"):
            if name in state and name in values:
                mapped = surgery.apply(values[name], state[name].cpu(), parts.class_columns)
                if mapped is None:
                    return None
                changed[name] = mapped
    return changed or None
