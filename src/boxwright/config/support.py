"""What becomes of a configuration: what in it is honored, without effect, or refused.

The verdict on each field, and on named values, is declared with the field; a test holds it to the builders.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from boxwright.base.errors import ConfigError
from boxwright.config.field import Status
from boxwright.config.interpret import nearest
from boxwright.config.message import Message
from boxwright.config.preset import from_preset
from boxwright.config.tree import joined

_DEFAULT = "set to its default"


@dataclass(frozen=True)
class FieldReport:
    """What becomes of a field that is set in a configuration.

    Attributes:
        location: Where it was set; empty where that was in Python.
        line: The line in that file; 0 if unknown.
        in_preset: Whether a preset sets it, rather than the user.
    """

    path: str
    status: Status
    location: str = ""
    line: int = 0
    in_preset: bool = False

    @property
    def worth_saying(self) -> bool:
        """Whether to report it to the user: it is not simply honored."""
        return bool(self.status.note) and self.status.note != _DEFAULT

    def __str__(self) -> str:
        where = f"{self.location}: " if self.location else ""
        return f"{where}{self.path}: {self.status.verdict}: {self.status.note}"


def field_status(message: type[Message], name: str) -> Status:
    """Return what becomes of a field."""
    return Status("refused", message.refused) if message.refused else message.fields[name].status


def _value_status(message: Message, name: str) -> Status | None:
    """Return the verdict on the values of a field, where it is not that on the field."""
    values = message.fields[name].values
    if values is None:
        return None
    given = getattr(message, name)
    for value in given if isinstance(given, list) else [given]:
        if not value or value in values.names or (values.prefix and value.startswith(values.prefix)):
            continue
        known = [*values.names, *([f"{values.prefix}NAME"] if values.prefix else [])]
        reason = (values.refused or {}).get(value)
        hint = "" if reason else nearest(value, values.names)
        why = reason or f"is not known{hint if 'mean' in hint else ''}"
        return Status("refused", f"{value!r} {why}; known: {', '.join(known)}")
    return None


def report(message: Message, path: str = "") -> Iterator[FieldReport]:
    """Report every field that is set in a message and below.

    What lies below a refused field is refused with it. A refused switch that is set to its default
    asks for nothing, and counts as honored.

    Yields:
        One report a set field, in the order of declaration.
    """
    yield from _report(message, path, None)


def _report(message: Message, path: str, inherited: Status | None) -> Iterator[FieldReport]:
    specs = message.fields
    for name, value in message.present().items():
        status = inherited or _value_status(message, name) or field_status(type(message), name)
        if status.verdict == "refused" and not inherited and _is_default(message, name):
            status = Status("honored", _DEFAULT)
        elif status.note_when is not None and not status.note_when(message):
            status = Status(status.verdict)
        where = joined(path, name)
        location = message.location(name)
        place, line = (str(location), location.line) if location else ("", 0)
        yield FieldReport(where, status, place, line, from_preset(location))
        if specs[name].kind == "message":
            below = status if status.verdict != "honored" else None
            for number, child in enumerate(value if specs[name].repeated else [value]):
                index = f"[{number}]" if specs[name].repeated else ""
                yield from _report(child, where + index, below)


def _is_default(message: Message, name: str) -> bool:
    spec = message.fields[name]
    if spec.kind == "message" or spec.repeated:
        return False
    return bool(getattr(message, name) == spec.default)


def broken_rules(message: Message) -> Iterator[ConfigError]:
    """Yield what breaks the rules of a message itself."""
    for rule in message.rules:
        if problem := rule.problem(message):
            yield message.refusal(rule.field, problem)


def contradictions(message: Message) -> Iterator[ConfigError]:
    """Yield what breaks a rule between fields, in a message and below where it is honored, each with its place."""
    yield from broken_rules(message)
    for name, value in message.present().items():
        field = message.fields[name]
        if field.kind == "message" and field_status(type(message), name).verdict == "honored":
            for child in value if field.repeated else [value]:
                yield from contradictions(child)


def refuse_contradictions(message: Message) -> None:
    """Raise the first broken rule of a message, or below it, for builders of parts that may be called alone."""
    for problem in contradictions(message):
        raise problem


def grouped(reports: Sequence[FieldReport]) -> list[list[FieldReport]]:
    """Bring together the reports with the same verdict for the same reason, what is refused first.

    Args:
        reports: Those of a whole message, in order.

    Returns:
        Groups of those that are worth saying; what lies below a refused field goes without saying.
    """
    groups: dict[tuple[str, str], list[FieldReport]] = {}
    above = ""
    for item in reports:
        if not item.worth_saying or (above and item.path.startswith((f"{above}.", f"{above}["))):
            continue
        if item.status.verdict == "refused":
            above = item.path
        groups.setdefault((item.status.verdict, item.status.note), []).append(item)
    order = ("refused", "without effect", "honored")
    return sorted(groups.values(), key=lambda group: order.index(group[0].status.verdict))


def refuse_unsupported(message: Message, path: str) -> None:
    """Raise if a message asks for anything that is not supported, or contradicts itself.

    Raises:
        ConfigError: Naming every refused field, outermost only, and every broken rule, with what to do.
    """
    refused: list[FieldReport] = []
    for field_report in report(message, path):
        covered = any(field_report.path.startswith((f"{other.path}.", f"{other.path}[")) for other in refused)
        if field_report.status.verdict == "refused" and not covered:
            refused.append(field_report)
    lines = [*map(str, refused), *map(str, contradictions(message))]
    if lines:
        raise ConfigError("\n".join(lines))
