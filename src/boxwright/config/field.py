"""A field of a configuration message: type, default, range, what becomes of it, meaning.

The types of fields are Python's `float`, `int`, `bool` and `str`, which are protobuf's float, int32, bool and string;
`Double` and `UInt32`; an enum; a message, which may be absent (`X | None`); or a list of any of these.
"""

from __future__ import annotations

import dataclasses
import enum
import math
import re
import struct
import types
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Annotated, Any, Literal, Union, get_args, get_origin

Double = Annotated[float, "double"]
UInt32 = Annotated[int, "uint32"]

Verdict = Literal["honored", "without effect", "refused"]
Kind = Literal["message", "enum", "float", "int", "bool", "string"]

_KINDS: dict[type, Kind] = {float: "float", int: "int", bool: "bool", str: "string"}
_ACCEPTED: dict[Kind, tuple[type, ...]] = {"int": (int,), "float": (int, float), "string": (str,), "bool": (bool,)}
_NUMBERS = {2: "two", 3: "three"}
_WANTED = {"int": "integer", "float": "number", "bool": "boolean", "string": "string"}


@dataclass(frozen=True)
class Status:
    """What becomes of a field, or of a value.

    Attributes:
        verdict: Whether a builder reads it; it changes nothing, for a reason; or it cannot be used.
        note: The reason, or what to do where it is refused; or what to know.
        note_when: Returns whether the note applies to a message that has the field; None for any.
    """

    verdict: Verdict
    note: str = ""
    note_when: Callable[[Any], bool] | None = None


@dataclass(frozen=True)
class AllowedValues:
    """The values of a string field that are honored.

    Attributes:
        prefix: What other values may start with; empty for no others.
        refused: Known values that are refused, each with what to do.
    """

    names: tuple[str, ...]
    prefix: str = ""
    refused: dict[str, str] | None = None


@dataclass(frozen=True)
class Interval:
    """A range of numbers, written as in mathematics: "[0, 1)", "(0, inf)". NaN is in none."""

    low: float
    high: float
    open_low: bool
    open_high: bool

    @classmethod
    def parse(cls, text: str) -> Interval:
        """Return the interval that a text such as "[0, inf)" writes."""
        match = re.fullmatch(r"([\[(])(\S+), (\S+)([\])])", text)
        if match is None:
            raise ValueError(f"not an interval: {text!r}")
        return cls(float(match[2]), float(match[3]), match[1] == "(", match[4] == ")")

    def problem(self, value: float) -> str:
        """Return what is wrong with a number; empty where it lies inside."""
        if (
            math.isnan(value)
            or (value == self.high == math.inf and self.open_high)
            or (value == self.low == -math.inf and self.open_low)
        ):
            return "should be a finite number"
        if not (value > self.low if self.open_low else value >= self.low):
            return f"should be greater than {'' if self.open_low else 'or equal to '}{self.low:g}"
        if not (value < self.high if self.open_high else value <= self.high):
            return f"should be less than {'' if self.open_high else 'or equal to '}{self.high:.15g}"
        return ""


class ValueProblem(ValueError):  # noqa: N818  # a message makes the error, with place and path
    """A value that does not fit its field.

    Attributes:
        problem: What is wrong, and what was found.
        index: The item of a list that it is of; None where it is of no list.
    """

    def __init__(self, problem: str, value: object, index: int | None = None) -> None:
        """Take what is wrong with a value."""
        self.problem = f"{problem}, found {value!r}" if isinstance(value, str) else f"{problem}, found {value}"
        self.index = index
        super().__init__(self.problem)


class Enum(enum.IntEnum):
    """The base of configuration enums: protobuf's names and numbers."""


@dataclass(eq=False)
class Field:
    """A field of a message; made by `field` and `number`, named and typed by the class that it stands in.

    Reading it from a message gives what was set, or the default.
    """

    default: Any
    meaning: str
    status: Status
    within: str = ""
    multiple_of: int = 0
    length: int = 0
    unit: str = ""
    oneof: str = ""
    was: str = ""
    values: AllowedValues | None = None

    # What the class says of it.
    name: str = dataclasses.field(init=False)
    kind: Kind = dataclasses.field(init=False)
    type: Any = dataclasses.field(init=False)
    single: bool = dataclasses.field(init=False)
    unsigned: bool = dataclasses.field(init=False)
    repeated: bool = dataclasses.field(init=False)
    map: bool = dataclasses.field(init=False)
    interval: Interval | None = dataclasses.field(init=False)

    def set_type(self, name: str, annotation: Any) -> None:
        """Take name and type from the class: `float`, `list[int]`, `Message | None`."""
        self.name = name
        self.repeated = get_origin(annotation) is list
        inner = get_args(annotation)[0] if self.repeated else annotation
        while get_origin(inner) in (Union, types.UnionType):
            inner = get_args(inner)[0]
        exact = get_args(inner)[1] if get_origin(inner) is Annotated else ""
        self.type = get_args(inner)[0] if exact else inner
        self.interval = Interval.parse(self.within) if self.within else None
        self.single, self.unsigned = self.type is float and exact != "double", exact == "uint32"
        if issubclass(self.type, Enum):
            self.kind = "enum"
        else:
            self.kind = _KINDS.get(self.type, "message")
        fields = getattr(self.type, "fields", {})
        self.map = self.repeated and set(fields) == {"key", "value"}

    def __get__(self, message: Any, owner: type | None = None) -> Any:
        if message is None:
            return self
        if self.repeated and not self.default:
            return message.__dict__.setdefault(self.name, [])  # so that appending to it is not lost
        return tuple(self.default) if self.repeated else self.default

    def read(self, value: Any) -> Any:
        """Return a value as the field holds it.

        Raises:
            ValueProblem: Where it is of another type, or outside the field's range.
        """
        if not self.repeated:
            return self._check_value(value)
        if not isinstance(value, Sequence) or isinstance(value, str):
            raise ValueProblem("should be a valid list", value)
        if self.length and value and len(value) != self.length:
            raise ValueProblem(f"expected {_NUMBERS[self.length]} numbers", list(value))
        return [self._check_value(item, index) for index, item in enumerate(value)]

    def _check_value(self, value: Any, index: int | None = None) -> Any:
        if self.kind == "message":
            if not isinstance(value, self.type):
                raise ValueProblem(f"should be a valid {self.type.__name__}", value, index)
            return value
        if self.kind == "enum":
            return self._member(value, index)
        if not _has_kind(value, self.kind):
            raise ValueProblem(f"should be a valid {_WANTED[self.kind]}", value, index)
        if self.kind in ("int", "float"):
            return self._number(value, index)
        return value

    def _member(self, value: Any, index: int | None) -> Any:
        members: dict[str, Any] = self.type.__members__
        if value in members:
            return members[value]
        for member in members.values():
            if type(value) in (int, self.type) and member == value:
                return member
        raise ValueProblem(f"should be one of {', '.join(members)}", value, index)

    def _number(self, value: Any, index: int | None) -> Any:
        value = float(value) if self.kind == "float" else value
        if self.single:
            value = _to_float32(value)
        least, beyond = (0, 2**32) if self.unsigned else (-(2**31), 2**31)
        problem = self.interval.problem(value) if self.interval else ""
        if not problem and self.kind == "int" and not least <= value < beyond:
            problem = f"should be {least} to {beyond - 1}"
        if not problem and self.multiple_of and value % self.multiple_of:
            problem = f"should be a multiple of {self.multiple_of}"
        if problem:
            raise ValueProblem(problem, value, index)
        return value


def _has_kind(value: object, kind: Kind) -> bool:
    if isinstance(value, bool):
        return kind == "bool"
    return isinstance(value, _ACCEPTED[kind])


def _to_float32(value: float) -> float:
    """Round to float32, and return the double that prints shortest among those naming it.

    protobuf stores float32: 0.1 and 0.100000001490116 are the same value there, so they are here.
    Beyond float32's range lies infinity, as in protobuf's text format.
    """
    single = _single(value)
    if not math.isfinite(single):
        return single
    # NumPy could do this, but takes a while to import.
    shorter = (float(f"{single:.{digits}g}") for digits in range(1, 10))
    return next(short for short in shorter if _single(short) == single)


def _single(value: float) -> float:
    """Round to float32; beyond its range lies infinity."""
    try:
        return float(struct.unpack("<f", struct.pack("<f", value))[0])
    except OverflowError:
        return math.copysign(math.inf, value)


def field(
    default: Any,
    meaning: str,
    *,
    no_effect: str = "",
    refused: str = "",
    note: str = "",
    note_when: Callable[[Any], bool] | None = None,
    values: AllowedValues | None = None,
    **more: Any,
) -> Any:
    """Return a field of a message; without `no_effect` or `refused` it is honored: some builder reads it.

    Args:
        default: The value of a field that was never set; of a message None, or what stands for an absent one, which
            nobody may change; [] for a list.
        refused: What to do, as it cannot be used.
        note: What to know of a field that is honored.
        note_when: As in `Status`.
        values: Which values of a string are honored; None for any.
        **more: `within` (of numbers: "[0, 1)"), `multiple_of`, `length` (of a list that is not empty), `unit`,
            `oneof` (its name; the class may name one for all its fields), `was` (an old spelling, which is still read).

    Returns:
        The field; typed as any, so that it may stand as the default of every annotation.
    """
    verdict: Verdict = "refused" if refused else "without effect" if no_effect else "honored"
    status = Status(verdict, refused or no_effect or note, note_when)
    return Field(default, meaning, status=status, values=values, **more)


def number(default: Any, within: str, meaning: str, **more: Any) -> Any:
    """Return a field of a number, or a list of numbers, each `within` an interval such as "[0, inf)"."""
    return field(default, meaning, within=within, **more)
