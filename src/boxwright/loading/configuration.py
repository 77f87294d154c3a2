"""Which configuration a model is evaluated with: a given one, that beside its checkpoint, or the one it carries."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from boxwright.base.files import is_file
from boxwright.config.load import load_config, parse_message
from boxwright.config.messages import TrainEvalPipelineConfig
from boxwright.config.overrides import apply_override
from boxwright.runtime.formats import EXPORTS
from boxwright.runtime.metadata_reader import read_metadata


@dataclass(frozen=True, eq=False)
class Configuration:
    """A configuration, and where it came from.

    Attributes:
        message: The configuration, with its overrides.
        path: The file; None where the model carries it.
    """

    message: TrainEvalPipelineConfig
    path: Path | None


def run_folder(path: Path) -> Path:
    """Return the folder of a run, of whose folder or checkpoint a path is."""
    return path if path.is_dir() else path.parent


def configuration_of(
    model: Path, given: str | Path | None = None, overrides: Sequence[str] = (), *, allow_edited: bool = False
) -> Configuration:
    """Return the configuration of a run, a checkpoint or an exported file; of the latter without importing PyTorch.

    Args:
        model: Where it is.
        given: A configuration that is taken instead.
        overrides: Changes.
        allow_edited: Whether an exported file is read that is not as it was written.

    Returns:
        The given one; else `pipeline.config` beside a checkpoint; else what the model carries.

    Raises:
        BoxwrightError: Where there is none, or it cannot be read.
    """
    if given is None and model.suffix not in EXPORTS:
        given = _beside(model)
    if given is not None:
        return Configuration(load_config(given, overrides), Path(given))
    config = _carried(model, allow_edited=allow_edited)
    for override in overrides:
        apply_override(config, override)
    return Configuration(config, None)


def _beside(model: Path) -> Path | None:
    from boxwright.checkpoints.zoo_archive import is_archive

    beside = run_folder(model) / "pipeline.config"
    return beside if is_file(beside) and not is_archive(model) else None


def _carried(model: Path, *, allow_edited: bool) -> TrainEvalPipelineConfig:
    if model.suffix in EXPORTS:
        metadata = read_metadata(model, allow_edited=allow_edited)
        return parse_message(metadata.config, TrainEvalPipelineConfig, file=str(model))
    from boxwright.checkpoints.restore import stored_config

    return stored_config(model)
