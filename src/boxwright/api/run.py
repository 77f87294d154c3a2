"""A training run on disk: its steps, metrics, curves and models."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

from boxwright.api.model import Model, load
from boxwright.base.errors import CheckpointError, DataError, TrainingError
from boxwright.base.files import write_whole
from boxwright.training.log import read_lines

if TYPE_CHECKING:
    from PIL.Image import Image as PilImage

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

    def model(self, which: str = "best", *, device: str = "auto") -> Model:
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
        from boxwright.api.report import report_on

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
        from boxwright.api.history import draw_history
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
