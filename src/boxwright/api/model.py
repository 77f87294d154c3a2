"""`boxwright.load`: any detector that was opened, as pictures in, results out."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

from boxwright.api.pictures import Picture, is_one, pictures_of
from boxwright.api.result import DRAWN_FROM, Result
from boxwright.base.errors import ConfigError
from boxwright.loading.open_model import OpenModel, open_model
from boxwright.types.categories import Categories

if TYPE_CHECKING:
    from boxwright.config.messages import TrainEvalPipelineConfig
    from boxwright.models.detector import Detector
    from boxwright.runtime.exported import ExportedDetector


def load(
    source: str | Path,
    *,
    device: str = "auto",
    config: str | Path | TrainEvalPipelineConfig | None = None,
    label_map: str | Path | None = None,
    allow_edited: bool = False,
) -> Model:
    """Open whatever detects.

    Args:
        source: A run's folder (its newest checkpoint), a checkpoint, a model zoo archive, a SavedModel, a frozen graph,
            or an exported .onnx, .xml, .tflite or .pt2; PyTorch is imported for .pt2 and checkpoints alone.
        device: cpu, cuda, cuda:1, or auto for a GPU where there is one; exported files run on the CPU.
        config: The configuration, for weights of TensorFlow's that lie without their pipeline.config.
        label_map: Names of the classes (.pbtxt), where the source has none.
        allow_edited: Whether an exported file is opened that is not as `boxwright export` wrote it.

    Returns:
        The model.

    Raises:
        BoxwrightError: Where there is no detector, it is damaged, or it cannot be what is asked for.
    """
    from boxwright.config.load import load_config
    from boxwright.data.label_map import load_label_map

    return Model(
        open_model(
            source,
            device=device,
            config=load_config(config) if isinstance(config, str | Path) else config,
            categories=None if label_map is None else load_label_map(label_map),
            allow_edited=allow_edited,
        )
    )


class Model:
    """Takes pictures, returns what is in them; made by `boxwright.load`.

    Attributes:
        path: What was opened.
    """

    def __init__(self, opened: OpenModel) -> None:
        """Take what `boxwright.load` opened.

        Args:
            opened: A detector, on its device, or an exported one.
        """
        self.path = opened.path
        self._model = opened

    @property
    def is_exported(self) -> bool:
        """Whether it is an exported file, which can neither be trained nor exported again."""
        return self._model.is_exported

    @property
    def opened(self) -> Detector | ExportedDetector:
        """What was opened: a detector on its device, or an exported one."""
        return self._model.opened

    @property
    def detector(self) -> Detector:
        """The detector as a torch.nn.Module.

        Raises:
            ExportError: For an exported file, which has none.
        """
        return self._model.detector

    @property
    def categories(self) -> Categories | None:
        """The classes; None where nothing names them."""
        return self._model.categories

    @property
    def names(self) -> list[str]:
        """The names of the classes, in the order of their labels; empty where nothing names them."""
        return [] if self.categories is None else [item.title for item in self.categories]

    @property
    def step(self) -> int:
        """How many steps it was trained."""
        return self._model.step

    @property
    def config(self) -> TrainEvalPipelineConfig:
        """The configuration that it was trained with."""
        return self._model.config

    def __repr__(self) -> str:
        names = self.names
        classes = ", ".join(names[:5]) + (f" and {len(names) - 5} more" if len(names) > 5 else "")
        kind = "exported" if self.is_exported else "detector"
        return f"<Model {self.path}: {kind}, step {self.step}, classes: {classes or 'not named'}>"

    def __call__(
        self, images: Any, *, min_score: float | None = None, scale: str = "guess", batch_size: int = 8
    ) -> Any:
        """Detect objects: one picture in gives one `Result`, several give a list of them.

        Args:
            images: A picture: a path, an http(s) address, the bytes of an image file, a PIL image, an array HWC in
                RGB or a tensor CHW. Or several: a list of pictures, a folder, a pattern such as `shots/*.jpg`, an array
                or tensor of four dimensions.
            min_score: Leave out what scores less; without, all is kept that the configuration keeps, and `plot` and
                `save` draw what scores 0.5 or more.
            scale: What floats are: "pixels" for 0..255, "unit" for 0..1; to "guess" refuses what looks like 0..1.
            batch_size: How many pictures the network sees together, where they have one size.

        Returns:
            A `Result`, or a list of them.

        Raises:
            DataError: For what is no picture or cannot be read.
        """
        found = list(self.stream(images, min_score=min_score, scale=scale, batch_size=batch_size))
        return found[0] if is_one(images) else found

    def detect(self, images: Any, scale: str = "guess") -> list[Result]:
        """Detect objects in several pictures, as a call does, and return a list in any case."""
        return list(self.stream(images, scale=scale))

    def stream(
        self, images: Any, *, min_score: float | None = None, scale: str = "guess", batch_size: int = 8
    ) -> Iterator[Result]:
        """Yield a `Result` for each picture, as a call does, without holding all of them in memory."""
        if batch_size < 1:
            raise ConfigError(f"batch_size: expected at least 1, found {batch_size}")
        pictures = pictures_of(images, scale)
        while batch := list(itertools.islice(pictures, batch_size)):
            yield from self._results(batch, min_score)

    def _results(self, pictures: list[Picture], min_score: float | None) -> Iterator[Result]:
        found = self._model.finder()([picture.image for picture in pictures])
        for picture, objects in zip(pictures, found, strict=True):
            kept = objects if min_score is None else objects.above(min_score)
            yield Result(kept, picture.image, picture.source, DRAWN_FROM if min_score is None else 0.0)

    def optimize(self) -> Model:
        """Make a detector faster, for inference alone: batch normalization is folded into convolutions.

        Returns:
            The model itself.

        Raises:
            ExportError: For an exported file, which is as fast as it was made.
        """
        self.detector.optimize()
        return self

    def evaluate(self, **settings: Any) -> dict[str, float]:
        """Return the metrics on the data of the configuration's eval_input_reader; see `boxwright.evaluate`."""
        from boxwright.api.metrics import metrics_of

        return metrics_of(self._model, **settings)

    def export(
        self, format: str = "onnx", path: str | Path | None = None, *, images: Any = None, **options: Any
    ) -> Path:
        """Write the detector for another runtime, after what was written has been compared with it.

        Args:
            format: "onnx", "openvino", "litert" or "pt2".
            path: The file; without, `export/detector.onnx` (or the format's ending) in the run's folder.
            images: Pictures for the comparison, as a call takes them; without, those of the configuration's data.
            **options: As `boxwright.export` has them: nms, allow_difference.

        Returns:
            The file; its report lies beside it.

        Raises:
            ExportError: Where it cannot be written so, or what was written differs from the detector.
        """
        from boxwright.api.export import export_model

        return export_model(self._model, format, path, images, options).path
