"""`boxwright config`: show, check, fields."""

from __future__ import annotations

from collections.abc import Sequence
from enum import Enum as PythonEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from boxwright.base.errors import ConfigError
from boxwright.cli.console import console, errors, importing, print_document, print_json, suggest
from boxwright.cli.help import PlainCommand, PlainGroup
from boxwright.cli.options import with_settings

if TYPE_CHECKING:
    from boxwright.config.field import Field
    from boxwright.config.message import Message
    from boxwright.config.support import FieldReport
    from boxwright.pipeline.messages import TrainEvalPipelineConfig

_SHOWN = 6
app = typer.Typer(
    name="config",
    cls=PlainGroup,
    help="Show, check and explain configurations.",
    add_completion=False,
    rich_markup_mode=None,
)


class Format(str, PythonEnum):
    """The formats of `config show`."""

    TEXT = "text"
    YAML = "yaml"
    JSON = "json"


_File = Annotated[Path, typer.Argument(help="A configuration (text format, YAML or JSON), or preset:NAME.")]
_Set = Annotated[
    list[str] | None, typer.Option("--set", help="Change a field first, as in --set train_config.batch_size=8.")
]


@app.command(cls=PlainCommand)
@with_settings
def show(
    file: _File,
    format: Annotated[Format, typer.Option("--format", help="Output format.")] = Format.TEXT,
    set_: _Set = None,
) -> None:
    """Print the complete configuration of a file, or preset:NAME, in any of three formats."""
    from boxwright.config.load import dump_message
    from boxwright.pipeline.load import load_config

    config = load_config(file, set_ or [])
    for note in config.notes:
        if format is Format.JSON:  # it has no comments
            errors.print(note)
        else:
            # As a comment, so that the output is still a configuration.
            print_document(f"# {note}\n")
    print_document(dump_message(config, format.value))


@app.command(cls=PlainCommand)
@with_settings
def check(file: _File, set_: _Set = None) -> None:
    """Report fields that are refused or have no effect, and build it; exit with status 1 if it cannot train.

    Model, training and evaluation are built without weights, to reveal contradictions. Data and checkpoints are not
    opened. Fields with the same reason are reported together.
    """
    with importing():
        from boxwright.config.support import contradictions, grouped, report
        from boxwright.pipeline.load import load_config

    config = load_config(file, set_ or [])
    for note in config.notes:
        console.print(note)
    reports = list(report(config))
    for group in grouped(reports):
        style = {"refused": "red", "without effect": "yellow"}.get(group[0].status.verdict)
        console.print(str(group[0]), style=style)
        if len(group) > 1:
            console.print(f"  as are {_fields_at_lines(group[1:])}", style=style)
    verdicts: list[str] = [item.status.verdict for item in reports]
    counts = ", ".join(f"{verdicts.count(name)} {name}" for name in ("honored", "without effect", "refused"))
    console.print(f"{len(reports)} fields set: {counts}")
    broken = list(contradictions(config))
    for problem in broken:
        console.print(str(problem), style="red")
    if broken or "refused" in verdicts:
        console.print("training cannot start: remove or change the refused fields")
        raise typer.Exit(1)
    _build(config)
    suggest("doctor", file, *(word for change in set_ or [] for word in ("--set", change)))


def _build(config: TrainEvalPipelineConfig) -> None:
    """Build the parts that are present, and report everything that is missing."""
    from boxwright.pipeline.missing import missing_for_training
    from boxwright.pipeline.tensorflow_version import explain_version

    missing = missing_for_training(config)
    # What is missing must not hide contradictions in the rest.
    buildable = config.replaced()
    if missing:
        buildable.clear("train_config")
    if not any(field.path.startswith("model") for field in missing):
        build_plans(buildable)
    if meaning := explain_version(config):
        console.print(meaning)
    if missing:
        console.print("training cannot start, as this is missing:")
        for field in missing:
            console.print(f"  {field}")
        raise typer.Exit(1)


def build_plans(config: TrainEvalPipelineConfig) -> None:
    """Build the model without weights, and the plans of evaluation and, with a `train_config`, of training."""
    import torch

    from boxwright.evaluation.build import build_evaluation
    from boxwright.pipeline.detector import build_detector
    from boxwright.pipeline.input_reader import check_reader
    from boxwright.pipeline.training import build_training

    with torch.device("meta"):
        build_detector(config)
    if config.train_config is not None:
        build_training(config)
        check_reader(config.train_input_reader, "train_input_reader")
    build_evaluation(config)


def _fields_at_lines(group: Sequence[FieldReport]) -> str:
    """Return the first fields with their lines, and how many more there are."""
    shown = [f"{item.path} ({item.line})" if item.line else item.path for item in group[:_SHOWN]]
    rest = len(group) - len(shown)
    return ", ".join(shown) + (f" and {rest} more" if rest else "")


@app.command(cls=PlainCommand)
@with_settings
def fields(
    path: Annotated[
        str,
        typer.Argument(help="A path, such as train_config.optimizer, or a message, such as Ssd; default: the root."),
    ] = "",
) -> None:
    """Explain the fields at a path: type, default, status, meaning."""
    from rich.table import Column, Table

    from boxwright.config.support import field_status

    message, only = _find(path)
    names = Column("field", no_wrap=True), "type", Column("default", overflow="fold"), "status", "meaning"
    table = Table(*names, box=None, padding=(0, 2, 0, 0))
    for name, field in message.fields.items():
        if only in (None, name):
            status = field_status(message, name)
            note = f" ({status.note})" if status.note else ""
            table.add_row(name, describe_type(field), format_default(field), status.verdict, f"{field.meaning}{note}")
    console.print(f"{message.proto_name}: {(message.__doc__ or '').strip()}")
    console.print(table)


@app.command(cls=PlainCommand)
@with_settings
def schema() -> None:
    """Print the JSON Schema of a configuration in YAML or JSON, for editors: they complete fields and mark mistakes."""
    from boxwright.config.load import json_schema
    from boxwright.pipeline.messages import TrainEvalPipelineConfig

    print_json(json_schema(TrainEvalPipelineConfig))


def _find(path: str) -> tuple[type[Message], str | None]:
    """Return the message at a path, and the field if the path ends in a plain one."""
    from boxwright.config.interpret import nearest, unknown_field
    from boxwright.config.message import Message
    from boxwright.pipeline.messages import TrainEvalPipelineConfig

    messages = {cls.proto_name: cls for cls in Message.__subclasses__()}
    if path in messages:
        return messages[path], None
    message: type[Message] = TrainEvalPipelineConfig
    parts = [part for part in path.split(".") if part]
    for number, part in enumerate(parts):
        # The index in a path such as eval_input_reader[0] does not change the message.
        name = part.split("[")[0]
        specs = message.fields
        if name not in specs:
            hint = nearest(path, messages) if number == 0 and not nearest(name, specs).startswith("; did") else ""
            raise ConfigError(unknown_field(name, message) + hint)
        if specs[name].kind != "message":
            if number + 1 < len(parts):
                raise ConfigError(f"{name} of {message.proto_name} is a {specs[name].kind}, it has no fields")
            return message, name
        message = specs[name].type
    return message, None


def describe_type(field: Field) -> str:
    """Return a field's type in words."""
    name = " | ".join(field.type.__members__) if field.kind == "enum" else field.kind
    if field.kind == "message":
        below: type[Message] = field.type
        if field.map:
            return f"map from {describe_type(below.fields['key'])} to {describe_type(below.fields['value'])}"
        name = below.proto_name
    if field.within:
        name += f" in {field.within}"
    return f"list of {name}" if field.repeated else name


def format_default(field: Field) -> str:
    """Return a field's default as a configuration writes it; empty for none."""
    from boxwright.config.text_format import write_text

    if field.default in (None, []):
        return ""
    if field.kind == "message":
        return " ".join(write_text(field.default).split())
    return field.default.name if field.kind == "enum" else str(field.default)
