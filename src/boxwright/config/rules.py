"""Rules between the fields of a message, and below them: what a table of fields says beside ranges.

A rule is given the message, and says what is wrong with it: the field at fault ("" for the message itself) and a line.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from boxwright.config.field import Enum


@dataclass(frozen=True)
class Rule:
    """What must hold between the fields of a message.

    Attributes:
        field: The field that is named where it does not; "" for the message itself.
        problem: Returns what is wrong, in a line; empty where the rule holds.
    """

    field: str
    problem: Callable[[Any], str]


def refuse(field: str, problem: str, when: Callable[[Any], Any]) -> Rule:
    """Refuse a field where `when` holds for its message.

    Args:
        field: The field; "" for the message itself.
        problem: What is wrong, and what to do. `{name}` stands for the message's field of that name.
        when: Whether it is so.
    """
    return Rule(field, lambda message: _filled(problem, message) if when(message) else "")


def ordered(*fields: str, below: bool = False) -> Rule:
    """Refuse fields whose values fall; with `below`, also equal ones."""

    def problem(message: Any) -> str:
        values = [getattr(message, field) for field in fields]
        for low, high, least, most in zip(fields, fields[1:], values, values[1:], strict=False):
            if least > most or (below and least == most):
                return (
                    f"{least} is {'not below' if below else 'over'} {high} {most}"
                    if low == fields[0]
                    else (f"expected {' <= '.join(fields)}, found {', '.join(map(str, values))}")
                )
        return ""

    return Rule(fields[0], problem)


def excludes(field: str, *others: str, why: str = "keep one") -> Rule:
    """Refuse a field that is set, or is true, beside another."""

    def problem(message: Any) -> str:
        other = next((other for other in others if _is_set(message, other)), None)
        return f"excludes {other}; {why}" if other is not None and _is_set(message, field) else ""

    return Rule(field, problem)


def together(*fields: str) -> Rule:
    """Refuse some of the fields without the others; 0 is as good as absent."""

    def problem(message: Any) -> str:
        given = [bool(getattr(message, field)) for field in fields]
        return f"set {' and '.join(fields)}, or neither" if any(given) and not all(given) else ""

    return Rule(fields[0], problem)


def rising(field: str, member: str = "") -> Rule:
    """Refuse a list that does not rise, or one whose items' member does not."""

    def problem(message: Any) -> str:
        values = [getattr(item, member) if member else item for item in getattr(message, field)]
        return "" if values == sorted(set(values)) else f"expected rising {member or 'number'}s, found {values}"

    return Rule(field, problem)


def any_of(oneof: str) -> Rule:
    """Refuse a message without any member of a oneof."""

    def problem(message: Any) -> str:
        members = [name for name in message.oneofs[oneof] if message.fields[name].status.verdict == "honoured"]
        return "" if message.which(oneof) else f"empty; set one of {', '.join(members)}"

    return Rule("", problem)


def _is_set(message: Any, field: str) -> bool:
    value = getattr(message, field)
    return bool(value) if isinstance(value, (bool, list, tuple)) else message.has(field)


def _filled(text: str, message: Any) -> str:
    return text.format_map(_Fields(message)) if "{" in text else text


class _Fields(dict[str, Any]):
    """Stands for a message where a text names its fields."""

    def __init__(self, message: Any) -> None:
        super().__init__()
        self._message = message

    def __missing__(self, name: str) -> Any:
        value = self._message
        for part in name.split("."):
            value = getattr(value, part)
        return value.name if isinstance(value, Enum) else value
