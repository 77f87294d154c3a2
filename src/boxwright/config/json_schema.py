"""JSON Schema of a configuration's YAML and JSON forms, for editors: completion, meanings, and errors as one types."""

from __future__ import annotations

import math
from itertools import combinations
from typing import Any

from boxwright.config.field import Field, Interval
from boxwright.config.message import Message

_TYPES = {"float": "number", "int": "integer", "bool": "boolean", "string": "string"}


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
