"""`boxwright`: the verbs, and errors in one line."""

from __future__ import annotations

import os
import sys
import threading
import warnings
from collections.abc import Callable
from io import TextIOWrapper
from typing import Annotated

import typer

import boxwright
from boxwright.base.errors import BoxwrightError
from boxwright.cli import (
    benchmark,
    config,
    convert,
    demo,
    doctor,
    evaluate,
    export,
    exporter_main,
    init,
    inspect,
    models,
    predict,
    replay,
    serve,
    train,
)
from boxwright.cli.console import console, errors, show_log
from boxwright.cli.options import CONTEXT, Commands, PlainCommand, with_settings
from boxwright.cli.termination import Terminated, raise_on_sigterm

app = typer.Typer(
    cls=Commands,
    help="Object detectors described by one pipeline.config. Start with: boxwright demo",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,
    context_settings=CONTEXT,
)


def _print_version(asked: bool) -> None:
    if asked:
        print(boxwright.__version__)
        raise typer.Exit


@app.callback()
def before_a_command(
    version: Annotated[
        bool, typer.Option("--version", help="Print the version and end.", is_eager=True, callback=_print_version)
    ] = False,
) -> None:
    """Let what the library logs be printed."""
    del version  # printed by now
    show_log()


def _add(name: str, command: Callable[..., None], line: str) -> None:
    app.command(name, cls=PlainCommand, short_help=line)(command)


_add("init", with_settings(init.init_command), "Write a configuration for a folder of annotated pictures.")
_add("models", models.models_command, "List the presets: detectors to start from.")
_add("train", with_settings(train.train_command), "Train a detector; run again to resume.")
_add("evaluate", with_settings(evaluate.evaluate_command), "Compute the metrics of a detector; draw what it finds.")
_add("predict", with_settings(predict.predict_command), "Detect objects in images, video, webcam and RTSP streams.")
_add("demo", demo.demo_command, "Make data, train on it, evaluate and draw, in minutes.")
_add("convert", convert.convert_command, "Convert data to Pascal VOC, COCO, YOLO or TFRecord.")
_add("export", with_settings(export.export_command), "Write a detector as ONNX, OpenVINO, LiteRT, or weights.")
_add("benchmark", with_settings(benchmark.benchmark_command), "Measure latency and images a second.")
_add("serve", with_settings(serve.serve_command), "Answer requests over HTTP by an exported detector.")
_add("exporter_main_v2", with_settings(exporter_main.exporter_command), "As TensorFlow's exporter is called.")
_add("inspect", inspect.inspect_command, "Count what is in data; draw a contact sheet.")
_add("doctor", doctor.doctor_command, "Check a configuration and data for what ruins a run.")
_add("replay", replay.replay_command, "Do a training step again that was not finite.")
app.add_typer(config.app, name="config", short_help="Show, check and explain configurations.")


def _show_warning(message: Warning | str, *_: object) -> None:
    errors.print(f"warning: {message}", style="yellow", markup=False)


def like_absl(arguments: list[str]) -> list[str]:
    """Take the forms in which TensorFlow's scripts take their switches.

    Returns:
        They, with `--switch=true` as `--switch`, `--switch=false` as `--noswitch`, and without absl's own
        switches for its log.
    """
    taken = []
    for argument in arguments:
        name, _, value = argument.removeprefix("--").partition("=")
        if argument.startswith("--") and name in _SWITCHES and value:
            taken.append(f"--{name}" if value.lower() in ("true", "t", "1", "yes", "y") else f"--no{name}")
        elif argument not in ("--alsologtostderr", "--logtostderr"):
            taken.append(argument)
    return taken


_SWITCHES = ("use_side_inputs", "use_tpu", "record_summaries", "eval_on_train_data")


def _let_everything_be_printed() -> None:
    """Print characters that a terminal lacks (ASCII, undecodable names of files) as escapes, not as an error."""
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, TextIOWrapper):
            stream.reconfigure(errors="backslashreplace")


def main() -> None:
    """Run a command; an error of ours is printed as it is and ends with status 1."""
    _let_everything_be_printed()
    warnings.showwarning = _show_warning  # type: ignore[assignment]  # the same call, without the line of code
    if threading.current_thread() is threading.main_thread():
        raise_on_sigterm()
    try:
        app(args=like_absl(sys.argv[1:]))
    except BoxwrightError as error:
        errors.print(f"error: {error}", style="red", markup=False)
        sys.exit(1)
    except BrokenPipeError:  # what reads our output has ended, as head does
        os.dup2(os.open(os.devnull, os.O_WRONLY), 1)
        sys.exit(141)
    except OSError as error:
        name = f"{error.filename}: " if error.filename else ""
        errors.print(f"error: {name}{error.strerror or error}", style="red", markup=False)
        sys.exit(1)
    except MemoryError:
        errors.print("error: not enough memory", style="red", markup=False)
        sys.exit(1)
    except KeyboardInterrupt:
        console.print("interrupted")
        sys.exit(130)
    except Terminated:
        errors.print("terminated")
        sys.exit(143)
