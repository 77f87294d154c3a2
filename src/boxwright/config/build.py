"""What every builder asks a message: the object of the chosen member, and fields that must be there."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, TypeVar

from boxwright.config.message import Message
from boxwright.config.support import refuse_contradictions

T = TypeVar("T")
M = TypeVar("M", bound=Message)


def build_chosen(message: Message, oneof: str, table: Mapping[str, Callable[..., T]], *args: Any) -> T:
    """Return the object built from a oneof's member by its builder in a table of member to builder."""
    member = message.which(oneof)
    if member is None:
        raise message.refusal("", f"empty; set one of {', '.join(table)}")
    if member not in table:
        raise message.refusal(member, f"not supported; supported: {', '.join(table)}")
    chosen = getattr(message, member)
    if isinstance(chosen, Message):
        refuse_contradictions(chosen)
    return table[member](chosen, *args)


def require(value: M | None, message: Message, field: str) -> M:
    """Return a field's value; raises a ConfigError if it is None."""
    if value is None:
        raise message.refusal(field, "missing from the configuration")
    return value
