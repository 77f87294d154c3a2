"""`boxwright`: the verbs, and errors in one line."""

from __future__ import annotations

import sys
import warnings

import typer

from boxwright.cli import config, convert, demo, evaluate, inspect, predict, replay, train
from boxwright.cli.console import console, errors
from boxwright.errors import BoxwrightError

__all__ = ["app", "main"]

app = typer.Typer(
    help="Object detectors described by one pipeline.config. Start with: boxwright demo",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)
app.command("train")(train.train_command)
app.command("evaluate")(evaluate.evaluate_command)
app.command("predict")(predict.predict_command)
app.command("demo")(demo.demo_command)
app.command("convert")(convert.convert_command)
app.command("inspect")(inspect.inspect_command)
app.command("replay")(replay.replay_command)
app.add_typer(config.app, name="config")


def _show_warning(message: Warning | str, *_: object) -> None:
    errors.print(f"warning: {message}", style="yellow", markup=False)


def main() -> None:
    """Run a command; an error of ours is printed as it is and ends with status 1."""
    warnings.showwarning = _show_warning  # type: ignore[assignment]  # the same call, without the line of code
    try:
        app()
    except BoxwrightError as error:
        errors.print(f"error: {error}", style="red", markup=False)
        sys.exit(1)
    except OSError as error:  # a target that cannot be written, a disk that is full
        errors.print(f"error: {error.filename or ''}: {error.strerror or error}", style="red", markup=False)
        sys.exit(1)
    except KeyboardInterrupt:
        console.print("interrupted")
        sys.exit(130)
