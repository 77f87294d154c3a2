"""The `boxwright` program: runs a command and prints errors in one line."""

from __future__ import annotations

import os
import sys
import threading
import warnings
from io import TextIOWrapper
from typing import Annotated

import typer

import boxwright
from boxwright.base.errors import BoxwrightError, describe_shortage, is_shortage
from boxwright.base.files import cause, shown
from boxwright.base.text import without_secrets
from boxwright.base.threads import prepare_threads
from boxwright.cli.commands import Commands
from boxwright.cli.console import console, errors, reset_output, show_log
from boxwright.cli.help import CONTEXT
from boxwright.cli.process import Terminated, raise_on_end_signals

app = typer.Typer(
    cls=Commands,
    help="Train, evaluate and deploy object detectors. Start with: boxwright demo",
    add_completion=True,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,
    context_settings=CONTEXT,
)


def _print_version(*, asked: bool) -> None:
    if asked:
        print(boxwright.__version__)
        raise typer.Exit


@app.callback()
def before_a_command(
    *,
    version: Annotated[
        bool, typer.Option("--version", help="Print the version and exit.", is_eager=True, callback=_print_version)
    ] = False,
) -> None:
    """Print the library's log."""
    del version  # already printed
    reset_output()
    show_log()


def _show_warning(message: Warning | str, *_: object) -> None:
    errors.print(f"warning: {without_secrets(str(message))}", style="yellow")


def from_absl(arguments: list[str]) -> list[str]:
    """Return arguments with absl's `--switch=true` as `--switch`, `--switch=false` as `--noswitch`, and no log flags."""
    kept = []
    for argument in arguments:
        name, _, value = argument.removeprefix("--").partition("=")
        if argument.startswith("--") and name in _SWITCHES and value:
            kept.append(f"--{name}" if value.lower() in ("true", "t", "1", "yes", "y") else f"--no{name}")
        # TensorFlow's documents add these flags of absl's log to every command.
        elif argument not in ("--alsologtostderr", "--logtostderr"):
            kept.append(argument)
    return kept


_SWITCHES = ("use_side_inputs", "use_tpu", "record_summaries", "eval_on_train_data")


def _escape_unprintable() -> None:
    """Make characters that a terminal cannot encode (ASCII, undecodable file names) print as escapes, not errors."""
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, TextIOWrapper):
            stream.reconfigure(errors="backslashreplace")


def main() -> None:
    """Run a command; print a BoxwrightError as one line and exit with status 1."""
    prepare_threads()  # before PyTorch is imported
    _escape_unprintable()
    warnings.showwarning = _show_warning  # type: ignore[assignment]  # same call, without the source line
    # Python allows signal handlers to be set only there.
    if threading.current_thread() is threading.main_thread():
        raise_on_end_signals()
    try:
        app(args=from_absl(sys.argv[1:]), prog_name="boxwright")
    except BoxwrightError as error:
        errors.print(f"error: {error}", style="red")
        sys.exit(1)
    except BrokenPipeError:  # the reader of our output has exited, as head does
        # Python flushes the output once more at exit, which would fail again.
        os.dup2(os.open(os.devnull, os.O_WRONLY), 1)
        # 128 plus the signal's number, as shells count: SIGPIPE here, others below.
        sys.exit(141)
    except OSError as error:
        name = f"{shown(error.filename)}: " if isinstance(error.filename, str) else ""
        errors.print(f"error: {name}{without_secrets(cause(error))}", style="red")
        sys.exit(1)
    except Exception as error:
        if not is_shortage(error):
            raise
        # Libraries say where in their sources it was.
        errors.print(
            f"error: {error if isinstance(error, MemoryError) and error.args else describe_shortage(error)}",
            style="red",
        )
        sys.exit(1)
    except KeyboardInterrupt:
        console.print("interrupted")
        sys.exit(130)
    except Terminated as error:
        errors.print("terminated")
        sys.exit(128 + error.number)
