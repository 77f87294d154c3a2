"""`boxwright compare`."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from boxwright.base.paths import refuse_foreign_page
from boxwright.cli.console import console, print_document, show_progress, suggest_page
from boxwright.cli.options import JsonOption
from boxwright.report.settings import ReportSettings


def compare_command(
    settings: ReportSettings,
    first: Annotated[Path, typer.Argument(help="The folder of an evaluation (`boxwright evaluate --out`).")],
    second: Annotated[Path, typer.Argument(help="The folder of another, on the same images.")],
    out: Annotated[Path, typer.Option("--out", help="The page's folder.")] = Path("comparison"),
    *,
    as_json: JsonOption = False,
) -> None:
    """Compare two evaluations: is the difference of AP more than chance, and which objects were gained and lost?"""
    refuse_foreign_page(out)
    from boxwright.report.compare import write_comparison
    from boxwright.report.sources import source_of_evaluation

    sources = source_of_evaluation(first), source_of_evaluation(second)
    if sources[0].problem:
        console.print(f"no pictures: {sources[0].problem}")
    comparison = write_comparison(sources, out, settings, show_progress)
    if as_json:
        print_document((out / "comparison.json").read_text(encoding="utf-8"))
    for row in comparison.metrics:
        change = row.difference
        console.print(
            f"{row.name} {row.first:.3f} → {row.second:.3f}: {change.value:+.3f} "
            f"(95 %: {change.low:+.3f} to {change.high:+.3f}): {row.verdict}"
        )
    console.print(f"objects: {len(comparison.gained)} gained, {len(comparison.lost)} lost")
    suggest_page(out / "index.html")
