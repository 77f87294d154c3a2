"""What a configuration file says, before it is known what the names mean.

Text format, YAML and JSON are all read into this one tree, in which every value knows its place,
so that one interpreter (`interpret.py`) gives one kind of error for the three.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Literal

from boxwright.base.errors import ConfigError, shortened
from boxwright.base.files import shown
from boxwright.base.limits import CONFIG_NESTING, CONFIG_VALUES

_LONGEST = 2000


@dataclass(frozen=True)
class Location:
    """A place in a source: the file (or `--set …`), its line and its column, both from 1."""

    file: str
    line: int
    column: int

    def __str__(self) -> str:
        return f"{shown(self.file)}:{self.line}:{self.column}"

    def error(self, message: str) -> ConfigError:
        """Return a ConfigError that points here."""
        return ConfigError(f"{self}: {shortened(message, _LONGEST)}")


@dataclass(frozen=True)
class SourceLocator:
    """The places of one source's words, as lark's tokens have them."""

    file: str

    def at(self, token: Any) -> Location:
        """Return the place of a token."""
        return Location(self.file, token.line or 0, token.column or 0)


@dataclass(frozen=True)
class Scalar:
    """One word, number or string.

    `kind` is what the source called it; `bare` is text whose type only the field decides
    (an unquoted YAML scalar, the right-hand side of an override).
    """

    kind: Literal["name", "number", "string", "bare"]
    text: str
    location: Location


@dataclass(frozen=True)
class ValueList:
    """A list of values, as in `[a, b]`."""

    values: tuple[Value, ...]
    location: Location


@dataclass(frozen=True)
class Pair:
    """One `name: value`, or `name { … }`."""

    name: str
    value: Value
    location: Location


@dataclass(frozen=True)
class Block:
    """The inside of a message: pairs, in the order of the source."""

    pairs: tuple[Pair, ...]
    location: Location


Value = Scalar | ValueList | Block


def joined(*parts: str) -> str:
    """Return the path that some parts make, skipping empty ones."""
    return ".".join(part for part in parts if part)


def check_size(value: Value) -> None:
    """Raise where a tree is nested deeper, or has more values, than the limits allow.

    Args:
        value: The tree. It may share parts, as aliases of YAML do; each counts as often as it stands there.

    Raises:
        ConfigError: With the place where it gets too much.
    """
    count, waiting = 0, [(value, 1)]
    while waiting:
        node, depth = waiting.pop()
        count += 1
        problem = CONFIG_NESTING.exceeded(depth) or CONFIG_VALUES.exceeded(count)
        if problem:
            raise node.location.error(problem)
        if isinstance(node, Block):
            waiting += [(pair.value, depth + 1) for pair in reversed(node.pairs)]
        elif isinstance(node, ValueList):
            waiting += [(item, depth + 1) for item in reversed(node.values)]
