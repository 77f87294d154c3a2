"""A model's pedigree: the published weights that its own descend from, with their licenses and data.

It is a field of the configuration, and so goes wherever that goes: into checkpoints, exports and published models.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from torch import nn

from boxwright.base.errors import ExportError
from boxwright.base.files import is_file
from boxwright.nn.backbones.timm_backbone import TimmBackbone
from boxwright.pipeline import messages as m
from boxwright.runtime.formats import is_export
from boxwright.weights.digest_records import compute_record
from boxwright.weights.export_weights import is_weights_folder
from boxwright.weights.fetch import identify_published
from boxwright.weights.restore import stored_config
from boxwright.weights.sources import is_state_dict, is_tensorflow
from boxwright.weights.zoo_archive import is_archive

_UNKNOWN = "not known"


def origins(path: Path) -> list[m.WeightsOrigin]:
    """Return the pedigree of what starts from a source of weights.

    Args:
        path: As for `load_weights`: a published file, another's, or one of our runs or checkpoints, whose own pedigree
            is handed on.

    Raises:
        CheckpointError: If it cannot be read.
    """
    weights, digest = identify_published(path)
    if weights is not None:
        return [weights.origin(digest)]
    if path.suffix.lower() == ".safetensors" or is_state_dict(path) or is_archive(path):
        digest = digest or compute_record(path.parent, path).sha256
        return [m.WeightsOrigin(file=path.name, sha256=digest)]
    if is_tensorflow(path) or (is_weights_folder(path) and not is_file(path / "pipeline.config")):
        return [m.WeightsOrigin(file=path.name)]
    return list(stored_config(path).pedigree) if not is_export(path) else []


def timm_origins(network: nn.Module) -> list[m.WeightsOrigin]:
    """Return the pedigree of a network whose backbones have timm's weights."""
    import timm

    names = [module.name for module in network.modules() if isinstance(module, TimmBackbone)]
    configurations = [(name, timm.get_pretrained_cfg(name)) for name in names]
    return [
        m.WeightsOrigin(
            name=f"timm/{name}" + (f".{known.tag}" if known is not None and known.tag else ""),
            publisher="timm",
            page="https://huggingface.co/timm",
            license=(known.license if known is not None else None) or "",
        )
        for name, known in configurations
    ]


def describe_origin(origin: m.WeightsOrigin) -> str:
    """Return a line about an entry of a pedigree."""
    data = f", trained on {', then '.join(origin.data)}" if origin.data else ""
    who = f" of {origin.publisher}" if origin.publisher else ""
    digest = f", SHA-256 {origin.sha256[:12]}…" if origin.sha256 else ""
    return f"{origin.name or origin.file}{who}{data}, license: {origin.license or _UNKNOWN}{digest}"


def require_licenses(config: m.TrainEvalPipelineConfig, allowed: Sequence[str]) -> None:
    """Raise an ExportError unless each license in a pedigree is among those allowed; without case."""
    accepted = {license.strip().lower() for license in allowed}
    for origin in config.pedigree:
        if origin.license.lower() not in accepted:
            raise ExportError(f"the license is not among {', '.join(allowed)}: {describe_origin(origin)}")
