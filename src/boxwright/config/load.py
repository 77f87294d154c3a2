"""Reading and writing messages as text format, YAML or JSON, and the JSON Schema of the last two.

YAML and JSON have the shape of the messages: field names as keys, lists for repeated fields, enums by name. Each value
keeps its place in the file. Python's own JSON reader knows no places, and YAML's, which does, takes some characters of
JSON's strings for line ends; so the grammar of JSON is here, and only its strings are read by Python.
"""

from __future__ import annotations

import codecs
import json
import math
import re
from collections.abc import Callable
from functools import cache
from itertools import combinations
from pathlib import Path
from typing import Any, Literal, TypeVar

import yaml
from lark import Lark, Token, Transformer
from lark.exceptions import UnexpectedInput, VisitError

from boxwright.base.errors import ConfigError
from boxwright.base.files import cause, read_bytes, shown
from boxwright.base.yaml_text import compose_yaml
from boxwright.config.field import Field, Interval
from boxwright.config.interpret import interpret
from boxwright.config.message import Message
from boxwright.config.text_format import parse_text, write_text
from boxwright.config.tree import Block, Location, Pair, Scalar, SourceLocator, Value, ValueList, check_size

_TYPES = {"float": "number", "int": "integer", "bool": "boolean", "string": "string"}

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


Format = Literal["text", "yaml", "json"]
M = TypeVar("M", bound=Message)

_SUFFIXES: dict[str, Format] = {".yaml": "yaml", ".yml": "yaml", ".json": "json"}


def load_message(path: str | Path, message: type[M]) -> M:
    """Read a file that holds one message, such as a pipeline configuration or a label map.

    Args:
        path: Its ending decides the format, as for `load_config`.

    Raises:
        ConfigError: Where the file cannot be read or understood.
    """
    path = Path(path)
    try:
        text = _decoded(read_bytes(path))
    except FileNotFoundError:
        raise ConfigError(f"{shown(path)}: no such file") from None
    except IsADirectoryError:
        raise ConfigError(f"{shown(path)}: is a folder; a file is expected") from None
    except UnicodeDecodeError as error:
        raise ConfigError(f"{shown(path)}: cannot be read as text: {error}") from None
    except (OSError, ValueError) as error:
        raise ConfigError(f"{shown(path)}: cannot be read as text: {cause(error)}") from None
    return parse_message(text, message, file=str(path), format=_SUFFIXES.get(path.suffix.lower(), "text"))


def _decoded(data: bytes) -> str:
    """Return a file's text: UTF-8, or UTF-16 as Windows' tools write it, with a byte order mark."""
    if data.startswith((codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE)):
        text = data.decode("utf-16")
    else:
        text = data.decode("utf-8-sig")
    return text.replace("\r\n", "\n").replace("\r", "\n")


def parse_message(text: str, message: type[M], *, file: str = "<string>", format: Format = "text") -> M:
    """Read a message from a string, of a `file` that errors name; a ConfigError where it cannot be understood."""
    block = _PARSERS[format](text, file)
    if not isinstance(block, Block):
        raise block.location.error("expected a mapping of field names to values")
    check_size(block)
    result = interpret(block, message)
    result.set_path(message.proto_name if result._path is None else result._path)
    return result


def dump_message(message: Message, format: Format = "text") -> str:
    """Return the text, ending in a newline."""
    if format == "text":
        return write_text(message)
    if format == "yaml":
        return yaml.dump(message.to_dict(), Dumper=_Dumper, sort_keys=False, allow_unicode=True)
    return json.dumps(_jsonable(message.to_dict()), indent=2, ensure_ascii=False) + "\n"


def _jsonable(value: object) -> object:
    """JSON has no infinity: write it as protobuf's JSON does, in words."""
    if isinstance(value, dict):
        return {key: _jsonable(item) for key, item in value.items()}
    if isinstance(value, list):
        return [_jsonable(item) for item in value]
    if isinstance(value, float) and (value != value or value in (float("inf"), float("-inf"))):
        return str(value)
    return value


class _Dumper(yaml.SafeDumper):
    """Writes text in double quotes where YAML's readers would change it: their escapes keep every character."""


_KEPT_BARE = r"\x20-\x7e\xa0-\u2027\u202a-\ud7ff\ue000-\ufefe\uff00-\ufffd\U00010000-\U0010ffff"
_CHANGED_BARE = re.compile(f"[^{_KEPT_BARE}]|^ | $")
_Dumper.add_representer(
    str,
    lambda dumper, text: dumper.represent_scalar(
        "tag:yaml.org,2002:str", text, style='"' if _CHANGED_BARE.search(text) else None
    ),
)


def _parse_yaml(text: str, file: str) -> Value:
    start = Location(file, 1, 1)
    try:
        node = compose_yaml(text)
    except yaml.MarkedYAMLError as error:
        mark = error.problem_mark
        where = Location(file, mark.line + 1, mark.column + 1) if mark else start
        raise where.error(f"this is not yaml: {error.problem}") from None
    except (yaml.YAMLError, ValueError) as error:
        raise start.error(f"this is not yaml: {error}") from None
    except RecursionError:
        raise start.error("values are nested too deeply") from None
    return Block((), start) if node is None else _from_yaml(node, file, {})


def _from_yaml(node: yaml.Node, file: str, known: dict[int, Value | None]) -> Value:
    """Turn YAML's tree into ours; what an alias repeats is turned once, and shared."""
    where = Location(file, node.start_mark.line + 1, node.start_mark.column + 1)
    if id(node) in known:
        value = known[id(node)]
        if value is None:
            raise where.error("an alias contains itself")
        return value
    known[id(node)] = None
    if isinstance(node, yaml.MappingNode):
        pairs = []
        for key, item in node.value:
            at = Location(file, key.start_mark.line + 1, key.start_mark.column + 1)
            if not isinstance(key, yaml.ScalarNode):
                raise at.error("expected a field name")
            pairs.append(Pair(key.value, _from_yaml(item, file, known), at))
        value = Block(tuple(pairs), where)
    elif isinstance(node, yaml.SequenceNode):
        value = ValueList(tuple(_from_yaml(item, file, known) for item in node.value), where)
    elif node.tag == "tag:yaml.org,2002:null":
        raise where.error("expected a value, found null; leave the field out instead")
    else:
        # Quotes are how JSON writes enums and infinities, so a quoted scalar is no more than bare.
        value = Scalar("bare", node.value, where)
    known[id(node)] = value
    return value


_PARSERS: dict[Format, Callable[[str, str], Value]] = {"text": parse_text, "yaml": _parse_yaml, "json": parse_json}


def json_schema(message: type[Message]) -> dict[str, Any]:
    """Return the JSON Schema (draft 2020-12) of a message, and of all messages below it as definitions."""
    definitions: dict[str, Any] = {}
    _define(message, definitions)
    return {
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        "$ref": f"#/$defs/{message.proto_name}",
        "$defs": definitions,
    }


def _define(message: type[Message], definitions: dict[str, Any]) -> None:
    if message.proto_name in definitions:
        return
    schema: dict[str, Any] = {"type": "object", "description": (message.__doc__ or "").strip()}
    definitions[message.proto_name] = schema
    schema["properties"] = properties = {}
    for field in message.fields.values():
        properties[field.name] = _field(field, definitions)
        if field.was:
            properties[field.was] = {**properties[field.name], "deprecated": True}
    schema["additionalProperties"] = False
    pairs = [pair for members in message.oneofs.values() for pair in combinations(members, 2)]
    if pairs:
        schema["allOf"] = [{"not": {"required": list(pair)}} for pair in pairs]


def _field(field: Field, definitions: dict[str, Any]) -> dict[str, Any]:
    value = _value(field, definitions)
    schema: dict[str, Any] = value
    if field.map:
        schema = {"type": "object", "additionalProperties": _value(field.type.fields["value"], definitions)}
    elif field.repeated:
        schema = {"type": "array", "items": value}
        if field.length:
            schema |= {"minItems": field.length, "maxItems": field.length}
    elif field.default is not None:
        schema["default"] = _plain_default(field)
    note = f" ({field.status.verdict}: {field.status.note})" if field.status.note else ""
    schema["description"] = field.meaning + note
    if field.status.verdict == "refused":
        schema["deprecated"] = True
    return schema


def _plain_default(field: Field) -> Any:
    if field.kind == "message":
        return field.default.to_dict()
    return field.default.name if field.kind == "enum" else field.default


def _value(field: Field, definitions: dict[str, Any]) -> dict[str, Any]:
    if field.kind == "message":
        _define(field.type, definitions)
        return {"$ref": f"#/$defs/{field.type.proto_name}"}
    if field.kind == "enum":
        return {"enum": list(field.type.__members__)}
    schema: dict[str, Any] = {"type": _TYPES[field.kind]}
    if field.kind == "float":  # infinities are written as words
        schema = {"type": ["number", "string"]}
    if field.interval is not None:
        schema |= _bounds(field.interval)
    if field.multiple_of:
        schema["multipleOf"] = field.multiple_of
    if field.values is not None and not field.values.prefix:
        schema["enum"] = ["", *field.values.names]
    return schema


def _bounds(interval: Interval) -> dict[str, float]:
    bounds = {}
    if math.isfinite(interval.low):
        bounds["exclusiveMinimum" if interval.open_low else "minimum"] = interval.low
    if math.isfinite(interval.high):
        bounds["exclusiveMaximum" if interval.open_high else "maximum"] = interval.high
    return bounds
