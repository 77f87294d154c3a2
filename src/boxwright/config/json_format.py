"""JSON, read with the place of every value.

Python's own reader knows no places, and YAML's, which knows them, reads some characters of JSON's strings
as line ends. So the grammar is here, and the strings are read by Python's.
"""

from __future__ import annotations

import json
from functools import cache
from typing import Any

from lark import Lark, Token, Transformer
from lark.exceptions import UnexpectedInput, VisitError

from boxwright.config.tree import Block, Location, Pair, Scalar, SourceLocator, Value, ValueList

_GRAMMAR = r"""
start: value
?value: object | array | STRING -> scalar | NUMBER -> scalar | WORD -> scalar
object: OPEN [pair ("," pair)*] "}"
pair: STRING ":" value
array: OPEN_LIST [value ("," value)*] "]"
OPEN: "{"
OPEN_LIST: "["
STRING: /"([^"\\\x00-\x1f]|\\["\\\/bfnrt]|\\u[0-9a-fA-F]{4})*"/
NUMBER: /-?(0|[1-9][0-9]*)(\.[0-9]+)?([eE][+-]?[0-9]+)?/
WORD: /true|false|null|NaN|-?Infinity/
%ignore /[ \t\r\n]+/
"""


@cache
def _parser() -> Lark:
    return Lark(_GRAMMAR, start="start", parser="lalr", maybe_placeholders=False)


def parse_json(text: str, file: str) -> Value:
    """Read JSON into a tree.

    Returns:
        The tree; strings are bare words, as JSON has no others to write enums and infinities with.

    Raises:
        ConfigError: Where the text is not JSON, or says null; with file, line and column.
    """
    try:
        tree = _parser().parse(text)
    except UnexpectedInput as error:
        line, column = max(error.line, 1), max(error.column, 1)
        raise Location(file, line, column).error("this is not json: unexpected character or end") from None
    try:
        block: Value = _ToTree(file).transform(tree)
        return block
    except VisitError as error:  # lark wraps what a rule raises
        raise error.orig_exc from None
    except RecursionError:
        raise Location(file, 1, 1).error("values are nested too deeply") from None


class _ToTree(Transformer[Token, Any]):
    """Turn lark's parse tree into ours, keeping places."""

    def __init__(self, file: str) -> None:
        super().__init__()
        self._at = SourceLocator(file).at

    def start(self, children: list[Value]) -> Value:
        return children[0]

    def object(self, children: list[Any]) -> Block:
        return Block(tuple(children[1:]), self._at(children[0]))

    def array(self, children: list[Any]) -> ValueList:
        return ValueList(tuple(children[1:]), self._at(children[0]))

    def pair(self, children: list[Any]) -> Pair:
        return Pair(_text(children[0]), children[1], self._at(children[0]))

    def scalar(self, children: list[Token]) -> Scalar:
        (token,) = children
        if str(token) == "null":
            raise self._at(token).error("expected a value, found null; leave the field out instead")
        return Scalar("bare", _text(token) if token.type == "STRING" else str(token), self._at(token))


def _text(token: Token) -> str:
    return str(json.loads(str(token)))
