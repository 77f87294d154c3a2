"""A run's log: TensorBoard under TF's tags, JSON lines, and trackers of others."""

from __future__ import annotations

import json
from collections.abc import Sequence
from contextlib import ExitStack, nullcontext, suppress
from pathlib import Path
from types import TracebackType

import numpy as np
from numpy.typing import NDArray
from torch.utils.tensorboard import SummaryWriter

from boxwright.criteria.criterion import Description
from boxwright.data.batch import Batch
from boxwright.drawing import draw_boxes, draw_cumulative
from boxwright.evaluation.events import evaluation_folder, write_evaluation_events
from boxwright.metrics.metric import without_nan
from boxwright.training.trackers import Tracker
from boxwright.types import Categories

__all__ = ["TrainingLog", "draw_inputs"]

_LINES = "metrics.jsonl"


class TrainingLog:
    """Writes scalars and pictures; a context that closes its files.

    What an earlier run wrote about steps after the one that this one begins at is taken out: those
    steps are done again.
    """

    def __init__(
        self, model_dir: Path, start: int = 0, *, evaluated: int = -1, trackers: Sequence[Tracker] = ()
    ) -> None:
        """Open the files, `train/` for TensorBoard and `metrics.jsonl`.

        Args:
            model_dir: The run's folder.
            start: The step at which the run begins or goes on.
            evaluated: The step of the last evaluation that counts.
            trackers: Where numbers go beside.
        """
        self._folder, self._evaluated, self._trackers = model_dir, evaluated, trackers
        self._train = SummaryWriter(str(model_dir / "train"), purge_step=start + 1)
        self._eval: dict[str, SummaryWriter] = {}
        _forget_after(model_dir / _LINES, start, evaluated)
        self._lines = (model_dir / _LINES).open("a", encoding="utf-8")

    def __enter__(self) -> TrainingLog:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        with ExitStack() as stack:
            trackers = [tracker.close for tracker in self._trackers]
            for close in (self._lines.close, *trackers, *(one.close for one in self._eval.values()), self._train.close):
                # What cannot be written now could not be written before: that error is on its way.
                stack.enter_context(suppress(OSError) if kind else nullcontext())
                stack.callback(close)

    def scalars(self, step: int, values: dict[str, float]) -> None:
        """Log numbers of training.

        Args:
            step: Steps done.
            values: Tag to value.
        """
        for tag, value in values.items():
            self._train.add_scalar(tag, value, step)
        for tracker in self._trackers:
            tracker.scalars(step, values)
        self._line({"step": step, **without_nan(values)})

    def describe(self, step: int, description: Description) -> None:
        """Log how a batch was assigned.

        Args:
            step: Steps done.
            description: Averages an image, and losses whose cumulative distribution is drawn.
        """
        for tag, value in description.scalars.items():
            self._train.add_scalar(tag, float(value), step)
        for tag, values in description.distributions.items():
            self._train.add_image(tag, draw_cumulative(values.cpu().numpy()), step, dataformats="HWC")

    def gradients(self, step: int, gradients: dict[str, NDArray[np.float32]]) -> None:
        """Log each variable's gradient: its norm, and a histogram.

        Args:
            step: Steps done.
            gradients: Variable to gradient.
        """
        for name, gradient in gradients.items():
            self._train.add_scalar(f"gradient_norm/{name}", float(np.linalg.norm(gradient)), step)
            self._train.add_histogram(f"gradients/{name}", gradient, step)

    def evaluation(
        self, step: int, metrics: dict[str, float], pictures: dict[str, NDArray[np.uint8]], name: str = ""
    ) -> None:
        """Log numbers and pictures of an evaluation, under `eval/` or `eval/<name>`.

        Args:
            step: Steps done.
            metrics: Metric name to value.
            pictures: Image id to picture.
            name: The evaluation reader's name.
        """
        folder = evaluation_folder(self._folder, name)
        if name not in self._eval:
            self._eval[name] = SummaryWriter(str(folder), purge_step=self._evaluated + 1)
        write_evaluation_events(self._eval[name], step, metrics, pictures)
        for tracker in self._trackers:
            tracker.scalars(step, {f"{folder.relative_to(self._folder)}/{tag}": v for tag, v in metrics.items()})
        self._line({"step": step, "evaluation": name or "eval", **without_nan(metrics)})

    def images(self, step: int, batch: Batch, categories: Categories | None) -> None:
        """Log the first images of a batch as the network sees them, with their boxes.

        Args:
            step: Steps done.
            batch: The batch.
            categories: The classes, for names.
        """
        for row, picture in enumerate(draw_inputs(batch, categories, 3)):
            self._train.add_image(f"train_input_images/{row}", picture, step, dataformats="HWC")

    def _line(self, values: dict[str, object]) -> None:
        self._lines.write(json.dumps(values) + "\n")
        self._lines.flush()


def draw_inputs(batch: Batch, categories: Categories | None, most: int) -> list[NDArray[np.uint8]]:
    """Draw images of a batch as the network sees them, with their boxes.

    Args:
        batch: The batch.
        categories: The classes, for names.
        most: How many at most.

    Returns:
        Pictures, uint8 [H, W, 3].
    """
    pictures = []
    targets = batch.targets.to("cpu")
    for row in range(min(len(batch), most)):
        image = np.ascontiguousarray(batch.images[row].permute(1, 2, 0).cpu().numpy())
        image = np.repeat(image, 3, axis=2) if image.shape[2] == 1 else image
        valid = targets.valid[row].numpy()
        labels = targets.labels[row].numpy()[valid].tolist()
        names = [categories.by_label(label).title if categories else str(label + 1) for label in labels]
        pictures.append(draw_boxes(image, targets.boxes[row].numpy()[valid], labels, names))
    return pictures


def _forget_after(path: Path, step: int, evaluated: int) -> None:
    """Take out of the JSON lines what is to be done again; a line that was cut off by a kill too."""
    if not path.is_file():
        return
    kept = []
    for line in path.read_text(encoding="utf-8").splitlines():
        try:
            values = json.loads(line)
        except json.JSONDecodeError:
            continue
        if values["step"] <= (evaluated if "evaluation" in values else step):
            kept.append(line + "\n")
    partial = path.with_name(f".{path.name}.partial")
    partial.write_text("".join(kept), encoding="utf-8")
    partial.replace(path)
