"""`boxwright`: the verbs, and errors in one line."""

from __future__ import annotations

import os
import signal
import sys
import threading
import warnings
from io import TextIOWrapper

import typer

from boxwright.cli import (
    benchmark,
    config,
    convert,
    demo,
    doctor,
    evaluate,
    export,
    exporter_main,
    inspect,
    models,
    predict,
    replay,
    serve,
    train,
)
from boxwright.cli.console import console, errors, show_log
from boxwright.cli.options import CONTEXT, PlainCommand, with_settings
from boxwright.errors import BoxwrightError

__all__ = ["app", "like_absl", "main"]

app = typer.Typer(
    help="Object detectors described by one pipeline.config. Start with: boxwright demo",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,
    context_settings=CONTEXT,
)
app.callback()(show_log)
app.command("train", cls=PlainCommand)(with_settings(train.train_command))
app.command("evaluate", cls=PlainCommand)(with_settings(evaluate.evaluate_command))
app.command("predict", cls=PlainCommand)(with_settings(predict.predict_command))
app.command("demo", cls=PlainCommand)(demo.demo_command)
app.command("convert", cls=PlainCommand)(convert.convert_command)
app.command("export", cls=PlainCommand)(with_settings(export.export_command))
app.command("benchmark", cls=PlainCommand)(with_settings(benchmark.benchmark_command))
app.command("serve", cls=PlainCommand)(with_settings(serve.serve_command))
app.command("exporter_main_v2", cls=PlainCommand)(with_settings(exporter_main.exporter_command))
app.command("inspect", cls=PlainCommand)(inspect.inspect_command)
app.command("models", cls=PlainCommand)(models.models_command)
app.command("doctor", cls=PlainCommand)(doctor.doctor_command)
app.command("replay", cls=PlainCommand)(replay.replay_command)
app.add_typer(config.app, name="config")


def _show_warning(message: Warning | str, *_: object) -> None:
    errors.print(f"warning: {message}", style="yellow", markup=False)


def like_absl(arguments: list[str]) -> list[str]:
    """Take the forms in which TensorFlow's scripts take their switches.

    Args:
        arguments: Of the command line.

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


class _Terminated(BaseException):
    """SIGTERM, as an exception: so that files begun are finished or taken away, as for Ctrl-C."""


def _terminate(number: int, _: object) -> None:
    signal.signal(number, signal.SIG_DFL)  # a second one ends at once
    raise _Terminated


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
        signal.signal(signal.SIGTERM, _terminate)
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
    except _Terminated:
        errors.print("terminated")
        sys.exit(143)
