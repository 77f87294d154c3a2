"""The base of every configuration message: protobuf's rules, kept by pydantic.

A message behaves as protobuf's does: a field that was never set has its default and is *absent*
(`has`), a field set to its default is present; at most one member of a oneof is present; `float`
fields hold float32 values. Two messages are equal when the same fields are present with the same
values.
"""

from __future__ import annotations

import enum
import math
import struct
import types
from collections.abc import Collection, Iterator
from dataclasses import dataclass
from functools import cache
from typing import Annotated, Any, ClassVar, Literal, Union, get_args, get_origin

from pydantic import AfterValidator, BaseModel, ConfigDict, Field, GetCoreSchemaHandler, PrivateAttr, model_validator
from pydantic_core import core_schema

from boxwright.base.errors import ConfigError
from boxwright.config.tree import Location, joined

_INFINITE = {"inf": float("inf"), "infinity": float("inf"), "nan": float("nan")}


def _to_float32(value: float) -> float:
    """Round to float32, and return the double that prints shortest among those naming it.

    protobuf stores float32: 0.1 and 0.100000001490116 are the same value there, so they are here.
    Beyond float32's range lies infinity, as in protobuf's text format.
    """
    single = _single(value)
    if not math.isfinite(single):
        return single
    # Without NumPy, which takes a while to import.
    shorter = (float(f"{single:.{digits}g}") for digits in range(1, 10))
    return next(short for short in shorter if _single(short) == single)


def _single(value: float) -> float:
    """Round to float32; beyond its range lies infinity."""
    try:
        return float(struct.unpack("<f", struct.pack("<f", value))[0])
    except OverflowError:
        return math.copysign(math.inf, value)


Float = Annotated[float, AfterValidator(_to_float32)]
Double = float
# What lists hold where a value outside would be no hyperparameter; single fields say so themselves.
Finite = Annotated[Float, Field(allow_inf_nan=False)]
Positive = Annotated[Float, Field(gt=0, allow_inf_nan=False)]
NotNegative = Annotated[Float, Field(ge=0, allow_inf_nan=False)]
Fraction = Annotated[Float, Field(ge=0, le=1)]
Byte = Annotated[int, Field(ge=0, le=255, strict=True)]
Level = Annotated[int, Field(ge=0, le=16, strict=True)]


def _range(least: int, beyond: int) -> AfterValidator:
    """Return a check of its own: pydantic keeps one lower and one upper bound, and a field's must stay."""

    def check(value: int) -> int:
        if not least <= value < beyond:
            raise ValueError(f"should be {least} to {beyond - 1}")
        return value

    return AfterValidator(check)


Int32 = Annotated[int, Field(strict=True), _range(-(2**31), 2**31)]
UInt32 = Annotated[int, Field(strict=True), _range(0, 2**32)]
Bool = Annotated[bool, Field(strict=True)]
String = Annotated[str, Field(strict=True)]


class Enum(enum.IntEnum):
    """The base of configuration enums: protobuf's names and numbers."""

    @classmethod
    def __get_pydantic_core_schema__(cls, source: type, handler: GetCoreSchemaHandler) -> core_schema.CoreSchema:
        return core_schema.no_info_before_validator_function(cls.parse, handler(source))

    @classmethod
    def parse(cls, value: object) -> object:
        """Turn a member's name into the member; leave anything else for pydantic to judge.

        Args:
            value: A member, a member's name, or its number.

        Returns:
            The member, or `value` unchanged.
        """
        return cls[value] if isinstance(value, str) and value in cls.__members__ else value


class Message(BaseModel):
    """A configuration message.

    Attributes:
        proto_name: The message's name in protobuf, without its package ("Ssd.MaskHead").
        oneofs: For each oneof its members, of which at most one may be present.
        refused: Why no field of the message can be used, and what to do; empty where each has a verdict of its own.
    """

    model_config = ConfigDict(extra="forbid", validate_assignment=True, ser_json_inf_nan="constants")

    proto_name: ClassVar[str] = ""
    oneofs: ClassVar[dict[str, tuple[str, ...]]] = {}
    refused: ClassVar[str] = ""

    _locations: dict[str, Location] = PrivateAttr(default_factory=dict)
    # Where the message itself begins, and its path in the whole configuration; unknown of one that was made in Python.
    _start: Location | None = PrivateAttr(default=None)
    _path: str | None = PrivateAttr(default=None)

    def has(self, name: str) -> bool:
        """Return true where the field was set, be it to its default; for a list, where it is not empty."""
        value = self.__dict__[name]
        return bool(value) if isinstance(value, list) else name in self.model_fields_set and value is not None

    def which(self, oneof: str) -> str | None:
        """Return the member's field name, or None where no member is present."""
        return next((name for name in self.oneofs[oneof] if self.has(name)), None)

    def present(self) -> dict[str, Any]:
        """Return field name to value; messages stay messages."""
        return {name: self.__dict__[name] for name in type(self).model_fields if self.has(name)}

    def location(self, name: str) -> Location | None:
        """Return the place, or None where the field was set from Python."""
        return self._locations.get(name)

    def refusal(self, field: str, problem: str) -> ConfigError:
        """Return the error of a field that cannot be used, with its file and line where known, and its whole path.

        Args:
            field: A field of this message, or what it holds as `field.member`; "" for the message itself.
            problem: What is wrong, and what to do, in one line.
        """
        where = self.location(field.split(".")[0]) or self._start
        text = f"{self.path_of(field)}: {problem}"
        return where.error(text) if where else ConfigError(text)

    def path_of(self, field: str) -> str:
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
        spec = type(self).model_fields[name]
        self.__dict__[name] = spec.get_default(call_default_factory=True)
        self.model_fields_set.discard(name)
        self._locations.pop(name, None)

    def to_dict(self) -> dict[str, Any]:
        """Return nested dictionaries, lists and scalars."""
        specs = field_specs(type(self))
        return {
            name: _plain(self.mapping(name) if specs[name].map else value) for name, value in self.present().items()
        }

    def mapping(self, name: str) -> dict[Any, Any]:
        """Return a field that is a map: key to value.

        Args:
            name: A field whose entries have a key and a value.

        Returns:
            The map, in the order of the source.
        """
        return {entry.key: entry.value for entry in getattr(self, name)}

    def __eq__(self, other: object) -> bool:
        return type(self) is type(other) and isinstance(other, Message) and self.present() == other.present()

    __hash__ = None  # type: ignore[assignment]  # mutable, as protobuf's messages are

    @model_validator(mode="after")
    def _check_oneofs(self) -> Message:
        for oneof, members in self.oneofs.items():
            present = [name for name in members if self.has(name)]
            if len(present) > 1:
                raise ValueError(f"{' and '.join(present)} exclude each other (oneof {oneof} of {self.proto_name})")
        return self


def _plain(value: object) -> object:
    if isinstance(value, Message):
        return value.to_dict()
    if isinstance(value, list):
        return [_plain(item) for item in value]
    if isinstance(value, dict):
        return {key: _plain(item) for key, item in value.items()}
    return value.name if isinstance(value, Enum) else value


@dataclass(frozen=True)
class FieldSpec:
    """What a field holds.

    Attributes:
        kind: "message", "enum", or the scalar's kind.
        repeated: Whether the field is a list.
        map: Whether it is a list of entries with a key and a value, as protobuf writes maps in text format.
        type: The message or enum class, or the Python type of the scalar.
    """

    kind: Literal["message", "enum", "float", "int", "bool", "string"]
    repeated: bool
    type: type
    map: bool = False


@cache
def field_specs(message: type[Message]) -> dict[str, FieldSpec]:
    """Return field name to its specification, in the order of declaration."""
    return {name: _spec(info.annotation) for name, info in message.model_fields.items()}


def find_fields(message: Message, names: Collection[str]) -> Iterator[tuple[Message, str]]:
    """Yield every scalar that is present under one of some names, in a message or below it: its message, its field."""
    specs = field_specs(type(message))
    for name, value in message.present().items():
        if specs[name].kind == "message":
            for child in value if specs[name].repeated else [value]:
                yield from find_fields(child, names)
        elif name in names:
            yield message, name


_SCALARS: dict[type, Literal["float", "int", "bool", "string"]] = {
    float: "float",
    int: "int",
    bool: "bool",
    str: "string",
}


def _spec(annotation: Any) -> FieldSpec:
    repeated = get_origin(annotation) is list
    inner = get_args(annotation)[0] if repeated else annotation
    while get_origin(inner) in (Annotated, Union, types.UnionType):
        inner = get_args(inner)[0]
    if issubclass(inner, Message):
        return FieldSpec("message", repeated, inner, repeated and set(inner.model_fields) == {"key", "value"})
    if issubclass(inner, Enum):
        return FieldSpec("enum", repeated, inner)
    return FieldSpec(_SCALARS[inner], repeated, inner)
