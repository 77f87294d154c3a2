"""Whether a model has as many classes as the data."""

from __future__ import annotations

from boxwright.criteria.target_assigner import ClassColumns
from boxwright.errors import ConfigError
from boxwright.types import Categories

__all__ = ["check_classes"]


def check_classes(path: str, num_classes: int, columns: ClassColumns, categories: Categories | None) -> None:
    """Refuse a model without classes, and categories that it has no room for.

    Args:
        path: The model's path in the configuration.
        num_classes: As the configuration has it.
        columns: The class head's columns.
        categories: The data's classes, where known.

    Raises:
        ConfigError: Where that is so.
    """
    if columns.num_classes < 1:
        raise ConfigError(f"{path}.num_classes: expected at least 1, found {num_classes}")
    if categories is not None and categories.num_slots > columns.num_classes:
        last = categories.items[-1]
        wanted = categories.num_slots + num_classes - columns.num_classes
        raise ConfigError(
            f"{path}.num_classes is {num_classes}, but the label map goes up to id {last.id} ({last.name}); "
            f"set it to {wanted}"
        )
