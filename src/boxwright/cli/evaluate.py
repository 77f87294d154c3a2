"""`boxwright evaluate`."""

from __future__ import annotations

from contextlib import nullcontext
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from boxwright.base.errors import ConfigError
from boxwright.base.outputs import check_output, local_output
from boxwright.base.paths import refuse_foreign_page, require_path
from boxwright.base.settings import setting
from boxwright.base.text import counted
from boxwright.cli.console import ap_line, console, importing, print_document, print_evaluation, show_progress, suggest
from boxwright.cli.options import CheckpointOption, JsonOption, require_checkpoint
from boxwright.cli.process import prepare_inference
from boxwright.evaluation.settings import EvaluationSettings, WatchSettings
from boxwright.report.settings import ReportSettings
from boxwright.runtime.formats import AUTO, TORCH

if TYPE_CHECKING:
    from boxwright.evaluation.results import Evaluation
    from boxwright.weights.open_model import Configuration

Out = Annotated[
    str | None,
    typer.Option(
        "--out",
        metavar="PATH",
        help="Folder for metrics.json, detections.json and pictures, here or at s3:// or gs://; default: eval in the run's.",
    ),
]
Report = Annotated[
    Path | None,
    typer.Option(
        "--report",
        help="Write a page into this folder that shows why AP is what it is (boxwright report does so later).",
    ),
]


@dataclass(frozen=True, kw_only=True)
class EvaluationConfiguration:
    """The configuration to evaluate with, and its changes; `boxwright evaluate` has an option for each."""

    pipeline_config_path: Path | None = setting(
        None,
        "The configuration with eval_config and eval_input_reader; default: the checkpoint's own.",
        flags=("--pipeline_config_path", "--config"),
    )
    changes: tuple[str, ...] = setting(
        (), "Change the configuration, as in --set eval_config.num_visualizations=50.", flags=("--set",)
    )


_OWN = EvaluationConfiguration()


def print_watched(step: int, evaluation: Evaluation | None, text: str) -> None:
    """Print the evaluation of a watched run at a step; a line of text if there is none."""
    if evaluation is None:
        console.print(text)
        return
    console.print(f"evaluation at step {step}")
    print_evaluation(evaluation)


def evaluate_command(
    settings: EvaluationSettings,
    waiting: WatchSettings,
    reporting: ReportSettings,
    model_dir: CheckpointOption,
    configuration: EvaluationConfiguration = _OWN,
    out: Out = None,
    report: Report = None,
    *,
    as_json: JsonOption = False,
) -> None:
    """Compute the metrics of eval_config.metrics_set (COCO's unless set) and the losses; draw detections beside truth."""
    if waiting.watch:
        if report is not None:
            raise ConfigError("--report is of one evaluation; evaluate without --watch")
        if as_json:
            raise ConfigError("--json is of one evaluation; --watch writes a metrics.json for each")
        if configuration.pipeline_config_path is None:
            raise ConfigError("--watch starts before any checkpoint exists: add --pipeline_config_path")
        if settings.runtime not in (AUTO, TORCH):
            raise ConfigError(f"--runtime {settings.runtime}: --watch evaluates each checkpoint in PyTorch; remove it")
        from boxwright.evaluation.watch import watch

        config = _configuration(model_dir, configuration).message
        prepare_inference(tf32=settings.tf32)
        folder = model_dir if out is None else require_path(out, "--out, with --watch")
        watch(config, model_dir, folder, settings, waiting, print_watched)
        return
    if out is not None:
        check_output(out, "--out")
    if report is not None:
        refuse_foreign_page(report)
    with nullcontext() if out is None else local_output(out, "--out") as place:
        folder = _evaluate(model_dir, configuration, place, settings, out)
        if report is not None:
            from boxwright.cli.report import print_report
            from boxwright.report.sources import source_of_evaluation

            print_report(source_of_evaluation(folder), report, reporting)
        document = (folder / "metrics.json").read_text(encoding="utf-8") if as_json else ""
    if document:
        print_document(document)
    suggest("predict", "IMAGES", "--model_dir", model_dir)


def _evaluate(
    model_dir: Path, chosen: EvaluationConfiguration, out: Path | None, settings: EvaluationSettings, named: str | None
) -> Path:
    """Evaluate once; write and print the result, and return its folder, which may be copied to the `named` address."""
    # Before the imports below, which take seconds.
    require_checkpoint(model_dir)
    with importing():
        from boxwright.base.files import make_folder, write_whole
        from boxwright.config.load import dump_message
        from boxwright.evaluation.evaluate import evaluate, evaluate_by_workers, open_evaluation
        from boxwright.evaluation.write import ImageResults, about_evaluation, write_evaluation
        from boxwright.pipeline.learning_rate import learning_rates
        from boxwright.weights.open_model import output_folder, require_adjustable

    require_adjustable(model_dir, settings.precision, compile=settings.compile)
    configuration = _configuration(model_dir, chosen, allow_edited=settings.allow_edited)
    config = configuration.message
    opened = open_evaluation(model_dir, config, settings)
    step = opened.model.step
    if opened.runtime == TORCH:
        prepare_inference(tf32=settings.tf32)
        if settings.cuda_graphs:
            console.print("detecting by CUDA graphs, without losses")
    else:
        console.print(f"runtime: {opened.runtime}; exported detectors compute no losses")
    folder = out or output_folder(model_dir) / "eval"
    rates = learning_rates(config)
    rate = None if rates is None else rates(step)
    with ImageResults(folder) as results:
        if settings.engine:
            evaluation = evaluate_by_workers(model_dir, config, opened, results.add)
        else:
            evaluation = evaluate(opened, show_progress, results.add)
        about = about_evaluation(opened.model, settings, configuration.path, opened.runtime)
        # First, since the evaluation counts as complete once it is written.
        if folder.resolve() != model_dir.resolve():  # a run's folder has that of its training
            write_whole(make_folder(folder) / "pipeline.config", dump_message(config))
        write_evaluation(evaluation, results, folder, step, rate, about)
    console.print(f"evaluation at step {step}" + ("" if rate is None else f", learning rate {rate:g}"))
    print_evaluation(evaluation)
    console.print(f"metrics, detections and {counted(len(evaluation.pictures), 'picture')}: {named or folder}")
    console.print(ap_line(evaluation.metrics))
    return folder


def _configuration(model: Path, chosen: EvaluationConfiguration, *, allow_edited: bool = False) -> Configuration:
    """Return the configuration to evaluate with, and print its path."""
    from boxwright.weights.open_model import load_configuration

    changes = [*chosen.changes, "eval_config.include_metrics_per_category=true"]
    config = load_configuration(model, chosen.pipeline_config_path, changes, allow_edited=allow_edited)
    if config.path is not None:
        console.print(f"configuration: {config.path}")
    return config
