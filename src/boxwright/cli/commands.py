"""The commands, with their help lines and the modules that are imported when they are called.

`boxwright --help` reads only this table, and so does not wait for those imports.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache
from importlib import import_module
from typing import Any

import typer
from typer.main import get_command

from boxwright.cli.help import USAGE_ERROR, PlainCommand, PlainGroup, exit_with_usage_error
from boxwright.cli.options import with_quiet, with_settings

# Sections of the help: each command's name, its module and function (or group of commands), and its help line.
_SECTIONS = {
    "Start here": {
        "demo": ("demo.demo_command", "Detect blood cells in sample pictures, or train on them."),
        "train": ("train.train_command", "Train a detector; run again to resume."),
        "evaluate": ("evaluate.evaluate_command", "Compute a detector's metrics; draw its detections."),
        "predict": ("predict.predict_command", "Detect objects in images, video, webcam and RTSP streams."),
        "ui": ("ui.ui_command", "Try and compare detectors in the browser."),
    },
    "Your data": {
        "inspect": ("inspect.inspect_command", "Summarize a data set; draw a contact sheet."),
        "doctor": ("doctor.doctor_command", "Check a configuration and data for problems."),
        "convert": ("convert.convert_command", "Convert data to Pascal VOC, COCO, YOLO or TFRecord."),
        "context": ("context.app", "Write records with context for Context R-CNN."),
    },
    "Models and configurations": {
        "models": ("models.models_command", "List the presets: detectors to start from."),
        "weights": ("weights.app", "List and fetch published weights, by name."),
        "init": ("init.init_command", "Write a configuration for a folder of annotated pictures."),
        "config": ("config.app", "Show, check and explain configurations."),
    },
    "Runs and their results": {
        "monitor": ("monitor.monitor_command", "Show a run on a page while it trains."),
        "history": ("history.history_command", "Plot a run's loss and average precision."),
        "report": ("report.report_command", "Write a page that explains average precision."),
        "compare": ("compare.compare_command", "Compare two evaluations: is one better?"),
        "replay": ("replay.replay_command", "Repeat a training step that was not finite."),
    },
    "Deploying": {
        "export": ("export.export_command", "Write a detector as ONNX, OpenVINO, LiteRT, or weights."),
        "benchmark": ("benchmark.benchmark_command", "Measure latency and images per second."),
        "serve": ("serve.serve_command", "Serve an exported detector over HTTP."),
        "exporter_main_v2": ("exporter_main.exporter_command", "Export with TensorFlow's exporter options."),
    },
}
COMMANDS = {name: command for section in _SECTIONS.values() for name, command in section.items()}
# Command lines that a command's help shows.
EXAMPLES = {
    "demo": ("demo --open", "demo --train"),
    "train": (
        "train my-data --epochs 20",
        "train my-data --model d_fine_s_coco --minutes 30",
        "train --config pipeline.config --model_dir model",
    ),
    "evaluate": ("evaluate --model_dir model --report report", "evaluate --model model/export/detector.onnx"),
    "predict": (
        "predict photos --model_dir model --conf 0.3",
        "predict photos --model demo --csv --save_crops",
        "predict video.mp4 --model model --track --save_video",
    ),
    "ui": ("ui model", "ui model model-2"),
    "inspect": ("inspect my-data --report data-page", "inspect pipeline.config --augmented 12"),
    "doctor": ("doctor my-data", "doctor pipeline.config --full"),
    "convert": ("convert my-data coco.json", "convert coco.json yolo/data.yaml"),
    "models": ("models --all", "models d_fine_s_coco"),
    "init": ("init my-data --minutes 10", "init my-data --model d_fine_s_coco --out pipeline.config"),
    "monitor": ("monitor model --open",),
    "history": ("history model --out history.png",),
    "report": ("report model/eval", "report --detections results.json --truth instances.json"),
    "compare": ("compare model/eval model-2/eval",),
    "replay": ("replay model/not-finite-1200",),
    "export": ("export model", "export model detector.xml --images photos", "export model model.safetensors"),
    "benchmark": ("benchmark model model/export/detector.onnx --batch 1",),
    "serve": ("serve model/export/detector.onnx",),
}
# Other programs' names of commands.
_ALIASES = {"val": "evaluate", "detect": "predict"}
# Commands that print a description, and nothing else.
_DESCRIPTIONS = ("models", "replay")


class Commands(PlainGroup):
    """The commands by name or alias."""

    def main(
        self,
        args: Sequence[str] | None = None,
        prog_name: str | None = None,
        complete_var: str | None = None,
        standalone_mode: bool = True,  # noqa: FBT001, FBT002  # Click's signature
        windows_expand_args: bool = True,  # noqa: FBT001, FBT002  # as above
        **extra: Any,
    ) -> Any:
        """Run a command and exit with its status; print an error in its words as one line."""
        if not standalone_mode:
            return super().main(args, prog_name, complete_var, False, windows_expand_args, **extra)
        try:
            status = super().main(args, prog_name, complete_var, False, windows_expand_args, **extra)
        except USAGE_ERROR as error:
            exit_with_usage_error(error)
        except SystemExit as error:
            # Typer and Rich exit with 1 where the reader of the output has exited; `main` knows the status for that.
            if isinstance(error.__context__, BrokenPipeError):
                raise error.__context__ from None
            raise
        except typer.Abort:  # what older releases of Typer make of Ctrl-C
            raise KeyboardInterrupt from None
        raise SystemExit(status if isinstance(status, int) else 0)

    def list_commands(self, ctx: Any) -> list[str]:
        """Return the names in help order."""
        return list(COMMANDS)

    def accepted_names(self, ctx: Any) -> list[str]:
        """Return the names and aliases."""
        return [*COMMANDS, *_ALIASES]

    def get_command(self, ctx: Any, cmd_name: str) -> Any:
        """Return the command of a name or alias; None if it is unknown."""
        name = _ALIASES.get(cmd_name, cmd_name)
        return load_command(name) if name in COMMANDS else None

    def format_commands(self, ctx: Any, formatter: Any) -> None:
        """Write names and help lines by section, without importing the commands."""
        indent = max(map(len, COMMANDS))  # the same in each section
        for title, commands in _SECTIONS.items():
            with formatter.section(title):
                formatter.write_dl([(name.ljust(indent), line) for name, (_, line) in commands.items()])


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
    described = with_settings(command)
    examples = "\n".join(f"boxwright {words}" for words in EXAMPLES.get(name, ()))
    register = app.command(name, cls=PlainCommand, short_help=line, epilog=examples)
    register(described if name in _DESCRIPTIONS else with_quiet(described))
    return get_command(app)
