"""Declaring a setting once: name, default, help and bound. The command line makes its options of it."""

from __future__ import annotations

from dataclasses import field
from typing import Any

__all__ = ["setting"]


def setting(
    default: Any,
    help: str,
    panel: str = "",
    least: float | None = None,
    most: float | None = None,
    flags: tuple[str, ...] = (),
) -> Any:
    """Return a dataclass field that carries what the command line needs to know of it.

    Args:
        default: Its value where nothing is said.
        help: What it does.
        panel: Under which heading help shows it.
        least: The least value, if there is one.
        most: The greatest.
        flags: What the option is called, where that is not the field's name.

    Returns:
        The field.
    """
    told = {"help": help, "panel": panel or None, "least": least, "most": most, "flags": flags}
    return field(default=default, metadata=told)
