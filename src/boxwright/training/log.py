"""A run's log: TensorBoard under TF's tags, and JSON lines."""

from __future__ import annotations

import json
from pathlib import Path
from types import TracebackType

import numpy as np
from numpy.typing import NDArray
from torch.utils.tensorboard import SummaryWriter

from boxwright.data.batch import Batch
from boxwright.drawing import draw_boxes
from boxwright.metrics.metric import without_nan
from boxwright.types import Categories

__all__ = ["TrainingLog"]


class TrainingLog:
    """Writes scalars and pictures; a context that closes its files."""

    def __init__(self, model_dir: Path) -> None:
        """Open the files, `train/` for TensorBoard and `metrics.jsonl`.

        Args:
            model_dir: The run's folder.
        """
        self._train = SummaryWriter(str(model_dir / "train"))
        self._eval: dict[int, SummaryWriter] = {}
        self._folder = model_dir
        self._lines = (model_dir / "metrics.jsonl").open("a", encoding="utf-8")

    def __enter__(self) -> TrainingLog:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._train.close()
        for writer in self._eval.values():
            writer.close()
        self._lines.close()

    def scalars(self, step: int, values: dict[str, float]) -> None:
        """Log numbers of training.

        Args:
            step: Steps done.
            values: Tag to value.
        """
        for tag, value in values.items():
            self._train.add_scalar(tag, value, step)
        self._line(step, values)

    def evaluation(
        self, step: int, metrics: dict[str, float], pictures: dict[str, NDArray[np.uint8]], number: int = 0
    ) -> None:
        """Log numbers and pictures of an evaluation, under `eval/` (`eval_1/` for the second reader, …).

        Args:
            step: Steps done.
            metrics: Metric name to value.
            pictures: Image id to picture.
            number: Which evaluation reader.
        """
        name = f"eval_{number}" if number else "eval"
        if number not in self._eval:
            self._eval[number] = SummaryWriter(str(self._folder / name))
        writer = self._eval[number]
        for tag, value in metrics.items():
            writer.add_scalar(tag, value, step)
        for number, picture in enumerate(pictures.values()):
            writer.add_image(f"Detections_Left_Groundtruth_Right/{number}", picture, step, dataformats="HWC")
        writer.flush()
        self._line(step, metrics)

    def images(self, step: int, batch: Batch, categories: Categories | None) -> None:
        """Log the first images of a batch as the network sees them, with their boxes.

        Args:
            step: Steps done.
            batch: The batch.
            categories: The classes, for names.
        """
        for row in range(min(len(batch), 4)):
            image = np.ascontiguousarray(batch.images[row].permute(1, 2, 0).numpy())
            image = np.repeat(image, 3, axis=2) if image.shape[2] == 1 else image
            valid = batch.targets.valid[row].numpy()
            labels = batch.targets.labels[row].numpy()[valid].tolist()
            names = [categories.by_label(label).title if categories else str(label + 1) for label in labels]
            picture = draw_boxes(image, batch.targets.boxes[row].numpy()[valid], labels, names)
            self._train.add_image(f"train_input_images/{row}", picture, step, dataformats="HWC")

    def _line(self, step: int, values: dict[str, float]) -> None:
        self._lines.write(json.dumps({"step": step, **without_nan(values)}) + "\n")
        self._lines.flush()
