"""From a tree to a message: names, types, presence and oneofs, with one-line errors that point.

Two ways in, as in protobuf: `interpret` reads a whole document (a field given twice is an error),
`merge` lays one over an existing message (scalars replace, messages merge, lists append, and a
oneof's new member clears the old).
"""

from __future__ import annotations

import itertools
import re
from collections.abc import Callable, Iterable
from typing import Any, TypeVar

from boxwright.base.errors import shortened
from boxwright.base.nearest import did_you_mean
from boxwright.base.text import to_number, visible_line
from boxwright.config.field import Field, ValueProblem
from boxwright.config.message import Message
from boxwright.config.tree import Block, Location, Pair, Scalar, Value, ValueList, joined

M = TypeVar("M", bound=Message)
_MOST_DIGITS = 100


def interpret(block: Block, message: type[M], path: str = "") -> M:
    """Build a message from a tree.

    Args:
        path: Where the message sits in the whole configuration, for errors.

    Returns:
        The message; every field remembers its place.

    Raises:
        ConfigError: For an unknown field, a value of a wrong type or out of range, two members of
            a oneof, or a field that is given twice.
    """
    result = message()
    result._start = block.location
    seen: dict[str, Location] = {}
    lists: dict[str, list[Any]] = {}
    for pair in block.pairs:
        spec = _spec(message, pair.name, pair.location)
        name, where = spec.name, joined(path, spec.name)
        if name in seen and not spec.repeated:
            raise pair.location.error(f"{where}: given twice, first at line {seen[name].line}")
        seen[name] = pair.location
        members = message.oneofs.get(spec.oneof, ())
        if other := next((member for member in members if member in seen and member != name), None):
            oneof = f"oneof {spec.oneof} of {message.proto_name}"
            raise pair.location.error(f"{where}: excludes {other}, set at line {seen[other].line} ({oneof})")
        values = _values(pair.value, spec, where)
        if spec.repeated:  # set once, at the end: each time costs as much as all that is there
            lists.setdefault(name, []).extend(values)
        else:
            _store(result, name, values[0], pair.location, where)
    for name, values in lists.items():
        _store(result, name, values, seen[name], joined(path, name))
    return result


def merge(block: Block, into: Message, path: str = "") -> None:
    """Merge a tree into a message by protobuf's rules.

    Args:
        path: Where the message sits in the whole configuration, for errors.

    Raises:
        ConfigError: As `interpret`.
    """
    lists: dict[str, list[Any]] = {}
    for pair in block.pairs:
        spec = _spec(type(into), pair.name, pair.location)
        name, where = spec.name, joined(path, spec.name)
        if spec.kind == "message" and not spec.repeated and into.has(name) and isinstance(pair.value, Block):
            merge(pair.value, getattr(into, name), where)
        elif spec.repeated:
            lists.setdefault(name, []).extend(_values(pair.value, spec, where))
            into._locations[name] = pair.location
        else:
            set_field(into, name, pair.value, where)
    for name, values in lists.items():
        _store(into, name, [*_items(into, name), *values], into._locations[name], joined(path, name))


def set_field(message: Message, name: str, value: Value, path: str, *, append: bool = False) -> None:
    """Set one field from a tree value; another member of the same oneof is cleared.

    Args:
        path: The field's path in the whole configuration, for errors.
        append: Whether a list grows (as in a merge) or is replaced.

    Raises:
        ConfigError: Where the field is unknown or the value does not fit it.
    """
    spec = _spec(type(message), name, value.location)
    name, values = spec.name, _values(value, spec, path)
    if spec.repeated:
        _store(message, name, [*(_items(message, name) if append else []), *values], value.location, path)
    else:
        _store(message, name, values[0], value.location, path)


def _items(message: Message, name: str) -> list[Any]:
    """Return what a list was set to; nothing where it has its default, to which no merge appends."""
    return list(getattr(message, name)) if message.has(name) else []


def _store(message: Message, name: str, value: Any, location: Location, path: str) -> None:
    entries: list[Message] = []
    if message.fields[name].map:  # of entries with one key the last holds, as in protobuf, and each has both parts
        value = entries = list({entry.key: entry for entry in value}.values())
    try:
        for entry, part in itertools.product(entries, ("key", "value")):
            if not entry.has(part):
                default = getattr(entry, part)
                entry.set(part, entry.fields[part].type() if default is None else default, location)
        message.set(name, value, location)
    except ValueProblem as error:
        where = "" if error.index is None else f"[{error.index}]"
        raise location.error(f"{path}{where}: {error.problem}") from None


def field_named(message: type[Message], name: str) -> Field | None:
    """Return the field of a name, or of the name that it had once."""
    return message.fields.get(name) or next((field for field in message.fields.values() if field.was == name), None)


def _spec(message: type[Message], name: str, location: Location) -> Field:
    field = field_named(message, name)
    if field is None:
        raise location.error(unknown_field(name, message))
    return field


def unknown_field(name: str, message: type[Message]) -> str:
    """Return one line, with the nearest known name where one is near."""
    if name in message.removed:
        return f'object_detection.protos.{message.proto_name} has no field named "{name}": {message.removed[name]}'
    return f"{visible_line(_brief(name))}: unknown field of {message.proto_name}{nearest(name, message.fields)}"


def nearest(name: str, known: Iterable[str]) -> str:
    """Return "; did you mean X?", or "; known: …" for a short list, or nothing."""
    names = list(known)
    return did_you_mean(name, names, f"known: {', '.join(names)}" if 0 < len(names) <= 12 else "")


def _values(value: Value, spec: Field, path: str) -> list[Any]:
    if spec.map and isinstance(value, Block) and not {pair.name for pair in value.pairs} <= {"key", "value"}:
        value = _entries(value)
    if isinstance(value, ValueList):
        if not spec.repeated:
            raise value.location.error(f"{path}: takes one value, found a list")
        return [_interpret_value(item, spec, f"{path}[{i}]") for i, item in enumerate(value.values)]
    return [_interpret_value(value, spec, path)]


def _entries(block: Block) -> ValueList:
    """Return the entries of a map that is written as YAML and JSON do: `name: value`."""
    entries = []
    for pair in block.pairs:
        key = Pair("key", Scalar("bare", pair.name, pair.location), pair.location)
        entries.append(Block((key, Pair("value", pair.value, pair.value.location)), pair.location))
    return ValueList(tuple(entries), block.location)


def _interpret_value(value: Value, spec: Field, path: str) -> Any:
    if spec.kind == "message":
        if not isinstance(value, Block):
            raise value.location.error(f"{path}: expected a message {{ … }}, found {_kind(value)}")
        return interpret(value, spec.type, path)
    if not isinstance(value, Scalar):
        raise value.location.error(f"{path}: expected {_WANTED[spec.kind]}, found {_kind(value)}")
    return read_scalar(value, spec, path)


def _brief(text: str) -> str:
    return shortened(text, _MOST_DIGITS)


def _kind(value: Value) -> str:
    if isinstance(value, Scalar):
        return f"'{visible_line(_brief(value.text))}'"
    return "a message" if isinstance(value, Block) else "a list"


_WANTED = {
    "float": "a number",
    "int": "an integer",
    "bool": "true or false",
    "string": "a string",
    "enum": "an enum value",
}


def read_scalar(scalar: Scalar, spec: Field, path: str) -> Any:
    """Read a scalar as its field's type; a ConfigError where the text is not of it."""
    value = _read_enum(scalar, spec) if spec.kind == "enum" else _READERS[spec.kind](scalar)
    if value is None:
        wanted = _WANTED[spec.kind]
        if spec.kind == "enum":
            members = list(spec.type.__members__)
            wanted = f"one of {', '.join(members)}"
            raise scalar.location.error(
                f"{path}: expected {wanted}, found {_brief(scalar.text)!r}{did_you_mean(scalar.text, members)}"
            )
        raise scalar.location.error(f"{path}: expected {wanted}, found {_brief(scalar.text)!r}")
    return value


def _integer(text: str) -> int | None:
    sign, digits = (-1, text[1:]) if text.startswith("-") else (1, text)
    if len(digits) > _MOST_DIGITS:  # far beyond 64 bits, and Python takes long for thousands
        return None
    if re.fullmatch(r"0[xX][0-9a-fA-F]+", digits):
        return sign * int(digits, 16)
    if re.fullmatch(r"0[0-7]+", digits):
        return sign * int(digits, 8)
    return sign * int(digits) if re.fullmatch(r"0|[1-9][0-9]*", digits) else None


def _read_float(scalar: Scalar) -> float | None:
    text = scalar.text.lower()
    if scalar.kind == "string":
        return None
    if re.fullmatch(r"-?\.?(inf|infinity|nan)", text):
        return float(text.replace(".", ""))
    if (integer := _integer(text)) is not None:
        return float(integer)
    try:
        return to_number(text.removesuffix("f")) if re.match(r"-?[0-9.]", text) else None
    except ValueError:
        return None


def _read_bool(scalar: Scalar) -> bool | None:
    words = {"true": True, "True": True, "t": True, "1": True, "false": False, "False": False, "f": False, "0": False}
    return None if scalar.kind == "string" else words.get(scalar.text)


def _read_enum(scalar: Scalar, spec: Field) -> Any:
    members = spec.type.__members__
    if scalar.kind in ("name", "bare", "string") and scalar.text in members:
        return None if scalar.kind == "string" else members[scalar.text]
    number = _integer(scalar.text) if scalar.kind in ("number", "bare") else None
    return next((member for member in members.values() if member.value == number), None)


_READERS: dict[str, Callable[[Scalar], Any]] = {
    "float": _read_float,
    "int": lambda scalar: _integer(scalar.text) if scalar.kind in ("number", "bare") else None,
    "bool": _read_bool,
    "string": lambda scalar: scalar.text if scalar.kind in ("string", "bare") else None,
}
