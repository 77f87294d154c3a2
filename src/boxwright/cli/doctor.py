"""`boxwright doctor`."""

from __future__ import annotations

import json
from collections.abc import Iterable
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from boxwright.cli.console import console, count_progress, suggest

if TYPE_CHECKING:
    from boxwright.preflight.finding import Finding

__all__ = ["doctor_command"]

_COLOURS = {"fine": "green", "note": "cyan", "warning": "yellow", "fatal": "red"}


def doctor_command(
    config: Annotated[Path, typer.Argument(help="The configuration that is to be trained.")],
    checkpoint: Annotated[
        str, typer.Option("--checkpoint", help="Where the run is to start; without, as fine_tune_checkpoint says.")
    ] = "",
    full: Annotated[
        bool, typer.Option("--full", help="Read all samples; without, 1000 whole and 10,000 image files of each set.")
    ] = False,
    as_json: Annotated[bool, typer.Option("--json", help="Print a JSON list of findings instead of a table.")] = False,
    steps: Annotated[bool, typer.Option("--steps/--no_steps", help="Try training steps, for memory and speed.")] = True,
    workers: Annotated[int, typer.Option("--workers", min=0, help="Processes that are to prepare samples.")] = 1,
    device: Annotated[
        str,
        typer.Option(
            "--device", help="Where steps are tried: cpu, cuda, cuda:1, or auto for a GPU where there is one."
        ),
    ] = "auto",
    changes: Annotated[
        list[str] | None, typer.Option("--set", help="Change the configuration first, as train does.")
    ] = None,
) -> None:
    """Look for what ruins runs, before one: in configuration, data, anchors, learning rate, memory and speed.

    Each finding has a verdict (fine, note, warning, fatal) and what to do. Exit status 0: nothing fatal; 1: a run
    would fail or learn nothing.
    """
    from boxwright.config import load_config
    from boxwright.preflight.examine import Depth, examine
    from boxwright.training.rehearsal import check_speed_and_memory

    loaded = load_config(config, changes or [])
    depth = Depth(0, 0, 0) if full else Depth()
    findings: list[Finding] = []

    def progress(what: str, items: Iterable[int]) -> Iterable[int]:
        return items if as_json else count_progress(what)(items)

    findings += examine(loaded, checkpoint, depth, progress)
    buildable = all(
        finding.check not in ("configuration", "fields") or finding.verdict != "fatal" for finding in findings
    )
    readable = all(finding.check != "empty_images" or finding.verdict != "fatal" for finding in findings)
    if steps and buildable and readable:
        findings += check_speed_and_memory(loaded, workers, device)
    fatal = any(finding.verdict == "fatal" for finding in findings)
    if as_json:
        console.print_json(json.dumps([_row(finding) for finding in findings]))
    else:
        _print(findings)
        if fatal:
            suggest("doctor", config, when="when what is fatal is put right")
        else:
            suggest("train", "--pipeline_config_path", config, "--model_dir", "model", *_repeated(changes))
    raise typer.Exit(int(fatal))


def _repeated(changes: list[str] | None) -> list[str]:
    return [word for change in changes or [] for word in ("--set", change)]


def _row(finding: Finding) -> dict[str, Any]:
    return {"check": finding.check, "verdict": finding.verdict, "found": finding.found, "remedy": finding.remedy}


def _print(findings: list[Finding]) -> None:
    from rich.table import Table

    table = Table("verdict", "check", "found, and what to do", box=None, padding=(0, 2, 0, 0))
    for finding in findings:
        text = finding.found + (f"\n→ {finding.remedy}" if finding.remedy else "")
        table.add_row(f"[{_COLOURS[finding.verdict]}]{finding.verdict}[/]", finding.check, _plain(text))
    console.print(table)
    counts = {verdict: sum(finding.verdict == verdict for finding in findings) for verdict in _COLOURS}
    console.print(", ".join(f"{count} {verdict}" for verdict, count in counts.items()))


def _plain(text: str) -> Any:
    from rich.text import Text

    return Text(text)
