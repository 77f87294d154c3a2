"""The evaluation report of a run, from Python."""

from __future__ import annotations

from dataclasses import fields
from pathlib import Path
from typing import Any

from boxwright.api.evaluated import open_evaluated
from boxwright.base.files import write_whole
from boxwright.base.settings import with_options
from boxwright.config.load import dump_message
from boxwright.evaluation.about import about_evaluation
from boxwright.evaluation.evaluate import evaluate_on_data
from boxwright.evaluation.image_results import ImageResults
from boxwright.evaluation.settings import EvaluationSettings
from boxwright.evaluation.write import write_evaluation
from boxwright.report.settings import ReportSettings
from boxwright.report.sources import source_of_evaluation
from boxwright.report.write import write_report
from boxwright.weights.configuration import configuration_of


def report_on(model: Path, folder: Path, out: Path | None = None, **settings: Any) -> Path:
    """Evaluate a model, write the evaluation and its report, and return the report's page.

    Args:
        model: A run's folder, a checkpoint or an exported file.
        folder: Where the evaluation is written.
        out: The report's folder; by default `report` in that of the evaluation.
        **settings: Fields of `EvaluationSettings` and `ReportSettings`.

    Returns:
        The path of `index.html`.

    Raises:
        BoxwrightError: If model, configuration or data cannot be used, or a file cannot be written.
    """
    shown = {spec.name for spec in fields(ReportSettings)}
    reporting = with_options(ReportSettings(), {k: v for k, v in settings.items() if k in shown}, "report")
    others = {name: value for name, value in settings.items() if name not in shown}
    chosen = with_options(EvaluationSettings(workers=0), others, "report", sorted(shown))
    config = configuration_of(model, None, ["eval_config.include_metrics_per_category=true"])
    evaluated = open_evaluated(model, config.message, chosen)
    with ImageResults(folder) as results:
        evaluation = evaluate_on_data(evaluated.data, evaluated.model.opened, chosen, keep=results.add)
        about = about_evaluation(evaluated.model, chosen, config.path, evaluated.runtime)
        write_evaluation(evaluation, results, folder, evaluated.model.step, about=about)
    write_whole(folder / "pipeline.config", dump_message(config.message))
    return write_report(source_of_evaluation(folder), out or folder / "report", reporting)
