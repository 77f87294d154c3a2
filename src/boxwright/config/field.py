"""A field of a configuration message, declared with what becomes of it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Literal

import pydantic
from pydantic_core import PydanticUndefined

Verdict = Literal["honoured", "without effect", "refused"]


@dataclass(frozen=True)
class Status:
    """What becomes of a field, or of a value.

    Attributes:
        verdict: Whether a builder reads it; it changes nothing, for a reason; or it cannot be used.
        note: The reason, or what to do where it is refused; or what to know.
    """

    verdict: Verdict
    note: str = ""


@dataclass(frozen=True)
class Values:
    """The values of a field of text that are honoured.

    Attributes:
        names: The values.
        prefix: What other values may start with; empty for no others.
        refused: Known values that are refused, each with what to do.
    """

    names: tuple[str, ...]
    prefix: str = ""
    refused: dict[str, str] | None = None


def Field(  # noqa: N802  # it stands where pydantic's stands
    default: Any = PydanticUndefined,
    *,
    description: str,
    no_effect: str = "",
    refused: str = "",
    note: str = "",
    values: Values | None = None,
    default_factory: Callable[[], Any] | None = None,
    **constraints: Any,
) -> Any:
    """Return a field for pydantic; without `no_effect` or `refused` it is honoured: some builder reads it.

    Args:
        default: The value of a field that was never set.
        refused: What to do, as it cannot be used.
        note: What to know of a field that is honoured.
        values: Which values of a text are honoured; None for any.
        default_factory: Makes the default of a list.
        **constraints: pydantic's, such as `ge`.
    """
    verdict = "refused" if refused else "without effect" if no_effect else "honoured"
    extra: Any = {"verdict": verdict, "note": refused or no_effect or note, "values": values}
    if default_factory is not None:
        return pydantic.Field(
            default_factory=default_factory, description=description, json_schema_extra=extra, **constraints
        )
    return pydantic.Field(default, description=description, json_schema_extra=extra, **constraints)


def _extra(info: pydantic.fields.FieldInfo) -> dict[str, Any]:
    if not isinstance(info.json_schema_extra, dict):
        raise TypeError("a field of a message is declared by boxwright.config.field.Field")
    return info.json_schema_extra


def status_of(info: pydantic.fields.FieldInfo) -> Status:
    """Return what becomes of a field."""
    extra = _extra(info)
    return Status(extra["verdict"], extra["note"])


def values_of(info: pydantic.fields.FieldInfo) -> Values | None:
    """Return which values of a field are honoured; None for any."""
    values: Values | None = _extra(info)["values"]
    return values
