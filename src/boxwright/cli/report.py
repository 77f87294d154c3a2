"""`boxwright report`."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from boxwright.base.errors import ConfigError
from boxwright.base.paths import refuse_foreign_page
from boxwright.cli.console import console, show_progress, suggest_page
from boxwright.report.settings import ReportSettings

if TYPE_CHECKING:
    from boxwright.report.sources import Source

Folder = Annotated[
    Path | None,
    typer.Argument(help="The folder that `boxwright evaluate` wrote (--out; default: eval in the run's)."),
]
DetectionsFile = Annotated[
    Path | None,
    typer.Option(
        "--detections",
        help="Detections of any detector in COCO's results format: image_id, category_id, bbox, score. With --truth.",
    ),
]
TruthFile = Annotated[Path | None, typer.Option("--truth", help="Their ground truth in COCO's format.")]
ImageFolder = Annotated[
    Path | None, typer.Option("--image_folder", help="With --truth: where its images are; default: beside it.")
]
Out = Annotated[
    Path | None, typer.Option("--out", help="The report's folder; default: report in the first argument's.")
]


def report_command(
    settings: ReportSettings,
    evaluation: Folder = None,
    detections: DetectionsFile = None,
    truth: TruthFile = None,
    image_folder: ImageFolder = None,
    out: Out = None,
) -> None:
    """Write a page that shows why average precision is what it is: errors by type, causes, curves, pictures.

    The page opens from disk, needs no network, and every number leads to images. Either of an evaluation's folder,
    without the model; or of COCO's files, whatever made them: --detections results.json --truth instances.json.
    """
    if (evaluation is None) == (detections is None) or (truth is None) != (detections is None):
        raise ConfigError("expected an evaluation's folder, or both --detections and --truth")
    from boxwright.report.sources import source_of_evaluation, source_of_files

    if evaluation is not None:
        if image_folder is not None:
            raise ConfigError("--image_folder is for --truth; an evaluation's configuration names its data")
        source, folder = source_of_evaluation(evaluation), out or evaluation / "report"
    elif detections is not None and truth is not None:
        source, folder = source_of_files(truth, detections, image_folder), out or detections.parent / "report"
    suggest_page(print_report(source, folder, settings))


def print_report(source: Source, folder: Path, settings: ReportSettings) -> Path:
    """Write a report, print where it is, and return its page."""
    from boxwright.report.write import write_report

    refuse_foreign_page(folder)
    if source.problem:
        console.print(f"no pictures: {source.problem}")
    index = write_report(source, folder, settings, show_progress)
    console.print(f"report: {index} (open it in a browser)")
    return index
