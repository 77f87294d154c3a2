"""Every command's help, at any width; what is typed wrong; completion in a shell; `--quiet` and `--json`."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import typer.main

from boxwright.cli.commands import COMMANDS, EXAMPLES, load_command
from boxwright.cli.main import app


def walk(command: Any, words: tuple[str, ...] = ()) -> Iterator[tuple[str, ...]]:
    """Yield the words of each command and group."""
    yield words
    for name, below in getattr(command, "commands", {}).items():
        yield from walk(below, (*words, name))


ALL = [(), *(words for name in COMMANDS for words in walk(load_command(name), (name,)))]


@pytest.fixture
def answer(monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]) -> Callable[..., str]:
    """Return what a command line prints, in a terminal of some columns; Typer's own runner has 80 always."""

    def run(words: tuple[str, ...], status: int, columns: int = 80) -> str:
        monkeypatch.setenv("COLUMNS", str(columns))
        with pytest.raises(SystemExit) as ended:
            app(args=list(words), prog_name="boxwright")
        captured = capfd.readouterr()
        assert ended.value.code == status, (words, captured)
        return captured.out + captured.err

    return run


def test_every_command_is_walked() -> None:
    assert len(ALL) >= 30
    assert {words[0] for words in ALL if words} == set(COMMANDS)
    assert {("weights", "list"), ("config", "check"), ("context", "build")} <= set(ALL)


@pytest.mark.parametrize("words", ALL, ids=" ".join)
def test_help(words: tuple[str, ...], answer: Callable[..., str]) -> None:
    """Its kinds of values have names, and its lines are as long as the terminal is wide."""
    narrow, wide = (answer((*words, "--help"), 0, columns).splitlines() for columns in (80, 160))
    assert narrow[0].startswith(" ".join(["Usage: boxwright", *words]))
    assert not re.search(r"<\w+[ \[>]|\{\w+\}|\.\.\.$", "\n".join([*narrow, *wide]).replace("[ARGS]...", ""))
    assert max(map(len, narrow)) <= 80
    assert max(map(len, wide)) <= 160
    assert len(wide) <= len(narrow)
    # A word that is longer than a line is broken.
    assert "".join("".join(narrow).split()) == "".join("".join(wide).split())


EXAMPLE_LINES = [words.split() for lines in EXAMPLES.values() for words in lines]


@pytest.mark.parametrize("words", EXAMPLE_LINES, ids=" ".join)
def test_an_example_can_be_typed(words: list[str], answer: Callable[..., str]) -> None:
    """It is shown whole, above the options, and the command line reads it."""
    shown = answer((words[0], "--help"), 0).partition("\nOptions:")[0]
    assert f"  boxwright {' '.join(words)}\n" in shown
    command = load_command(words[0])
    command.make_context(words[0], words[1:])


def test_the_command_list_begins_with_what_a_newcomer_types(answer: Callable[..., str]) -> None:
    names = [line.split()[0] for line in answer(("--help",), 0).splitlines() if re.match(r"  \w+  ", line)]
    assert names[:4] == ["demo", "train", "evaluate", "predict"]
    assert names == list(COMMANDS)


def test_the_width_is_used(answer: Callable[..., str]) -> None:
    lines = answer(("train", "--help"), 0, 160).splitlines()
    assert max(map(len, lines)) > 130


@pytest.mark.parametrize("words", ALL, ids=" ".join)
def test_an_unknown_option_is_an_error_of_one_line(words: tuple[str, ...], answer: Callable[..., str]) -> None:
    (line,) = answer((*words, "--no_such_thing"), 2).splitlines()
    assert line.startswith("error: no ")
    assert "such_thing" in line
    assert " ".join(["boxwright", *words, "--help"]) in line or "did you mean" in line


@pytest.mark.parametrize("number", ["1_0", "٣", "１", "0x10"])
@pytest.mark.parametrize(
    "words",
    [
        ("inspect", "data", "--augmented"),
        ("predict", "a", "--model", "demo", "--max_boxes"),
        ("benchmark", "a", "--batch", "1", "--batch"),
    ],
)
def test_numbers_are_spelled_with_digits_of_ascii(
    words: tuple[str, ...], number: str, answer: Callable[..., str]
) -> None:
    (line,) = answer((*words, number), 2).splitlines()
    assert words[-1] in line
    assert "number" in line or "integer" in line


@pytest.mark.parametrize("words", [(), ("weights",), ("config",)])
def test_a_group_alone_prints_its_help(words: tuple[str, ...], answer: Callable[..., str]) -> None:
    assert answer(words, 0) == answer((*words, "--help"), 0)


def test_a_command_line_that_is_wrong_has_the_same_kind_of_error(monkeypatch: pytest.MonkeyPatch) -> None:
    from boxwright.cli.console import errors
    from boxwright.cli.main import main

    for words, status in ((["train", "--epochs", "many", "x"], 2), (["predict", "x.jpg", "--model", "none"], 1)):
        monkeypatch.setattr("sys.argv", ["boxwright", *words])
        with errors.capture() as captured, pytest.raises(SystemExit) as stopped:
            main()
        assert stopped.value.code == status
        (line,) = captured.get().splitlines()
        assert line.startswith("error: ")


def completions(line: str) -> list[str]:
    """Return what a shell is told to offer for a line's last word."""
    words = line.split(" ")
    variables = {"_BOXWRIGHT_COMPLETE": "complete_bash", "COMP_WORDS": line, "COMP_CWORD": str(len(words) - 1)}
    done = subprocess.run(
        [sys.executable, "-m", "boxwright"], capture_output=True, text=True, check=True, env=os.environ | variables
    )
    assert not done.stderr
    return done.stdout.split()


def test_a_shell_completes_commands_and_options() -> None:
    assert completions("boxwright tr") == ["train"]
    assert completions("boxwright weights ") == ["list", "info", "fetch", "verify", "where"]
    assert completions("boxwright predict x.jpg --mi") == ["--min_score"]


def test_completion_is_installed_for_a_shell(tmp_path: Any) -> None:
    """Into a home folder of its own; the shell is told by the process that starts the command."""
    environment = os.environ | {"HOME": str(tmp_path), "_TYPER_COMPLETE_TEST_DISABLE_SHELL_DETECTION": "1"}
    done = subprocess.run(
        [sys.executable, "-m", "boxwright", "--install-completion", "bash"],
        capture_output=True, text=True, check=True, env=environment,
    )  # fmt: skip
    assert "bash completion installed" in done.stdout
    (script,) = (tmp_path / ".bash_completions").iterdir()
    assert "_BOXWRIGHT_COMPLETE=complete_bash" in script.read_text()
    assert str(script) in (tmp_path / ".bashrc").read_text()


def options(*words: str) -> set[str]:
    command = typer.main.get_command(app)
    for name in words:
        context = typer.Context(command)
        command = command.get_command(context, name)  # type: ignore[attr-defined]  # a group
    return {flag for param in command.params for flag in param.opts if param.param_type_name == "option"}


def test_what_can_be_quiet() -> None:
    """All that works for a while; not what only describes."""
    quiet = {words for words in ALL if words and "--quiet" in options(*words)}
    assert {("train",), ("predict",), ("export",), ("weights", "fetch"), ("context", "build")} <= quiet
    assert {words[0] for words in quiet} == set(COMMANDS) - {"models", "replay", "config"}


def test_quiet_leaves_warnings_and_errors() -> None:
    import logging

    from boxwright.cli.console import LogLines, console, errors, print_problems_only, reset_output

    print_problems_only(True)
    try:
        with errors.capture() as problems, console.capture() as printed:
            console.print("metrics")
            for level, text in ((logging.INFO, "saved"), (logging.WARNING, "lost")):
                LogLines().emit(logging.LogRecord("boxwright", level, "", 0, text, None, None))
    finally:
        reset_output()
    assert problems.get() == "warning: lost\n"
    assert printed.get() == ""
    assert not console.quiet
