"""The commands, with their help lines and the modules that are imported when they are called.

`boxwright --help` reads only this table, and so does not wait for those imports.
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

# Name to the module and function (or command group) in this package, and the help line.
COMMANDS = {
    "init": ("init.init_command", "Write a configuration for a folder of annotated pictures."),
    "models": ("models.models_command", "List the presets: detectors to start from."),
    "weights": ("weights.app", "List and fetch published weights, by name."),
    "train": ("train.train_command", "Train a detector; run again to resume."),
    "evaluate": ("evaluate.evaluate_command", "Compute the metrics of a detector; draw what it finds."),
    "report": ("report.report_command", "Show on a page why average precision is what it is."),
    "history": ("history.history_command", "Write a picture of a run's curves."),
    "compare": ("compare.compare_command", "Compare two evaluations: is one better?"),
    "predict": ("predict.predict_command", "Detect objects in images, video, webcam and RTSP streams."),
    "demo": ("demo.demo_command", "Detect blood cells in sample pictures, or train on them."),
    "convert": ("convert.convert_command", "Convert data to Pascal VOC, COCO, YOLO or TFRecord."),
    "export": ("export.export_command", "Write a detector as ONNX, OpenVINO, LiteRT, or weights."),
    "benchmark": ("benchmark.benchmark_command", "Measure latency and images per second."),
    "serve": ("serve.serve_command", "Serve an exported detector over HTTP."),
    "ui": ("ui.ui_command", "Open a page on which detectors are tried and compared."),
    "exporter_main_v2": ("exporter_main.exporter_command", "Export with TensorFlow's exporter options."),
    "inspect": ("inspect.inspect_command", "Summarize a data set; draw a contact sheet."),
    "doctor": ("doctor.doctor_command", "Check a configuration and data for problems."),
    "replay": ("replay.replay_command", "Repeat a training step that was not finite."),
    "context": ("context.app", "Write records with context for Context R-CNN."),
    "config": ("config.app", "Show, check and explain configurations."),
}
# Other programs' names of commands.
_ALIASES = {"val": "evaluate", "detect": "predict"}
_WIDTH = max(map(len, COMMANDS))


class Commands(TyperGroup):
    """The commands by name or alias; an unknown name lists them all."""

    def list_commands(self, ctx: Any) -> list[str]:
        """Return the names in help order."""
        return list(COMMANDS)

    def get_command(self, ctx: Any, cmd_name: str) -> Any:
        """Return the command of a name or alias; None if it is unknown."""
        name = _ALIASES.get(cmd_name, cmd_name)
        return load_command(name) if name in COMMANDS else None

    def resolve_command(self, ctx: Any, args: list[str]) -> Any:
        """Return the command and its arguments; fail with a list of commands if the name is unknown."""
        name = args[0]
        # With underscores, so that exporter-main-v2 is known, too.
        normal = ctx.token_normalize_func(name) if ctx.token_normalize_func else name
        if not name.startswith("-") and not {name, normal} & {*COMMANDS, *_ALIASES}:
            close = difflib.get_close_matches(name, [*COMMANDS, *_ALIASES], n=1)
            hint = f"; did you mean {close[0]}?" if close else ""
            lines = [f"  {known:{_WIDTH}}  {line}" for known, (_, line) in COMMANDS.items()]
            ctx.fail("\n".join([f"no command {name!r}{hint} The commands:", *lines]))
        return super().resolve_command(ctx, args)

    def format_commands(self, ctx: Any, formatter: Any) -> None:
        """Write names and help lines, without importing the commands."""
        with formatter.section("Commands"):
            formatter.write_dl([(name, line) for name, (_, line) in COMMANDS.items()])


@cache
def load_command(name: str) -> Any:
    """Import a command's module and return the command, with an option for each of its settings."""
    path, line = COMMANDS[name]
    module, _, attribute = path.rpartition(".")
    command = getattr(import_module(f"boxwright.cli.{module}"), attribute)
    if isinstance(command, typer.Typer):
        return get_command(command)
    # Completion would add two options to each command's help, and Rich's help would cut long names of options.
    app = typer.Typer(add_completion=False, pretty_exceptions_enable=False, rich_markup_mode=None)
    app.command(name, cls=PlainCommand, short_help=line)(with_settings(command))
    return get_command(app)
