"""`boxwright.load`: a detector of any kind that takes pictures and returns results."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from numbers import Integral, Real
from pathlib import Path
from typing import TYPE_CHECKING, Any, overload

from boxwright.api.pictures import (
    OnePicture,
    Picture,
    SeveralPictures,
    is_one,
    iterate_pictures,
    iterate_pictures_or_errors,
)
from boxwright.api.result import DRAWN_FROM, Result
from boxwright.base.errors import ConfigError
from boxwright.base.settings import device_name
from boxwright.base.text import visible_line
from boxwright.runtime.devices import require_runtime
from boxwright.types.categories import Categories
from boxwright.types.pixels import Scale
from boxwright.weights.open_model import OpenModel, open_model, remember

if TYPE_CHECKING:
    from boxwright.base.settings import AnyDevice
    from boxwright.nn.detector import Detector
    from boxwright.pipeline.messages import TrainEvalPipelineConfig
    from boxwright.runtime.exported import ExportedDetector


def load(
    source: str | Path,
    *,
    device: AnyDevice = "auto",
    config: str | Path | TrainEvalPipelineConfig | None = None,
    label_map: str | Path | None = None,
    allow_edited: bool = False,
    context: str | Path | None = None,
    runtime: str = "auto",
) -> Model:
    """Open a detector: of a run, a checkpoint, an exported file, published weights, or TensorFlow.

    Nothing in the process around it changes. On a CPU that other programs use too, set GOMP_SPINCOUNT=1000 before torch
    is imported, as the command line does.

    Args:
        source: A run's folder (its newest checkpoint), a checkpoint, a model zoo archive, a SavedModel, a frozen graph,
            an exported .onnx, .xml, .tflite or .pt2; "demo" for the detector in the package; a name of published
            weights such as "d_fine_s_coco"; hf://USER/NAME[@REVISION], a model on Hugging Face's hub; or the address
            of a run or a file at s3:// or gs://. What is fetched is kept in a cache. PyTorch is imported for .pt2 and
            checkpoints alone.
        device: cpu, cuda, a GPU as 1, cuda:1 or torch.device, or auto for a GPU if available. Exports run on the
            CPU for auto, or where their runtime can: ONNX Runtime on cuda and tensorrt, OpenVINO on gpu and npu.
        config: The configuration, for TensorFlow weights without a pipeline.config.
        label_map: Class names (.pbtxt), if the source has none.
        allow_edited: Whether to open an exported file that was changed after `boxwright export` wrote it.
        context: For Context R-CNN: a camera's memory, a .npy that `boxwright context build --banks` wrote.
        runtime: What is to detect: "torch", "onnxruntime" or "openvino"; "auto" for PyTorch or, of an exported file,
            that of its format. Another than the model's own is an error.

    Returns:
        The model.

    Raises:
        BoxwrightError: If there is no detector, it is damaged, or the options do not apply to it.
    """
    # `import boxwright` imports this module, and should not wait for configurations.
    from boxwright.data.label_map import load_label_map
    from boxwright.pipeline.load import load_config

    device = device_name(device)
    require_runtime(Path(source), runtime, device)
    opened = open_model(
        source,
        device=device,
        config=load_config(config) if isinstance(config, str | Path) else config,
        categories=None if label_map is None else load_label_map(label_map),
        allow_edited=allow_edited,
    )
    if context is not None:
        remember(opened.detector, context)
    return Model(opened)


def _threshold(conf: float | None, min_score: float | None) -> float | None:
    """Return the confidence threshold of a call, None for the configuration's; ConfigError for two, or another."""
    if conf is not None and min_score is not None:
        raise ConfigError("conf and min_score are two names of the confidence threshold; pass one of them")
    name, least = ("min_score", min_score) if conf is None else ("conf", conf)
    if least is not None and not (isinstance(least, Real) and 0 <= least <= 1):
        raise ConfigError(f"{name}: expected a score from 0 to 1, found {least!r}")
    return least


class Model:
    """Detects objects in pictures; returned by `boxwright.load`.

    Examples:
        >>> model = boxwright.load("model")
        >>> result = model("photos/street.png", conf=0.3)
        >>> result.image_size
        (96, 96)
        >>> [len(result) > 0 for result in model(["photos/street.png", "photos/yard.png"])]
        [True, True]
        >>> model.names
        ['circle', 'square', 'triangle', 'star']

    Attributes:
        path: The source that was opened.
    """

    def __init__(self, opened: OpenModel) -> None:
        """Wrap an open model: a detector on its device, or an exported one."""
        self.path = opened.path
        self._model = opened

    @property
    def is_exported(self) -> bool:
        """Whether it is an exported file, which can be neither trained nor exported again."""
        return self._model.is_exported

    @property
    def opened(self) -> Detector | ExportedDetector:
        """The detector on its device, or an exported one."""
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
        """The classes; None if they are unknown."""
        return self._model.categories

    @property
    def names(self) -> list[str]:
        """The class names, in the order of their labels; empty if they are unknown."""
        return [] if self.categories is None else [item.title for item in self.categories]

    @property
    def step(self) -> int:
        """The number of training steps."""
        return self._model.step

    @property
    def config(self) -> TrainEvalPipelineConfig:
        """The configuration that it was trained with."""
        return self._model.config

    def __repr__(self) -> str:
        names = self.names
        classes = visible_line(", ".join(names[:5])) + (f" and {len(names) - 5} more" if len(names) > 5 else "")
        kind = "exported" if self.is_exported else "detector"
        return f"<Model {self.path}: {kind}, step {self.step}, classes: {classes or 'not named'}>"

    # Folders, patterns and arrays of four dimensions are several pictures, too, which their types do not tell: `detect`
    # always returns a list.
    @overload
    def __call__(
        self,
        images: OnePicture,
        *,
        conf: float | None = ...,
        min_score: float | None = ...,
        scale: Scale = ...,
        batch_size: int = ...,
    ) -> Result: ...
    @overload
    def __call__(
        self,
        images: SeveralPictures,
        *,
        conf: float | None = ...,
        min_score: float | None = ...,
        scale: Scale = ...,
        batch_size: int = ...,
    ) -> list[Result]: ...
    def __call__(
        self,
        images: OnePicture | SeveralPictures,
        *,
        conf: float | None = None,
        min_score: float | None = None,
        scale: Scale = "guess",
        batch_size: int = 8,
    ) -> Result | list[Result]:
        """Detect objects: one picture in gives one `Result`, several give a list of them.

        Args:
            images: A picture: a path, an http(s) address, the bytes of an image file, an open file or io.BytesIO, a PIL
                image, an array HWC in RGB or a tensor CHW. Or several: a list of pictures, a folder, a pattern such as
                `shots/*.jpg`, an array or tensor of four dimensions. A detector of more channels takes arrays, tensors
                and .npy files.
            conf: The confidence threshold: objects of a lower score are not returned. By default the configuration's,
                and `plot`, `show` and `save` draw objects of 0.5 or more.
            min_score: Another name of `conf`.
            scale: What is white in pictures that are not of 8 bits: "pixels" for 255, "unit" for 1, or a number such as
                4095. "guess" takes that of the data that the model was trained with; if those were of 8 bits, it
                refuses floats that look like 0..1.
            batch_size: The number of pictures per network call, if they have one size.

        Returns:
            A `Result`, or a list of them.

        Raises:
            DataError: If a picture cannot be read, or is none.
            ConfigError: For an impossible value.
        """
        pictures = iterate_pictures(images, scale, self._model.image_channels, self._model.white_level)
        results = list(self._results(pictures, _threshold(conf, min_score), batch_size))
        return results[0] if is_one(images) else results

    def detect(self, images: Any, scale: Scale = "guess") -> list[Result]:
        """Detect objects in pictures, as a call does, but always return a list."""
        pictures = iterate_pictures(images, scale, self._model.image_channels, self._model.white_level)
        return list(self._results(pictures))

    def stream(
        self,
        images: Any,
        *,
        conf: float | None = None,
        min_score: float | None = None,
        scale: Scale = "guess",
        batch_size: int = 8,
    ) -> Iterator[Result]:
        """Yield a `Result` for each picture, as a call does, without holding all of them in memory.

        A picture that cannot be read gives a result without objects, whose `error` says why; a call raises instead.
        """
        pictures = iterate_pictures_or_errors(images, scale, self._model.image_channels, self._model.white_level)
        yield from self._results(pictures, _threshold(conf, min_score), batch_size)

    def _results(
        self, pictures: Iterator[Picture], min_score: float | None = None, batch_size: int = 8
    ) -> Iterator[Result]:
        if not isinstance(batch_size, Integral) or batch_size < 1:
            raise ConfigError(f"batch_size: expected a whole number of at least 1, found {batch_size!r}")
        # A threshold that the caller names also says what is drawn.
        drawn_from = DRAWN_FROM if min_score is None else 0.0
        while batch := list(itertools.islice(pictures, batch_size)):
            readable = [picture.image for picture in batch if not picture.error]
            detections = iter(self._model.detect_function()(readable) if readable else [])
            for picture in batch:
                if picture.error:
                    yield Result.without_objects(picture.image, picture.source, picture.error, self.categories)
                    continue
                objects = next(detections)
                kept = objects if min_score is None else objects.above(min_score)
                yield Result(kept, picture.image, picture.source, drawn_from)

    def optimize(self) -> Model:
        """Speed up a detector for inference only, by folding batch normalization into convolutions.

        Returns:
            The model itself.

        Raises:
            ExportError: For an exported file, which cannot be changed.
        """
        self.detector.optimize()
        return self

    def evaluate(self, **settings: Any) -> dict[str, float]:
        """Return the metrics on the data of the configuration's eval_input_reader; see `boxwright.evaluate`."""
        from boxwright.api.evaluate import evaluate

        return evaluate(self, **settings)

    def export(
        self, format: str = "onnx", path: str | Path | None = None, *, images: Any = None, **options: Any
    ) -> Path:
        """Export the detector to another runtime, after comparing the two.

        Args:
            format: "onnx", "openvino", "litert" or "pt2".
            path: The file; by default `export/detector.onnx` (or the format's ending) in the run's folder.
            images: Pictures for the comparison, as for a call; by default those of the configuration's data.
            **options: nms, allow_difference, precision, opset, batch and image_size, as for `boxwright.export`.

        Returns:
            The file; its report is beside it.

        Raises:
            ExportError: If the format cannot express the detector, or the exported file differs from it.
        """
        from boxwright.api.export import export_model

        return export_model(self._model, format, path, images, options).path
