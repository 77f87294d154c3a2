"""Detect objects in pictures, and train detectors on pictures of your own.

Open a detector and call it: with a picture it returns a `Result`, with a list or a folder a list of them.

    >>> import boxwright as bw
    >>> model = bw.load("model")
    >>> result = model("photos/street.png", conf=0.3)
    >>> for box, score, name in result:
    ...     print(name, score, box)  # doctest: +SKIP
    >>> result.save("street-detected.png")
    PosixPath('street-detected.png')

`load` takes a run's folder, a checkpoint, an exported file, the name of published weights such as "d_fine_s_coco", or
hf://USER/NAME. `result.boxes`, `.scores`, `.labels` and `.names()` are arrays of all objects, `result.show()` opens the
picture with the objects drawn on it.

Train on a folder of annotated pictures (YOLO, COCO, Pascal VOC, …), and use what was learned:

    >>> run = bw.train("my-data", "my-model", epochs=1)
    >>> run.metrics["DetectionBoxes_Precision/mAP"] >= 0
    True
    >>> detect = run.model()
    >>> len(detect("photos"))
    2
    >>> detect.export("pt2", "detector.pt2")
    PosixPath('detector.pt2')

`evaluate("my-model")` computes the metrics again, and `Run("my-model").report()` writes a page that shows where average
precision is lost. A project of the TensorFlow Object Detection API is trained by its configuration:
`train("pipeline.config", "my-model")`.

Most programs need `load`, `Model`, `Result`, `train`, `Run` and `evaluate`. `Learner` leaves the training loop to you,
`load_config` and `build_detector` a detector's parts; `push_to_hub` publishes one. Every error is a `BoxwrightError`.
The command line has the same: `boxwright --help`.
"""

from __future__ import annotations

# Not of `typing`: the program imports nothing before it can tell Ctrl-C from an error.
TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

    from boxwright.api.evaluate import evaluate
    from boxwright.api.learner import Learner
    from boxwright.api.model import Model, load
    from boxwright.api.push_to_hub import push_to_hub
    from boxwright.api.result import FoundObject, Result
    from boxwright.api.run import Run
    from boxwright.api.train import train
    from boxwright.base.errors import (
        BoxwrightError,
        CheckpointError,
        ConfigError,
        DataError,
        ExportError,
        OutputError,
        TrainingError,
    )
    from boxwright.data.sample_data import sample_images
    from boxwright.exporters.export import export
    from boxwright.nn.detector import Detector
    from boxwright.nn.postprocessing.masks import instance_masks
    from boxwright.pipeline import Pipeline, load_config
    from boxwright.pipeline.detector import build_detector
    from boxwright.training.settings import RunSettings
    from boxwright.types import AnchorPredictions, Categories, Category, Detections, Sample, Targets
    from boxwright.weights.load_weights import LoadReport, load_weights
    from boxwright.weights.restore import restore_detector

__all__ = [
    "AnchorPredictions",
    "BoxwrightError",
    "Categories",
    "Category",
    "CheckpointError",
    "ConfigError",
    "DataError",
    "Detections",
    "Detector",
    "ExportError",
    "FoundObject",
    "Learner",
    "LoadReport",
    "Model",
    "OutputError",
    "Pipeline",
    "Result",
    "Run",
    "RunSettings",
    "Sample",
    "Targets",
    "TrainingError",
    "build_detector",
    "evaluate",
    "export",
    "instance_masks",
    "load",
    "load_config",
    "load_weights",
    "push_to_hub",
    "restore_detector",
    "sample_images",
    "train",
]

# The module of each name, which is imported on first use: torch and its libraries take seconds to import, and reading
# a configuration needs none of them.
_HOMES = {
    "boxwright.api.evaluate": ("evaluate",),
    "boxwright.api.learner": ("Learner",),
    "boxwright.api.model": ("Model", "load"),
    "boxwright.api.push_to_hub": ("push_to_hub",),
    "boxwright.api.result": ("FoundObject", "Result"),
    "boxwright.api.run": ("Run",),
    "boxwright.api.train": ("train",),
    "boxwright.pipeline.detector": ("build_detector",),
    "boxwright.weights.load_weights": ("LoadReport", "load_weights"),
    "boxwright.pipeline": ("Pipeline", "load_config"),
    "boxwright.base.errors": (
        "BoxwrightError",
        "CheckpointError",
        "ConfigError",
        "DataError",
        "ExportError",
        "OutputError",
        "TrainingError",
    ),
    "boxwright.weights.restore": ("restore_detector",),
    "boxwright.data.sample_data": ("sample_images",),
    "boxwright.exporters.export": ("export",),
    "boxwright.nn.detector": ("Detector",),
    "boxwright.nn.postprocessing.masks": ("instance_masks",),
    "boxwright.training.settings": ("RunSettings",),
    "boxwright.types": ("Categories", "Category", "Detections", "AnchorPredictions", "Sample", "Targets"),
}


def __dir__() -> list[str]:
    return [*__all__, "__version__"]


def __getattr__(name: str) -> Any:
    from importlib import import_module

    if name == "__version__":
        from importlib.metadata import version  # slower to import than everything else here

        return version("boxwright")
    for module, names in _HOMES.items():
        if name in names:
            return getattr(import_module(module), name)
    raise AttributeError(f"module 'boxwright' has no attribute {name!r}")
