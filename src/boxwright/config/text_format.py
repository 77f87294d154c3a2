"""protobuf's text format: read by a grammar into a tree, written from a message.

The grammar follows the specification of the language: `#` comments, an optional `:` before a
message, `{ }` or `< >`, `[a, b]` for repeated fields, `;` or `,` between fields, adjacent strings
that join, C escapes, decimal, octal and hexadecimal integers, floats with an `f`.
"""

from __future__ import annotations

import math
import re
from typing import Any

from lark import Lark, Token, Transformer
from lark.exceptions import UnexpectedCharacters, UnexpectedInput, UnexpectedToken, VisitError

from boxwright.base.errors import ConfigError
from boxwright.config.field import Enum
from boxwright.config.message import Message
from boxwright.config.tree import Block, Location, Pair, Scalar, SourceLocator, Value, ValueList

_GRAMMAR = r"""
document: pair*
pair: NAME ":" value SEPARATOR?
    | NAME ":" value ","
    | NAME message SEPARATOR?
    | NAME message ","
    | NAME messages SEPARATOR?
    | NAME messages ","
?value: scalar | message | items
messages: "[" message ("," message)* "]"
items: "[" [item ("," item)*] "]"
?item: scalar | message
message: "{" pair* "}" | "<" pair* ">"
scalar: STRING+ | MINUS? NUMBER | MINUS? NAME

SEPARATOR: ";"
MINUS: "-"
NAME: /[A-Za-z_][A-Za-z0-9_]*/
NUMBER: /(0[xX][0-9a-fA-F]+|([0-9]+\.?[0-9]*|\.[0-9]+)([eE][+-]?[0-9]+)?[fF]?)(?![A-Za-z0-9_.])/
STRING: /"(\\.|[^"\\\n])*"/ | /'(\\.|[^'\\\n])*'/
COMMENT: /#[^\n]*/
%ignore /[ \t\r\n\f\v]+/
%ignore COMMENT
"""

_PARSER = Lark(_GRAMMAR, start="document", parser="lalr", maybe_placeholders=False)

_EXPECTED = {
    "NAME": "a field name",
    "COLON": "':'",
    "LBRACE": "'{'",
    "RBRACE": "'}'",
    "LESSTHAN": "'<'",
    "MORETHAN": "'>'",
    "STRING": "a string",
    "NUMBER": "a number",
    "LSQB": "'['",
    "RSQB": "']'",
}


def parse_text(text: str, file: str) -> Block:
    """Read text format into a tree.

    Raises:
        ConfigError: Where the text is not text format; with file, line, column and what was expected.
    """
    try:
        text.encode()
    except UnicodeEncodeError as error:
        place = text[: error.start]
        where = Location(file, place.count("\n") + 1, error.start - place.rfind("\n"))
        raise where.error(f"this is not UTF-8: found half of a character, {text[error.start]!r}") from None
    try:
        tree = _PARSER.parse(text)
    except UnexpectedToken as error:
        if error.token.type == "$END":
            raise _truncated(text, file) from None
        if empty := _key_without_value(text, error.token, file):
            raise empty from None
        token = f"'{error.token}'"
        raise Location(file, error.line, error.column).error(
            f"expected {_names(error.expected)}, found {token}"
        ) from None
    except UnexpectedCharacters as error:
        raise _bad_character(text, file, error) from None
    except UnexpectedInput as error:  # pragma: no cover - lark has no third kind today
        raise Location(file, error.line, error.column).error("this is not text format") from None
    try:
        block: Block = _ToTree(file).transform(tree)
        return block
    except VisitError as error:  # lark wraps what a rule raises
        raise error.orig_exc from None
    except RecursionError:
        raise Location(file, 1, 1).error("messages are nested too deeply") from None


def _key_without_value(text: str, unexpected: Token, file: str) -> ConfigError | None:
    """Say which key has no value, where the next line was taken for it and does not fit."""
    before: list[Token] = []
    for token in _PARSER.lex(text):
        if token.start_pos == unexpected.start_pos:
            break
        before = [*before[-2:], token]
    kinds = [token.type for token in before]
    if unexpected.type == "COLON" and kinds == ["NAME", "COLON", "NAME"] and before[0].line != before[2].line:
        key = before[0]
    elif unexpected.type in ("RBRACE", "MORETHAN") and kinds[-2:] == ["NAME", "COLON"]:
        key = before[-2]
    else:
        return None
    return Location(file, key.line or 1, key.column or 1).error(f"{key} has no value")


def _names(expected: set[str]) -> str:
    known = sorted({_EXPECTED[name] for name in expected if name in _EXPECTED})
    return " or ".join(known) or "another token"


def _bad_character(text: str, file: str, error: UnexpectedCharacters) -> ConfigError:
    line = text.split("\n")[error.line - 1]
    rest = line[error.column - 1 :]
    where = Location(file, error.line, error.column)
    if rest[0] in "\"'":
        return where.error(f"this string is not closed on its line: {rest[:40]}")
    if rest[0].isdigit() or rest[0] == ".":
        return where.error(f"malformed number {re.split(r'[^A-Za-z0-9_.+-]', rest)[0]!r}")
    if rest[0] in _TYPOGRAPHIC_QUOTES:
        return where.error(f'unexpected character {rest[0]!r}; write straight quotes: "…"')
    return where.error(f"unexpected character {rest[0]!r}")


def _truncated(text: str, file: str) -> ConfigError:
    """Say which message is still open at the end of the file."""
    opened: list[tuple[str, Token]] = []
    name = "a message"
    for token in _PARSER.lex(text):
        if token.type == "NAME":
            name = str(token)
        elif token.type in ("LBRACE", "LESSTHAN", "LSQB"):
            opened.append((name, token))
        elif token.type in ("RBRACE", "MORETHAN", "RSQB"):
            opened.pop()
    lines = text.count("\n") + 1
    end = Location(file, lines, len(text) - (text.rfind("\n") + 1) + 1)
    if not opened:
        return end.error(f"the file ends after '{name}', where a value was expected")
    name, token = opened[-1]
    closing = {"{": "}", "<": ">", "[": "]"}[str(token)]
    return end.error(f"the file ends inside '{name}', opened at line {token.line}: expected '{closing}'")


class _ToTree(Transformer[Token, Any]):
    """Turn lark's parse tree into ours, keeping places."""

    def __init__(self, file: str) -> None:
        super().__init__()
        self.file, self._at = file, SourceLocator(file).at

    def document(self, children: list[Pair]) -> Block:
        return Block(tuple(children), Location(self.file, 1, 1))

    def pair(self, children: list[Any]) -> Pair:
        name, value = children[0], children[1]
        location = self._at(name)
        if isinstance(value, Block):
            value = Block(value.pairs, location)
        elif isinstance(value, ValueList):
            value = ValueList(value.values, location)
        return Pair(str(name), value, location)

    def message(self, children: list[Pair]) -> Block:
        location = children[0].location if children else Location(self.file, 0, 0)
        return Block(tuple(children), location)

    def items(self, children: list[Value]) -> ValueList:
        return ValueList(tuple(children), Location(self.file, 0, 0))

    messages = items

    def scalar(self, tokens: list[Token]) -> Scalar:
        location = self._at(tokens[0])
        if tokens[0].type == "STRING":
            return Scalar("string", "".join(_unescape(str(t)[1:-1], self._at(t)) for t in tokens), location)
        kind = "number" if tokens[-1].type == "NUMBER" else "name"
        return Scalar(kind, "".join(str(t) for t in tokens), location)  # type: ignore[arg-type]


_SIMPLE_ESCAPES = {
    "a": 7,
    "b": 8,
    "f": 12,
    "n": 10,
    "r": 13,
    "t": 9,
    "v": 11,
    "?": 63,
    "\\": 92,
    "'": 39,
    '"': 34,
}
_ESCAPE = re.compile(r"\\(?:([0-7]{1,3})|[xX]([0-9a-fA-F]{1,2})|u([0-9a-fA-F]{4})|U([0-9a-fA-F]{8})|(.))", re.DOTALL)


_TYPOGRAPHIC_QUOTES = "‘’‚“”„«»`´"
# C:\temp as Windows shows it: its \t would be a tab.
_WINDOWS_PATH = re.compile(r"[A-Za-z]:\\(?!\\)[\w\\ ./()-]{2,}")


def _unescape(body: str, location: Location) -> str:
    if _WINDOWS_PATH.fullmatch(body):
        path = body.replace("\\\\", "/").replace("\\", "/")
        raise location.error(f'backslashes begin escapes in strings; write the path as "{path}"')

    def replace(match: re.Match[str]) -> bytes:
        octal, hexadecimal, short, long, simple = match.groups()
        if octal:
            return bytes([int(octal, 8) & 255])
        if hexadecimal:
            return bytes([int(hexadecimal, 16)])
        if short or long:
            code = int(short or long, 16)
            if code > 0x10FFFF or 0xD800 <= code <= 0xDFFF:
                raise location.error(f"escape '{match.group()}' is no character")
            return chr(code).encode()
        if simple not in _SIMPLE_ESCAPES:
            raise location.error(
                f"unknown escape '\\{simple}' in a string; write / in a path, and \\\\ for a backslash"
            )
        return bytes([_SIMPLE_ESCAPES[simple]])

    parts: list[bytes] = []
    end = 0
    for match in _ESCAPE.finditer(body):
        parts += [body[end : match.start()].encode(), replace(match)]
        end = match.end()
    try:
        return b"".join([*parts, body[end:].encode()]).decode()
    except UnicodeError:
        raise location.error("this string is not UTF-8 once its escapes are read") from None


def write_text(message: Message, indent: int = 0) -> str:
    """Return the present fields, one a line, ending in a newline (empty for an empty message)."""
    return "".join(
        _write_field(name, item, indent)
        for name, value in message.present().items()
        for item in (value if isinstance(value, list) else [value])
    )


def _write_field(name: str, value: object, indent: int) -> str:
    pad = " " * indent
    if isinstance(value, Message):
        return f"{pad}{name} {{\n{write_text(value, indent + 2)}{pad}}}\n"
    return f"{pad}{name}: {_write_scalar(value)}\n"


def _write_scalar(value: object) -> str:
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, Enum):
        return value.name
    if isinstance(value, str):
        return _quote(value)
    if isinstance(value, float):
        if math.isnan(value):
            return "nan"
        return repr(value) if math.isfinite(value) else ("inf" if value > 0 else "-inf")
    return str(value)


def _quote(value: str) -> str:
    escaped = value.replace("\\", "\\\\").replace('"', '\\"')
    return '"' + re.sub(r"[\x00-\x1f\x7f]", lambda m: f"\\{ord(m.group()):03o}", escaped) + '"'
