"""The base of every configuration message: protobuf's rules.

A message behaves as protobuf's does: a field that was never set has its default and is *absent*
(`has`), a field set to its default is present; at most one member of a oneof is present; `float`
fields hold float32 values. Two messages are equal when the same fields are present with the same
values.
"""

from __future__ import annotations

import inspect
from collections.abc import Collection, Iterator
from typing import Any, ClassVar, Self

from boxwright.base.errors import ConfigError
from boxwright.config.field import Enum, Field, ValueProblem
from boxwright.config.rules import Rule
from boxwright.config.tree import Location, joined


class Message:
    """A configuration message.

    A subclass is a table of fields. Keywords of its `class` line: `name`, in protobuf and without its package
    ("Ssd.MaskHead"), where it is not the class's; `oneof`, which excludes all its fields of each other, but for those
    `outside` it; `refused`, why no field of it can be used, and what to do; `removed`, fields that TensorFlow once had,
    each with what to do; `path`, where it stands in a whole configuration, if it has one place only.

    Attributes:
        fields: Field name to field, in the order of declaration.
        oneofs: For each oneof its members, of which at most one may be present.
        refused: Why no field of the message can be used; empty where each has a verdict of its own.
        removed: Fields that TensorFlow once had, each with what to do.
        rules: What must hold between its fields, and below them.
    """

    fields: ClassVar[dict[str, Field]] = {}
    proto_name: ClassVar[str] = ""
    oneofs: ClassVar[dict[str, tuple[str, ...]]] = {}
    refused: ClassVar[str] = ""
    removed: ClassVar[dict[str, str]] = {}
    rules: ClassVar[tuple[Rule, ...]] = ()

    # The place where the message begins, and its path in the whole configuration, are unknown if it was made in Python.
    _start: Location | None = None
    _path: str | None = None
    _locations: dict[str, Location]

    def __init_subclass__(
        cls,
        *,
        name: str = "",
        oneof: str = "",
        outside: Collection[str] = (),
        refused: str = "",
        removed: dict[str, str] | None = None,
        path: str | None = None,
    ) -> None:
        """Read the table that a subclass is."""
        super().__init_subclass__()
        own = {key: value for key, value in vars(cls).items() if isinstance(value, Field)}
        annotations = inspect.get_annotations(cls, eval_str=True)
        for key, field in own.items():
            field.set_type(key, annotations[key])
            field.oneof = field.oneof or ("" if key in outside else oneof)
        cls.fields, cls.proto_name, cls.refused, cls.removed = own, name or cls.__name__, refused, removed or {}
        names = dict.fromkeys(field.oneof for field in own.values() if field.oneof)
        cls.oneofs = {group: tuple(key for key, field in own.items() if field.oneof == group) for group in names}
        cls._path = path

    def __init__(self, **values: Any) -> None:
        """Set the fields that are given; the others are absent.

        Raises:
            ConfigError: For an unknown field, or a value that does not fit.
        """
        self._locations = {}
        for name, value in values.items():
            setattr(self, name, value)

    def __setattr__(self, name: str, value: Any) -> None:
        if name.startswith("_"):
            object.__setattr__(self, name, value)
        elif name not in self.fields:
            raise self.refusal("", f"there is no field {name}")
        elif value is None and self.fields[name].kind == "message" and not self.fields[name].repeated:
            self.clear(name)
        else:
            try:
                self._store(name, self.fields[name].read(value))
            except ValueProblem as error:
                raise self.refusal(name if error.index is None else f"{name}[{error.index}]", error.problem) from None

    def _store(self, name: str, value: Any) -> None:
        others = self.oneofs.get(self.fields[name].oneof, ())
        present = next((other for other in others if other != name and self.has(other)), None)
        if present is not None:
            raise self.refusal(name, f"excludes {present} (oneof {self.fields[name].oneof} of {self.proto_name})")
        self.__dict__[name] = value
        self._locations.pop(name, None)

    def set(self, name: str, value: Any, location: Location | None) -> None:
        """Set a field, clear the other members of its oneof, and remember the place.

        Raises:
            ValueProblem: Where the value does not fit the field.
        """
        value = self.fields[name].read(value)
        for other in self.oneofs.get(self.fields[name].oneof, ()):
            if other != name:
                self.clear(other)
        self.__dict__[name] = value
        if location is not None:
            self._locations[name] = location

    def has(self, name: str) -> bool:
        """Return true where the field was set, be it to its default; for a list, where it is not empty."""
        value = self.__dict__.get(name)
        return bool(value) if isinstance(value, list) else name in self.__dict__

    def which(self, oneof: str) -> str | None:
        """Return the member's field name, or None where no member is present."""
        return next((name for name in self.oneofs[oneof] if self.has(name)), None)

    def chosen(self, oneof: str) -> Any:
        """Return the value of the member that is present, or None where none is."""
        name = self.which(oneof)
        return None if name is None else getattr(self, name)

    def present(self) -> dict[str, Any]:
        """Return field name to value; messages stay messages."""
        return {name: self.__dict__[name] for name in self.fields if self.has(name)}

    def location(self, name: str) -> Location | None:
        """Return the place, or None where the field was set from Python."""
        return self._locations.get(name)

    @property
    def begins_at(self) -> Location | None:
        """The place where the message begins; None where it was made in Python."""
        return self._start

    def refusal(self, field: str, problem: str) -> ConfigError:
        """Return the error of a field that cannot be used, with its file and line where known, and its whole path.

        Args:
            field: A field of this message, or what it holds as `field.member`; "" for the message itself.
            problem: What is wrong, and what to do, in one line.
        """
        where = self._place(field)
        text = f"{self.field_path(field)}: {problem}"
        return where.error(text) if where else ConfigError(text)

    def _place(self, path: str) -> Location | None:
        """Return where a field begins, or the innermost message or field on the way to it whose place is known."""
        name, _, below = path.partition(".")
        where = self.location(name.partition("[")[0]) or self._start
        value = self.__dict__.get(name) if below else None
        return (value._place(below) or where) if isinstance(value, Message) else where

    def field_path(self, field: str) -> str:
        """Return a field's path in the whole configuration; from the message on, where its place there is not known."""
        return joined(self.proto_name if self._path is None else self._path, field)

    def set_path(self, path: str = "") -> None:
        """Tell this message and those below it their paths in the whole configuration."""
        self._path = path
        for name, value in self.present().items():
            where = joined(path, name)
            if isinstance(value, Message):
                value.set_path(where)
            elif isinstance(value, list):
                for number, item in enumerate(value):
                    if isinstance(item, Message):
                        item.set_path(f"{where}[{number}]")

    def clear(self, name: str) -> None:
        """Make a field absent."""
        self.__dict__.pop(name, None)
        self._locations.pop(name, None)

    def replaced(self, **values: Any) -> Self:
        """Return a copy with other values; messages below are shared."""
        copy = type(self)()
        copy.__dict__.update(self.__dict__)
        copy._locations = dict(self._locations)
        for name, value in values.items():
            setattr(copy, name, value)
        return copy

    def to_dict(self) -> dict[str, Any]:
        """Return nested dictionaries, lists and scalars."""
        return {
            name: _to_plain(self.mapping(name) if self.fields[name].map else value)
            for name, value in self.present().items()
        }

    def mapping(self, name: str) -> dict[Any, Any]:
        """Return a field that is a map, key to value, in the order of the source."""
        return {entry.key: entry.value for entry in getattr(self, name)}

    def __eq__(self, other: object) -> bool:
        return type(self) is type(other) and isinstance(other, Message) and self.present() == other.present()

    __hash__ = None  # type: ignore[assignment]  # mutable, as protobuf's messages are

    def __repr__(self) -> str:
        values = ", ".join(f"{name}={value!r}" for name, value in self.present().items())
        return f"{type(self).__name__}({values})"


def _to_plain(value: object) -> object:
    if isinstance(value, Message):
        return value.to_dict()
    if isinstance(value, list):
        return [_to_plain(item) for item in value]
    if isinstance(value, dict):
        return {key: _to_plain(item) for key, item in value.items()}
    return value.name if isinstance(value, Enum) else value


def find_fields(message: Message, names: Collection[str]) -> Iterator[tuple[Message, str]]:
    """Yield every scalar that is present under one of some names, in a message or below it: its message, its field."""
    for name, value in message.present().items():
        if message.fields[name].kind == "message":
            for child in value if message.fields[name].repeated else [value]:
                yield from find_fields(child, names)
        elif name in names:
            yield message, name
