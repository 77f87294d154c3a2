"""Opening a detector of any kind: a run, a checkpoint, an archive, or an export of any format.

PyTorch is imported only for checkpoints and for its own programs (.pt2). A model is evaluated with a given
configuration, the one beside its checkpoint, or its own. A Context R-CNN may be given the memory of one camera,
features from a file, for pictures that come without any.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from boxwright.base.errors import ConfigError, DataError, ExportError
from boxwright.base.files import is_file, read_file, shown
from boxwright.base.settings import device_name
from boxwright.base.threads import refuse_in_fork, runtime_threads
from boxwright.config.load import parse_message
from boxwright.pipeline.load import load_config, with_overrides
from boxwright.pipeline.messages import TrainEvalPipelineConfig
from boxwright.runtime.exported import ExportedDetector
from boxwright.runtime.formats import is_export
from boxwright.runtime.sessions import read_metadata
from boxwright.types.categories import Categories
from boxwright.types.detections import DetectFunction
from boxwright.weights.demo_model import DEMO_MODEL
from boxwright.weights.exports import open_export
from boxwright.weights.fetching import weights_cache
from boxwright.weights.find_weights import exists, local_path, unknown
from boxwright.weights.hub import hub_cache
from boxwright.weights.remote_model import models_cache

if TYPE_CHECKING:
    from boxwright.base.settings import AnyDevice
    from boxwright.nn.detector import Detector


def remember(detector: Detector, path: str | Path) -> None:
    """Let a Context R-CNN attend to the features of a file wherever a picture comes without context.

    Args:
        path: A .npy file of float32 [M, F], as `boxwright context build --banks` writes for each camera.

    Raises:
        ConfigError: For a detector of single images.
        DataError: If the file cannot be read, or its features do not fit the detector.
    """
    import io

    import torch

    attention = detector.network.attention
    if attention is None:
        raise ConfigError(f"context {shown(path)}: this detector has no context_config; it looks at single images")
    content = read_file(path)
    try:
        features = np.load(io.BytesIO(content), allow_pickle=False)
        if features.dtype != np.float32 or not np.isfinite(features).all():
            raise ValueError(f"expected finite float32 numbers, found {features.dtype}")
    except (ValueError, EOFError, OSError, AttributeError) as error:
        raise DataError(f"{shown(path)}: not a .npy file of context features: {error}") from None
    try:
        attention.remember(torch.from_numpy(features))
    except DataError as error:
        raise DataError(f"{shown(path)}: {error}") from None


@dataclass(frozen=True, eq=False)
class Configuration:
    """A configuration with its overrides, and its file; None if the model contains it."""

    message: TrainEvalPipelineConfig
    path: Path | None


def output_folder(model: Path) -> Path:
    """Return the folder for what is made of a model: its run's; for shipped and cached weights, the current one."""
    kept = (DEMO_MODEL, weights_cache(), hub_cache(), models_cache())
    return Path() if any(model.resolve().is_relative_to(folder.resolve()) for folder in kept) else run_folder(model)


def export_folder(model: Path) -> Path:
    """Return the folder for a model's exports."""
    return output_folder(model) / "export"


def run_folder(path: Path) -> Path:
    """Return the folder of a run, given the folder or a checkpoint in it."""
    return path if path.is_dir() else path.parent


def load_configuration(
    model: Path, given: str | Path | None = None, overrides: Sequence[str] = (), *, allow_edited: bool = False
) -> Configuration:
    """Return the given configuration, or `pipeline.config` beside a checkpoint, or the model's own.

    For exported files PyTorch is not imported.

    Args:
        model: The path of a run, a checkpoint or an exported file.
        allow_edited: Whether to read an exported file that was changed after it was written.

    Raises:
        BoxwrightError: If there is none, or it cannot be read.
    """
    if given is None and not is_export(model):
        given = _beside(model)
    if given is not None:
        return Configuration(load_config(given, overrides), Path(given))
    return Configuration(with_overrides(_own(model, allow_edited=allow_edited), overrides), None)


def _beside(model: Path) -> Path | None:
    from boxwright.weights.zoo_archive import is_archive

    beside = run_folder(model) / "pipeline.config"
    # An archive has a configuration of its own; what is beside it belongs to something else.
    return beside if is_file(beside) and not is_archive(model) else None


def _own(model: Path, *, allow_edited: bool) -> TrainEvalPipelineConfig:
    if is_export(model):
        metadata = read_metadata(model, allow_edited=allow_edited)
        return parse_message(metadata.config, TrainEvalPipelineConfig, file=str(model))
    from boxwright.weights.restore import stored_config

    return stored_config(model)


@dataclass(frozen=True, eq=False)
class OpenModel:
    """An open detector.

    Attributes:
        opened: The detector on its device, or an exported one.
        own_config: The configuration of its training; None for an exported one, which contains its own.
        original_sha256: Of the weights, before they were optimized; empty if they are as they were stored.
        threads: Threads of an exported file's runtime; 0 for the runtime's default.
        process: The one that opened it.
    """

    path: Path
    opened: Detector | ExportedDetector
    step: int
    own_config: TrainEvalPipelineConfig | None = None
    original_sha256: str = ""
    threads: int = 0
    process: int = field(default_factory=os.getpid)

    @property
    def is_exported(self) -> bool:
        """Whether it is an exported file, which can be neither trained nor exported again."""
        return isinstance(self.opened, ExportedDetector)

    @property
    def detector(self) -> Detector:
        """The detector as a torch.nn.Module; an exported file has none, which is an ExportError."""
        if isinstance(self.opened, ExportedDetector):
            raise ExportError(f"{shown(self.path)} is exported: it contains no PyTorch module; load the run instead")
        self._refuse_in_fork()
        return self.opened

    def _refuse_in_fork(self) -> None:
        if isinstance(self.opened, ExportedDetector):
            count = self.threads or runtime_threads()
        else:
            import torch

            on_gpu = next(self.opened.parameters()).is_cuda  # CUDA does not survive a fork at all
            count = 0 if on_gpu else torch.get_num_threads()
        refuse_in_fork(self.process, count, f"{shown(self.path)}: this model was loaded")

    @property
    def categories(self) -> Categories | None:
        """The classes; None if they are unknown."""
        return self.opened.categories

    @property
    def image_channels(self) -> int:
        """How many channels the pictures have that it takes: 3, or more that records store beside colors."""
        if isinstance(self.opened, ExportedDetector):
            return self.opened.metadata.image_channels
        return self.opened.image_channels

    @property
    def white_level(self) -> float:
        """The value that is white in pictures that are not of 8 bits, as in the data of the training; 0 if unstated."""
        return (
            self.opened.metadata.white_level if isinstance(self.opened, ExportedDetector) else self.opened.white_level
        )

    @property
    def config(self) -> TrainEvalPipelineConfig:
        """The configuration that it was trained with; a ConfigError if it is unknown."""
        if isinstance(self.opened, ExportedDetector):
            return parse_message(self.opened.metadata.config, TrainEvalPipelineConfig, file=str(self.path))
        if self.own_config is None:
            raise ConfigError(f"{shown(self.path)}: its configuration is unknown; pass it: load(…, config=…)")
        return self.own_config

    def weights_sha256(self) -> str:
        """Return the SHA-256 of the weights as stored; an export has that of the detector it was made from.

        It is computed once, which takes a second for a gigabyte: ask before the weights are changed.
        """
        return self.original_sha256 or self._sha256

    @cached_property
    def _sha256(self) -> str:
        if isinstance(self.opened, ExportedDetector):
            return self.opened.metadata.weights_sha256
        from boxwright.weights.export_weights import weights_sha256

        return weights_sha256(self.opened)

    def optimized(self, precision: str, *, compile: bool) -> OpenModel:
        """Return the same model, optimized on its device for inference; the detector itself is changed.

        Args:
            precision: float32, bfloat16, or fastest, by measuring both; exported files only have their own.
            compile: Whether the network is compiled at its first use; exported files cannot be.
        """
        if isinstance(self.opened, ExportedDetector):
            require_adjustable(self.path, precision, compile=compile)
            return self

        from boxwright.weights.optimized import optimized

        # Before batch normalization is folded into the convolutions.
        digest = self.weights_sha256()
        return replace(self, opened=optimized(self.opened, precision, compile=compile), original_sha256=digest)

    def use_cuda_graphs(self, multi_scale: str, *, compile: bool) -> None:
        """Let an optimized detector capture CUDA graphs from its first batch on.

        Args:
            multi_scale: The sizes at which it detects; empty for one.
            compile: Whether it is compiled.

        Raises:
            ConfigError: Where there can be no graphs.
        """
        for wrong, why in (
            (self.is_exported, "an exported file has a runtime of its own; name the run"),
            (compile, "--compile is another way to the same end: choose one"),
            (bool(multi_scale), "--multi_scale gives inputs of several sizes"),
        ):
            if wrong:
                raise ConfigError(f"--cuda_graphs: {why}")
        if next(self.detector.parameters()).device.type != "cuda":
            raise ConfigError("--cuda_graphs: there is no GPU to detect on; leave it out, or see --device")
        self.detector.use_cuda_graphs()

    def detect_function(self, multi_scale: str = "") -> DetectFunction:
        """Return a function that detects objects in pictures.

        Args:
            multi_scale: A key of `MULTI_SCALE`, for detection at several sizes; empty for one.

        Raises:
            ExportError: For several sizes with an exported file.
            BoxwrightError: In a fork of the process that opened the model, where it would never return.
        """
        self._refuse_in_fork()
        if isinstance(self.opened, ExportedDetector):
            if multi_scale:
                raise ExportError(f"{shown(self.path)} is exported: its scales are fixed; load the run instead")
            return self.opened.detect
        from boxwright.nn.multi_scale import at_scales

        detector = at_scales(self.opened, multi_scale)
        return lambda images: [detections.arrays() for detections in detector.detect(list(images))]


def open_model(
    path: str | Path,
    *,
    device: AnyDevice = "auto",
    threads: int = 0,
    config: TrainEvalPipelineConfig | None = None,
    categories: Categories | None = None,
    allow_edited: bool = False,
) -> OpenModel:
    """Open a run's folder (its newest checkpoint), a checkpoint, an archive of the model zoo, or an exported file.

    Args:
        path: Such a path, "demo", the name of published weights, hf://USER/NAME, or an address at s3:// or gs://.
        device: cpu, cuda, a GPU as 1, cuda:1 or torch.device, or auto for a GPU if available; exported files run on
            the CPU for auto, or on a device of their runtime (`runtime/devices.py`).
        threads: How many an exported file's runtime uses; 0 for its default. PyTorch's are the process's.
        config: The configuration of the model, instead of the checkpoint's own.
        categories: The classes, instead of the checkpoint's own.
        allow_edited: Whether to open an exported file that was changed after it was written.

    Raises:
        BoxwrightError: If there is no detector, it is damaged, or the options do not apply to it.
    """
    source, path = path, local_path(path)
    if not exists(path):
        raise unknown(source)
    if is_export(path) and is_file(path):
        if config is not None or categories is not None:
            raise fixed(path)
        exported = open_export(path, threads, device_name(device), allow_edited=allow_edited)
        return OpenModel(path, exported, exported.metadata.step, threads=threads)
    from boxwright.base.device import usable_device
    from boxwright.weights.restore import restore_detector

    detector, own, step = restore_detector(path, config=config, categories=categories)
    return OpenModel(path, detector.to(usable_device(device)), step, own)


def fixed(path: Path) -> ExportError:
    """Return the error for a configuration or classes that are given for an exported file."""
    return ExportError(
        f"{shown(path)} is exported: its configuration and classes are fixed; remove these options, or export it again"
    )


def require_adjustable(path: Path, precision: str, *, compile: bool) -> None:
    """Raise an ExportError if another precision, or compilation, is requested for an exported file."""
    if is_export(path) and (precision != "float32" or compile):
        raise ExportError(f"{shown(path)} is exported: its precision is fixed, and it is compiled; export it again")
