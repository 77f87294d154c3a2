"""Code blocks of Markdown pages: what they are, and how they are run.

A block of `sh` or `python` is run, one without a language is parsed as a configuration; the others are output, drawings
or settings of other programs. `<!-- not run: reason -->` on the line above a block says why it is not run.
"""

from __future__ import annotations

import re
import shlex
import signal
import subprocess
import sys
import warnings
from pathlib import Path
from typing import Any, NamedTuple

import pytest
from typer.testing import CliRunner

from boxwright.base.errors import BoxwrightError
from boxwright.cli.main import app
from boxwright.config.load import parse_message
from boxwright.config.message import Message
from boxwright.pipeline.message import TrainEvalPipelineConfig as Pipeline

ROOT = Path(__file__).parent.parent
RUN = ("sh", "python", "pbtxt", "")
NOT_RUN = ("text", "json", "yaml", "mermaid", "diff")
_BLOCK = re.compile(
    r"(?:^<!-- not run: (?P<reason>[^\n]*) -->\n)?^```(?P<language>[^\n ]*)(?P<rest>[^\n]*)\n(?P<text>.*?)^```$",
    re.MULTILINE | re.DOTALL,
)


class Block(NamedTuple):
    """A block, the line that it begins at, and why it is not run, if it is not."""

    language: str
    text: str
    line: int
    reason: str | None
    rest: str


def blocks(page: Path) -> list[Block]:
    text = page.read_text()
    return [
        Block(found["language"], found["text"], text[: found.start()].count("\n") + 1, found["reason"], found["rest"])
        for found in _BLOCK.finditer(text)
    ]


def run_blocks(page: Path) -> int:
    """Run a page's blocks one after another in the working directory; return how many there are to run."""
    names: dict[str, Any] = {}
    chosen = [block for block in blocks(page) if block.reason is None and block.language in RUN]
    for block in chosen:
        where = f"{page.name}:{block.line}"
        if block.language == "sh":
            _run_shell(block.text, where)
        elif block.language == "python":
            with warnings.catch_warnings():
                warnings.simplefilter("error")
                exec(compile(block.text, where, "exec", dont_inherit=True), names)
        else:
            _parse(block.text, where)
    return len(chosen)


def _run_shell(text: str, where: str) -> None:
    for line in text.replace("\\\n", " ").splitlines():
        words = shlex.split(line, comments=True)
        if not words:
            continue
        assert words[0] == "boxwright", f"{where}: {line}: expected a boxwright command, or why the block is not run"
        if words[1] == "serve":
            _serve(words)
            continue
        # A page's commands train for hours, unless they say for how many steps; a second shows that they do.
        short = ["--max_seconds", "1"] if words[1] == "train" and "--num_train_steps" not in words else []
        result = CliRunner().invoke(app, [*words[1:], *short])
        # 75 says that a training's second was up.
        assert result.exit_code in ((0, 75) if short else (0,)), (where, line, result.output, result.exception)


def _serve(words: list[str]) -> None:
    """Serve until the server says where, and end it as a terminal would."""
    command = [sys.executable, "-u", "-m", *words, "--port", "0"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True) as server:
        assert server.stdout is not None
        said = []
        for line in server.stdout:
            said.append(line)
            if "http://" in line:
                break
        server.terminate()
        said.append(server.stdout.read())
        assert server.wait(timeout=60) in (0, -signal.SIGTERM, 128 + signal.SIGTERM), "".join(said)


def _parse(text: str, where: str) -> None:
    """Parse a configuration, or a part of one: of the first message that has such fields."""
    problems = []
    for message in (Pipeline, *Message.__subclasses__()):
        try:
            parse_message(text, message)
        except BoxwrightError as error:
            problems.append(error)
        else:
            return
    pytest.fail(f"{where}: {problems[0]}")
