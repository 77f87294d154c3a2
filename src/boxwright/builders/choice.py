"""Choosing by a oneof, from a table in sight."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any, TypeVar

from boxwright.config.message import Message
from boxwright.errors import ConfigError

__all__ = ["build_chosen", "located", "require", "in_order"]

T = TypeVar("T")
M = TypeVar("M", bound=Message)


def build_chosen(message: Message, oneof: str, table: Mapping[str, Callable[..., T]], *args: Any) -> T:
    """Build what the present member of a oneof describes.

    Args:
        message: The message that has the oneof.
        oneof: The oneof's name.
        table: For each member its builder, which takes the member's message.
        *args: Further arguments of the builder.

    Returns:
        What the builder returned.

    Raises:
        ConfigError: Where no member is present, or one that is not in the table.
    """
    member = message.which(oneof)
    if member is None:
        raise ConfigError(f"{message.proto_name} is empty; set one of {', '.join(table)}")
    if member not in table:
        where = message.location(member)
        at = f"{where}: " if where else ""
        raise ConfigError(f"{at}{message.proto_name}.{member} is not supported; supported: {', '.join(table)}")
    return table[member](getattr(message, member), *args)


def require(message: M | None, what: str) -> M:
    """Insist that a message is there.

    Args:
        message: The message, or None.
        what: Its path, for the error.

    Returns:
        The message.

    Raises:
        ConfigError: Where it is None.
    """
    if message is None:
        raise ConfigError(f"{what} is missing from the configuration")
    return message


@contextmanager
def located(path: str) -> Iterator[None]:
    """Say in errors where in the configuration they arose.

    Args:
        path: The message's path.

    Yields:
        Nothing.

    Raises:
        ConfigError: What was raised inside, with the path before it.
    """
    try:
        yield
    except ConfigError as error:
        raise ConfigError(f"{path}: {error}") from None


def in_order(config: Message, low: str, high: str) -> tuple[Any, Any]:
    """Return two numbers of a message of which the first may not be over the second.

    Args:
        config: The message.
        low: The field of the lesser.
        high: The field of the larger.

    Returns:
        Both.

    Raises:
        ConfigError: Where they are the other way round.
    """
    least, most = getattr(config, low), getattr(config, high)
    if least > most:
        raise ConfigError(f"{config.proto_name}: {low} {least} is over {high} {most}")
    return least, most
