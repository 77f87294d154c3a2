"""The commands: what each is for, and the module that is imported when it is called.

`boxwright --help` reads the table alone, so that it answers before any of those modules could be imported.
"""

from __future__ import annotations

import difflib
from functools import cache
from importlib import import_module
from typing import Any

import typer
from typer.core import TyperGroup
from typer.main import get_command

from boxwright.cli.options import PlainCommand, with_settings

# Name to the module and function (or group of commands) in this package, and the line of help.
COMMANDS = {
    "init": ("init.init_command", "Write a configuration for a folder of annotated pictures."),
    "models": ("models.models_command", "List the presets: detectors to start from."),
    "train": ("train.train_command", "Train a detector; run again to resume."),
    "evaluate": ("evaluate.evaluate_command", "Compute the metrics of a detector; draw what it finds."),
    "predict": ("predict.predict_command", "Detect objects in images, video, webcam and RTSP streams."),
    "demo": ("demo.demo_command", "Make data, train on it, evaluate and draw, in minutes."),
    "convert": ("convert.convert_command", "Convert data to Pascal VOC, COCO, YOLO or TFRecord."),
    "export": ("export.export_command", "Write a detector as ONNX, OpenVINO, LiteRT, or weights."),
    "benchmark": ("benchmark.benchmark_command", "Measure latency and images a second."),
    "serve": ("serve.serve_command", "Answer requests over HTTP by an exported detector."),
    "exporter_main_v2": ("exporter_main.exporter_command", "As TensorFlow's exporter is called."),
    "inspect": ("inspect.inspect_command", "Count what is in data; draw a contact sheet."),
    "doctor": ("doctor.doctor_command", "Check a configuration and data for what ruins a run."),
    "replay": ("replay.replay_command", "Do a training step again that was not finite."),
    "config": ("config.app", "Show, check and explain configurations."),
}
# What others call two of the commands.
_ALIASES = {"val": "evaluate", "detect": "predict"}
_WIDTH = max(map(len, COMMANDS))


class Commands(TyperGroup):
    """Commands by their names, or by what others call them; where there is none of a name, all are listed."""

    def list_commands(self, ctx: Any) -> list[str]:
        """Return the names, in the order of the help."""
        return list(COMMANDS)

    def get_command(self, ctx: Any, cmd_name: str) -> Any:
        """Return the command of a name; None where there is none."""
        name = _ALIASES.get(cmd_name, cmd_name)
        return load_command(name) if name in COMMANDS else None

    def resolve_command(self, ctx: Any, args: list[str]) -> Any:
        """Return the command that is called, and its arguments; fail with a list where there is none of that name."""
        name = args[0]
        normal = ctx.token_normalize_func(name) if ctx.token_normalize_func else name
        if not name.startswith("-") and not {name, normal} & {*COMMANDS, *_ALIASES}:
            close = difflib.get_close_matches(name, [*COMMANDS, *_ALIASES], n=1)
            hint = f"; did you mean {close[0]}?" if close else ""
            lines = [f"  {known:{_WIDTH}}  {line}" for known, (_, line) in COMMANDS.items()]
            ctx.fail("\n".join([f"no command {name!r}{hint} The commands:", *lines]))
        return super().resolve_command(ctx, args)

    def format_commands(self, ctx: Any, formatter: Any) -> None:
        """Write names and lines of help, without importing the commands."""
        with formatter.section("Commands"):
            formatter.write_dl([(name, line) for name, (_, line) in COMMANDS.items()])


@cache
def load_command(name: str) -> Any:
    """Import a command's module and return the command, with an option for each of its settings.

    Args:
        name: A key of COMMANDS.
    """
    path, line = COMMANDS[name]
    module, _, attribute = path.rpartition(".")
    command = getattr(import_module(f"boxwright.cli.{module}"), attribute)
    if isinstance(command, typer.Typer):
        return get_command(command)
    app = typer.Typer(add_completion=False, pretty_exceptions_enable=False, rich_markup_mode=None)
    app.command(name, cls=PlainCommand, short_help=line)(with_settings(command))
    return get_command(app)
