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

_AP = ("DetectionBoxes_Precision/mAP", "DetectionBoxes_Precision/mAP@.50IOU")


class Run:
    """A run's folder, as `boxwright.train` returns it; `Run("model")` opens one of an earlier day.

    Attributes:
        folder: Where checkpoints, log and configuration are.
        step: Steps done in all.
    """

    def __init__(self, folder: str | Path, step: int | None = None) -> None:
        """Open a run.

        Args:
            folder: Its folder.
            step: Steps done; without, those of its newest checkpoint.

        Raises:
            CheckpointError: Where there is no run.
        """
        self.folder = Path(folder)
        self.step = self._newest_step() if step is None else step

    def __repr__(self) -> str:
        metrics = self.metrics
        told = f", AP {metrics[_AP[0]]:.3f}, AP50 {metrics[_AP[1]]:.3f}" if set(_AP) <= set(metrics) else ""
        return f"<Run {self.folder}: step {self.step}{told}>"

    @property
    def best(self) -> Path | None:
        """The checkpoint of the best evaluation; None where nothing was evaluated."""
        path = self.folder / "best.pt"
        return path if path.is_file() else None

    @property
    def history(self) -> list[dict[str, Any]]:
        """The log's lines, in order: `step` and numbers by name; those of evaluations have `evaluation` too."""
        return read_lines(self.folder)

    @property
    def metrics(self) -> dict[str, float]:
        """The newest metrics of the first eval_input_reader; empty where nothing was evaluated."""
        found = [row for row in self.history if "evaluation" in row]
        found = [row for row in found if row["evaluation"] == found[0]["evaluation"]]
        return {name: value for name, value in found[-1].items() if name not in ("step", "evaluation")} if found else {}

    def model(self, which: str = "best", *, device: str = "auto") -> Model:
        """Open what was trained.

        Args:
            which: "best", the checkpoint of the best evaluation (the newest, where nothing was evaluated), or "newest".
            device: As for `boxwright.load`.

        Returns:
            The model.

        Raises:
            TrainingError: For another word.
        """
        if which not in ("best", "newest"):
            raise TrainingError(f"which={which!r}: expected best or newest")
        source = self.best if which == "best" else None
        return load(source or self.folder, device=device)

    def evaluate(self, **settings: Any) -> dict[str, float]:
        """Return the metrics of the newest checkpoint; see `boxwright.evaluate`."""
        from boxwright.api.evaluate import evaluate

        return evaluate(self.folder, **settings)

    def plot_history(self, path: str | Path | None = None) -> PilImage:
        """Draw the loss, and average precision where it was evaluated, over the steps.

        Args:
            path: Where to write the picture, .png or .jpg; None for nowhere.

        Returns:
            The picture.

        Raises:
            DataError: Where the run has no log, or the file another ending.
        """
        from boxwright.api.history import draw_history
        from boxwright.data.image_io import encode_picture

        history = self.history
        if not history:
            raise DataError(f"{self.folder}: there is no metrics.jsonl with a line in it")
        picture = draw_history(history, _AP)
        if path is not None:
            path = Path(path)
            if path.suffix.lower() not in (".png", ".jpg", ".jpeg"):
                raise DataError(f"{path}: expected a name that ends in .png or .jpg")
            import numpy as np

            write_whole(path, encode_picture(np.asarray(picture), path.suffix))
        return picture

    def _newest_step(self) -> int:
        from boxwright.checkpoints.store import CheckpointStore

        paths = CheckpointStore(self.folder).paths()
        if not paths:
            raise CheckpointError(f"{self.folder}: no run; expected a folder with ckpt-*.pt")
        return int(paths[-1].stem.removeprefix("ckpt-"))
