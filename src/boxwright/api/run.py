"""A training run on disk: its steps, metrics, curves and models.

Its loss and average precision can be plotted over the steps, and the report of its evaluation written, from Python.
"""

from __future__ import annotations

import io
from collections.abc import Mapping, Sequence
from dataclasses import fields
from pathlib import Path
from typing import TYPE_CHECKING, Any

from PIL import Image

from boxwright.api.model import Model, load
from boxwright.base.errors import CheckpointError, DataError, TrainingError
from boxwright.base.files import write_whole
from boxwright.base.settings import with_options
from boxwright.config.load import dump_message
from boxwright.evaluation.evaluate import evaluate, open_evaluation
from boxwright.evaluation.settings import EvaluationSettings
from boxwright.evaluation.write import ImageResults, about_evaluation, write_evaluation
from boxwright.report.settings import ReportSettings
from boxwright.report.sources import source_of_evaluation
from boxwright.report.write import write_report
from boxwright.training.log import read_lines
from boxwright.weights.open_model import load_configuration

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from PIL.Image import Image as PilImage

    from boxwright.base.settings import AnyDevice


_TOTAL = "Loss/total_loss"
_SIZE, _DPI = (9.0, 3.6), 110


def draw_history(history: Sequence[Mapping[str, Any]], metrics: Sequence[str]) -> Image.Image:
    """Return two plots side by side: the loss terms, and the evaluated metrics.

    Args:
        history: Lines of a run's log, each with its step; those of evaluations have `evaluation`.
        metrics: The metrics to draw; if none of them was evaluated, the first that was.

    Returns:
        The picture.
    """
    # Not pyplot, which keeps figures and opens windows.
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    training = [row for row in history if "evaluation" not in row]
    evaluations = [row for row in history if "evaluation" in row]
    figure = Figure(figsize=_SIZE, dpi=_DPI, layout="constrained")
    left, right = figure.subplots(1, 2)
    terms = sorted(
        {name for row in training for name in row if name.startswith("Loss/")}, key=lambda n: (n != _TOTAL, n)
    )
    _draw(left, training, terms, "loss")
    known = [name for name in metrics if any(name in row for row in evaluations)]
    others = [name for row in evaluations[-1:] for name in row if name not in ("step", "evaluation", "learning_rate")]
    _draw(right, evaluations, known or others[:1], "evaluation")
    with io.BytesIO() as file:
        FigureCanvasAgg(figure).print_png(file)
        return Image.open(io.BytesIO(file.getvalue())).convert("RGB")


def _draw(axes: Axes, rows: Sequence[Mapping[str, Any]], names: Sequence[str], title: str) -> None:
    for name in names:
        points = [(row["step"], row[name]) for row in rows if isinstance(row.get(name), int | float)]
        # Markers for few points: a line through a single evaluation would be invisible.
        axes.plot(*zip(*points, strict=True), label=name.rpartition("/")[2], marker="." if len(points) < 20 else "")
    axes.set_title(title if names else f"{title}: nothing was logged")
    axes.set_xlabel("step")
    axes.grid(visible=True, alpha=0.3)
    if names:
        axes.legend(fontsize="small")


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
    config = load_configuration(model, None, ["eval_config.include_metrics_per_category=true"])
    opened = open_evaluation(model, config.message, chosen)
    with ImageResults(folder) as results:
        evaluation = evaluate(opened, keep=results.add)
        about = about_evaluation(opened.model, chosen, config.path, opened.runtime)
        write_evaluation(evaluation, results, folder, opened.model.step, about=about)
    write_whole(folder / "pipeline.config", dump_message(config.message))
    return write_report(source_of_evaluation(folder), out or folder / "report", reporting)


# What stands beside the metrics in a line of the log.
_NO_METRICS = ("step", "evaluation", "learning_rate")
_AP = ("DetectionBoxes_Precision/mAP", "DetectionBoxes_Precision/mAP@.50IOU")


class Run:
    """A run's folder, as returned by `boxwright.train`; `Run("model")` opens an existing one.

    Attributes:
        folder: The folder with checkpoints, log and configuration.
        step: Steps completed.
    """

    def __init__(self, folder: str | Path, step: int | None = None) -> None:
        """Open a run.

        Args:
            folder: Its folder.
            step: Steps completed; by default those of the newest checkpoint.

        Raises:
            CheckpointError: If there is no run.
        """
        self.folder = Path(folder)
        self.step = self._newest_step() if step is None else step

    def __repr__(self) -> str:
        metrics = self.metrics
        precision = f", AP {metrics[_AP[0]]:.3f}, AP50 {metrics[_AP[1]]:.3f}" if set(_AP) <= set(metrics) else ""
        return f"<Run {self.folder}: step {self.step}{precision}>"

    @property
    def best(self) -> Path | None:
        """The checkpoint of the best evaluation; None if there was no evaluation."""
        path = self.folder / "best.pt"
        return path if path.is_file() else None

    @property
    def history(self) -> list[dict[str, Any]]:
        """The log's lines, in order: `step` and numbers by name; those of evaluations have `evaluation` too."""
        return read_lines(self.folder)

    @property
    def metrics(self) -> dict[str, float]:
        """The newest metrics of the first eval_input_reader; empty if there was no evaluation."""
        rows = [row for row in self.history if "evaluation" in row]
        # A run may evaluate several readers; the first one's name is on the first line.
        rows = [row for row in rows if row["evaluation"] == rows[0]["evaluation"]]
        return {name: value for name, value in rows[-1].items() if name not in _NO_METRICS} if rows else {}

    def model(self, which: str = "best", *, device: AnyDevice = "auto") -> Model:
        """Open the trained model.

        Args:
            which: "best", the checkpoint of the best evaluation (the newest without evaluations), or "newest".
            device: As for `boxwright.load`.

        Returns:
            The model.

        Raises:
            TrainingError: For another value.
        """
        if which not in ("best", "newest"):
            raise TrainingError(f"which={which!r}: expected best or newest")
        source = self.best if which == "best" else None
        return load(source or self.folder, device=device)

    def evaluate(self, **settings: Any) -> dict[str, float]:
        """Return the metrics of the newest checkpoint; see `boxwright.evaluate`."""
        from boxwright.api.evaluate import evaluate

        return evaluate(self.folder, **settings)

    def report(self, out: str | Path | None = None, **settings: Any) -> Path:
        """Evaluate the newest checkpoint and write a page that shows why average precision is what it is.

        Args:
            out: The page's folder; by default `eval/report` in the run's. The evaluation is written to `eval`.
            **settings: Fields of `EvaluationSettings` and `ReportSettings`, such as device and fit_calibration.

        Returns:
            The path of its `index.html`, to open in a browser.

        Raises:
            BoxwrightError: If model, configuration or data cannot be used.
        """
        return report_on(self.folder, self.folder / "eval", None if out is None else Path(out), **settings)

    def plot_history(self, path: str | Path | None = None) -> PilImage:
        """Return a plot of the loss, and of average precision if it was evaluated, over the steps.

        Args:
            path: A .png or .jpg to write as well.

        Returns:
            The picture.

        Raises:
            DataError: If the run has no log, or the file another ending.
        """
        from boxwright.data.image_io import encode_picture

        history = self.history
        if not history:
            raise DataError(f"{self.folder}: metrics.jsonl is missing or empty")
        picture = draw_history(history, _AP)
        if path is not None:
            path = Path(path)
            if path.suffix.lower() not in (".png", ".jpg", ".jpeg"):
                raise DataError(f"{path}: expected a name that ends in .png or .jpg")
            import numpy as np

            write_whole(path, encode_picture(np.asarray(picture), path.suffix))
        return picture

    def _newest_step(self) -> int:
        from boxwright.weights.store import CheckpointStore

        paths = CheckpointStore(self.folder).paths()
        if not paths:
            raise CheckpointError(f"{self.folder}: no run; expected a folder with ckpt-*.pt")
        return int(paths[-1].stem.removeprefix("ckpt-"))
