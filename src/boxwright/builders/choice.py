"""Choosing by a oneof, from a table in sight."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, TypeVar

from boxwright.config.message import Message

T = TypeVar("T")
M = TypeVar("M", bound=Message)


def build_chosen(message: Message, oneof: str, table: Mapping[str, Callable[..., T]], *args: Any) -> T:
    """Build what the present member of a oneof describes.

    Args:
        message: The message that has the oneof.
        table: For each member its builder, which takes the member's message.

    Raises:
        ConfigError: Where no member is present, or one that is not in the table.
    """
    member = message.which(oneof)
    if member is None:
        raise message.refusal("", f"empty; set one of {', '.join(table)}")
    if member not in table:
        raise message.refusal(member, f"not supported; supported: {', '.join(table)}")
    return table[member](getattr(message, member), *args)


def require(value: M | None, message: Message, field: str) -> M:
    """Return what a field holds.

    Args:
        value: What it holds, or None.
        message: The message that has the field.

    Raises:
        ConfigError: Where it is None.
    """
    if value is None:
        raise message.refusal(field, "missing from the configuration")
    return value
