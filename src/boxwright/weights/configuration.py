"""The configuration that a model is evaluated with: a given one, the one beside its checkpoint, or its own."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from boxwright.base.files import is_file
from boxwright.config.load import parse_message
from boxwright.pipeline.load import load_config
from boxwright.pipeline.messages import TrainEvalPipelineConfig
from boxwright.pipeline.overrides import with_overrides
from boxwright.runtime.formats import EXPORTS
from boxwright.runtime.metadata_reader import read_metadata


@dataclass(frozen=True, eq=False)
class Configuration:
    """A configuration with its overrides, and its file; None if the model contains it."""

    message: TrainEvalPipelineConfig
    path: Path | None


def run_folder(path: Path) -> Path:
    """Return the folder of a run, given the folder or a checkpoint in it."""
    return path if path.is_dir() else path.parent


def configuration_of(
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
    if given is None and model.suffix not in EXPORTS:
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
    if model.suffix in EXPORTS:
        metadata = read_metadata(model, allow_edited=allow_edited)
        return parse_message(metadata.config, TrainEvalPipelineConfig, file=str(model))
    from boxwright.weights.restore import stored_config

    return stored_config(model)
