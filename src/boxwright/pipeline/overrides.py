"""Changes to a configuration from the command line: `path=value`, or a snippet to merge.

    train_config.batch_size=8
    train_config.data_augmentation_options[1].ssd_random_crop={}
    eval_input_reader[0].label_map_path=labels.pbtxt
    train_config { optimizer { adam_optimizer { } } }

Setting a member of a oneof clears the others, as in protobuf.
"""

from __future__ import annotations

import re
from typing import Any

from boxwright.base.errors import ConfigError, shortened
from boxwright.config.field import Field
from boxwright.config.interpret import field_named, merge, set_field, unknown_field
from boxwright.config.message import Message
from boxwright.config.text_format import parse_text
from boxwright.config.tree import Block, Location, Scalar, Value, ValueList, check_size

_INDEX = re.compile("[0-9]{1,9}")
_LONGEST = 120
_ASSIGNMENT = re.compile(r"\s*([A-Za-z_][\w.\[\]]*)\s*=(.*)", re.DOTALL)


def apply_override(config: Message, override: str) -> None:
    """Apply one override to a configuration, in place.

    Args:
        override: `path=value` (a string may stand without quotes; an index `[i]` or `.i` names one
            of a repeated message and may be omitted where there is only one), or text format,
            which is merged.

    Raises:
        ConfigError: Where the path does not exist or the value does not fit.
    """
    location = Location(f"override {shortened(override.strip(), _LONGEST)!r}", 1, 1)
    match = _ASSIGNMENT.fullmatch(override)
    if match is None:
        if "{" not in override and ":" not in override:
            raise ConfigError(f"{location.file}: expected path=value, or text format such as a {{ b: 1 }}")
        merge(_parsed(override, location.file), config)
        return
    path, text = match.groups()
    *parents, (name, index) = _steps(path, location)
    message = config
    for parent, position in parents:
        message = _descend(message, parent, position, location)
    spec = _known(message, name, location)
    value = _read(text, spec, location)
    if index is None:
        set_field(message, name, value, path)
    else:
        _set_item(message, spec.name, index, value, path)


def _parsed(text: str, file: str) -> Block:
    block = parse_text(text, file)
    check_size(block)
    return block


def _steps(path: str, location: Location) -> list[tuple[str, int | None]]:
    """Split a path into field names, each with the index that follows it."""
    steps: list[tuple[str, int | None]] = []
    for part in re.findall(r"[^.\[\]]+", path):
        if not _INDEX.fullmatch(part):
            steps.append((part, None))
        elif steps and steps[-1][1] is None:
            steps[-1] = (steps[-1][0], int(part))
        else:
            raise ConfigError(f"{location.file}: {path}: the index {part} follows no field name")
    return steps


def _known(message: Message, name: str, location: Location) -> Field:
    field = field_named(type(message), name)
    if field is None:
        raise ConfigError(f"{location.file}: {unknown_field(name, type(message))}")
    return field


def _descend(message: Message, name: str, index: int | None, location: Location) -> Message:
    """Enter a message field, creating it where it is absent."""
    spec = _known(message, name, location)
    if spec.kind != "message":
        raise ConfigError(f"{location.file}: {name} of {message.proto_name} is a {spec.kind}, it has no fields")
    name = spec.name
    current: Any = getattr(message, name) if spec.repeated or message.has(name) else None
    if spec.repeated:
        if index is None and len(current) > 1:
            raise ConfigError(f"{location.file}: {name} has {len(current)} items; say which, as in {name}[0]")
        position = index or 0
        _check_index(current, name, position, location)
        current = current[position] if position < len(current) else None
    elif index is not None:
        raise ConfigError(f"{location.file}: {name} of {message.proto_name} is not a list, so it takes no index")
    if current is None:
        set_field(message, name, Block((), location), name, append=True)
        current = getattr(message, name)
        current = current[-1] if spec.repeated else current
    child: Message = current
    return child


def _check_index(items: list[object], name: str, index: int, location: Location) -> None:
    if index > len(items):
        raise ConfigError(f"{location.file}: {name}[{index}] is beyond the end; it has {len(items)} items")


def _set_item(message: Message, name: str, index: int, value: Value, path: str) -> None:
    """Replace one item of a list, or append to it."""
    if not isinstance(getattr(message, name), list):
        raise ConfigError(f"{value.location.file}: {name} of {message.proto_name} is not a list, so it takes no index")
    before = list(getattr(message, name))
    _check_index(before, name, index, value.location)
    set_field(message, name, value, path, append=True)
    new = getattr(message, name)[len(before) :]
    setattr(message, name, [*before[:index], *new, *before[index + 1 :]])


def _read(text: str, spec: Field, location: Location) -> Value:
    """Read the right-hand side: text format where it looks like it, else the bare words."""
    stripped = text.strip()
    if not stripped and spec.repeated:
        return ValueList((), location)
    if spec.kind == "message" or stripped[:1] in ("[", '"', "'"):
        colon = "" if stripped[:1] in "{<" else ":"
        pairs = _parsed(f"value{colon} {stripped}", location.file).pairs
        if len(pairs) != 1:
            raise ConfigError(f"{location.file}: expected one value, found more after it: {pairs[1].name}")
        return pairs[0].value
    try:
        stripped.encode()
    except UnicodeEncodeError:
        raise ConfigError(f"{location.file}: not UTF-8") from None
    return Scalar("bare", stripped, location)
