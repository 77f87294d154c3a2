"""Pages that are generated from the code: commands, fields, Python, models, error messages."""

from __future__ import annotations

import ast
import dataclasses
import re
from collections import defaultdict
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, get_args

import typer

import boxwright
from boxwright.cli.commands import COMMANDS, load_command
from boxwright.cli.config import describe_type, format_default
from boxwright.config.message import Message
from boxwright.config.support import field_status
from boxwright.pipeline.messages import TrainEvalPipelineConfig
from boxwright.training.log import Event
from website import models
from website.families import cell

SOURCE = Path(boxwright.__file__).parent


def command_line() -> str:
    """Return what each command's `--help` prints."""
    lines = ["# Command line", "", "What `boxwright COMMAND --help` prints. `-h` is short for `--help`.", ""]
    for name in COMMANDS:
        lines += _help(load_command(name), f"boxwright {name}")
    return "\n".join(lines)


def _help(command: Any, name: str) -> Iterator[str]:
    context = typer.Context(command, info_name=name, terminal_width=100, max_content_width=100)
    yield from (f"## {name}", "", "```text", command.get_help(context).rstrip(), "```", "")
    for verb, below in getattr(command, "commands", {}).items():
        yield from _help(below, f"{name} {verb}")


def fields() -> str:
    """Return every message of a configuration with its fields, from the root on."""
    lines = [
        "# Every field",
        "",
        "All messages of a `pipeline.config`, from the root on. `boxwright config fields PATH` prints the same in a",
        "terminal, and `boxwright config schema` a JSON Schema for editors. *Honored* fields do what they say; those",
        "*without effect* are accepted, for the reason that is given; the others are *refused*.",
        "",
    ]
    for message in _messages():
        lines += [f"## {message.proto_name}", "", cell((message.__doc__ or "").strip().split("\n\n")[0]), ""]
        if message.refused:
            lines += [f"Refused: {cell(message.refused)}", ""]
        if message.fields:
            lines += ["| field | type | default | status | meaning |", "|---|---|---|---|---|"]
        for name, field in message.fields.items():
            status = field_status(message, name)
            note = "" if message.refused or not status.note else f" ({status.note})"
            kind = cell(describe_type(field))
            if field.kind == "message" and not field.map:
                kind = kind.replace(
                    field.type.proto_name, f"[{field.type.proto_name}](#{_anchor(field.type.proto_name)})"
                )
            default = format_default(field)
            lines.append(
                f"| `{name}` | {kind} | {f'`{default}`' if default else ''} | {status.verdict} | "
                f"{cell(field.meaning + note)} |"
            )
        lines.append("")
    return "\n".join(lines)


def _messages() -> list[type[Message]]:
    """Return the messages in the order in which they are reached, breadth first."""
    found: dict[type[Message], None] = {TrainEvalPipelineConfig: None}
    waiting = [TrainEvalPipelineConfig]
    while waiting:
        for field in waiting.pop(0).fields.values():
            if field.kind == "message" and field.type not in found:
                found[field.type] = None
                waiting.append(field.type)
    return list(found)


def _anchor(title: str) -> str:
    return re.sub(r"[^\w-]", "", title.lower())


def python() -> str:
    """Return the page on which mkdocstrings renders what `import boxwright` offers."""
    lines = ["# Python", "", "What `import boxwright as bw` offers; [In Python](python.md) shows it at work.", ""]
    for name in boxwright.__all__:
        (home,) = (module for module, names in boxwright._HOMES.items() if name in names)
        if home == "boxwright.config" and name == "Pipeline":
            lines += ["## Pipeline", "", "A configuration: the message that [Every field](fields.md) begins with.", ""]
        else:
            lines += [f"::: {_defined(home, name)}", ""]
    return "\n".join(lines)


def _defined(home: str, name: str) -> str:
    """Return the path of the module that defines a name, which that of its home may have imported."""
    thing = getattr(boxwright, name)
    return f"{getattr(thing, '__module__', home)}.{name}"


def events() -> str:
    """Return the section on the events' fields, of the classes themselves."""
    lines = ["", "## Their fields", "", "Of the classes of `boxwright.training.log`, when this page was built.", ""]
    for event in get_args(Event):
        lines += [f"### {event.__name__}", "", (event.__doc__ or "").split("\n\n")[0].strip(), ""]
        lines += ["| field | type | default |", "|---|---|---|"]
        for one in dataclasses.fields(event):
            default = "" if one.default is dataclasses.MISSING else f"`{one.default!r}`"
            lines.append(f"| `{one.name}` | {cell(str(one.type))} | {default} |")
        lines.append("")
    return "\n".join(lines)


def error_messages() -> str:
    """Return the text of every error that the package raises on purpose, by the error's class and the module."""
    found: dict[str, dict[str, list[str]]] = defaultdict(lambda: defaultdict(list))
    classes = [name for name in boxwright.__all__ if name.endswith("Error") and name != "BoxwrightError"]
    for path in sorted(SOURCE.rglob("*.py")):
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id in classes and node.args:
                text = _template(node.args[0])
                if text:
                    found[node.func.id][str(path.relative_to(SOURCE).with_suffix(""))].append(text)
    about = "All errors are `boxwright.BoxwrightError`. Names in braces stand for what a message says there."
    lines = ["# Error messages", "", about, ""]
    for name in classes:
        lines += [f"## {name}", "", (getattr(boxwright, name).__doc__ or "").strip(), ""]
        for module, texts in found[name].items():
            lines += [f"**{module}**", "", "```text", *dict.fromkeys(texts), "```", ""]
    return "\n".join(lines)


def _template(node: ast.expr) -> str:
    """Return a message with the last part of each expression's name in braces; empty for one that is computed."""
    if isinstance(node, ast.Constant):
        return str(node.value)
    if not isinstance(node, ast.JoinedStr):
        return ""
    parts = [str(part.value) if isinstance(part, ast.Constant) else f"{{{_name(part)}}}" for part in node.values]
    return "".join(parts) if any(isinstance(part, ast.Constant) for part in node.values) else ""


def _name(node: ast.expr) -> str:
    """Return a short name of what a part of a message holds."""
    words = re.findall(r"[A-Za-z_]+", ast.unparse(node.value)) if isinstance(node, ast.FormattedValue) else []
    return words[-1] if words else "…"


GENERATED: dict[str, Callable[[], str]] = {
    "command_line.md": command_line,
    "fields.md": fields,
    "python_reference.md": python,
    "models.md": models.page,
    "error_messages.md": error_messages,
}
