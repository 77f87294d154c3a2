"""The check that a model has as many classes as the data."""

from __future__ import annotations

from boxwright.config.message import Message
from boxwright.nn.criteria.target_assigner import ClassColumns
from boxwright.types import Categories


def check_classes(config: Message, num_classes: int, columns: ClassColumns, categories: Categories | None) -> None:
    """Raise for a model without classes, or with fewer classes than the categories need."""
    if columns.num_classes < 1:
        raise config.refusal("num_classes", f"expected at least 1, found {num_classes}")
    if categories is not None and categories.num_slots > columns.num_classes:
        wanted = categories.num_slots + num_classes - columns.num_classes
        raise config.refusal("num_classes", f"{num_classes}, but {_counted(categories)}; set it to {wanted}")


def _counted(categories: Categories) -> str:
    """Describe the number of classes, or for a label map with gaps the largest id."""
    first, last = categories.items[0], categories.items[-1]
    if len(categories) == categories.num_slots:
        names = ", ".join(item.name for item in categories.items[:3]) + (", …" if len(categories) > 3 else "")
        return f"the data have {len(categories)} classes, with ids {first.id} to {last.id} ({names})"
    return (
        f"the label map's {len(categories)} classes have ids up to {last.id} ({last.name}), and a class head has an "
        "output for every id up to the largest"
    )
