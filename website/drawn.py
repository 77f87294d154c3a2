"""What commands draw and print, put where the pages ask for it when the site is built.

A page asks in a comment, which other readers of Markdown do not show:

    <!-- drawn: history.png | Loss and average precision of the demo's run
    boxwright history demo/model --out history.png -->

The commands run in a folder with the demo and the run of docs/tour.md. A picture takes the comment's place, a page is
linked to, and without a file (`<!-- printed:`) what the commands print is shown.
"""

from __future__ import annotations

import os
import re
import shlex
import shutil
import subprocess
import sys
from pathlib import Path

# Some minutes on two cores: detections and a report of the shipped detector, and a run of our own on its pictures.
_DEMO = ("boxwright demo", "boxwright train demo/blood_cells --epochs 20 --model_dir demo/model")
ASKED = re.compile(
    r"^<!-- (?:drawn: (?P<file>\S+) \| (?P<caption>[^\n]+)|printed:)\n"
    r"(?P<commands>(?:boxwright [^\n]+\n)*boxwright [^\n]+?) -->$",
    re.MULTILINE,
)
# One thread: on a shared machine two wait for each other most of the time.
_ENVIRONMENT = {"COLUMNS": "120", "NO_COLOR": "1", "TERM": "dumb", "OMP_NUM_THREADS": "1"}
_PICTURES = (".png", ".jpg", ".svg")
_MOST_LINES = 60


class Commands:
    """Runs commands in a folder, each once: several pages show the same."""

    def __init__(self, work: Path) -> None:
        self.work = work
        self._outputs: dict[str, str] = {}

    def make_demo(self) -> None:
        """Make `demo` with pictures of blood cells, a report and a run, unless an earlier build left it complete."""
        complete = self.work / "demo" / "complete"
        if not complete.is_file():
            self.work.mkdir(parents=True, exist_ok=True)
            for line in _DEMO:
                self.output(line)
            complete.touch()

    def output(self, line: str) -> str:
        """Return what a command prints; one that fails ends the build."""
        if line not in self._outputs:
            self._outputs[line] = self._run(line)
        return self._outputs[line]

    def _run(self, line: str) -> str:
        done = subprocess.run(
            [sys.executable, "-m", *shlex.split(line)],
            cwd=self.work,
            env={**os.environ, **_ENVIRONMENT},
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            check=False,
        )
        if done.returncode:
            raise SystemExit(f"{line}: exit status {done.returncode}\n{done.stdout}")
        return done.stdout


def asked(text: str) -> list[str]:
    """Return the commands that a page asks for, in order."""
    return [line for found in ASKED.finditer(text) for line in found["commands"].splitlines()]


def placed(text: str, commands: Commands, pages: Path) -> str:
    """Return a page with what its commands drew and printed; files are copied into the folder `drawn` of the pages."""

    def one(found: re.Match[str]) -> str:
        lines = found["commands"].splitlines()
        said = "".join(map(commands.output, lines))
        code = "; ".join(f"`{line}`" for line in lines)
        if found["file"] is None:
            return f"{code} prints:\n\n```text\n{_shortened(said)}\n```"
        name = found["file"]
        _copy(commands.work / name, pages / "drawn" / name)
        if name.endswith(_PICTURES):
            about = f"{found['caption']}, drawn by {code} when this page was built."
            return f"![{found['caption']}](drawn/{name})\n\n*{about}*"
        return f"**[{found['caption']}](drawn/{name})**, as {code} wrote it when this page was built."

    return ASKED.sub(one, text)


def _copy(source: Path, target: Path) -> None:
    """Copy a picture, or a page with all that is beside it."""
    target.parent.mkdir(parents=True, exist_ok=True)
    if source.suffix == ".html":
        shutil.copytree(source.parent, target.parent, dirs_exist_ok=True)
    else:
        shutil.copy(source, target)


def _shortened(text: str) -> str:
    lines = [line.rstrip() for line in text.strip().splitlines()]
    return "\n".join(lines if len(lines) <= _MOST_LINES else [*lines[:_MOST_LINES], "…"])
