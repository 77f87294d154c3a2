"""`pretrained` of the feature extractors: whether a backbone's weights are fetched."""

from __future__ import annotations

from typing import Any

from boxwright.config import messages as m


def wants_pretrained(model: m.DetectionModel) -> bool:
    """Return whether weights of the backbone are to be fetched where a run starts without others.

    Raises:
        ConfigError: Where nobody keeps such weights.
    """
    family = getattr(model, model.which("model") or "", None)
    extractor: Any = getattr(family, "feature_extractor", None)
    if not getattr(extractor, "pretrained", False):
        return False
    if not extractor.type.startswith("timm/"):
        raise extractor.refusal(
            "pretrained",
            f"nobody keeps weights of {extractor.type} to fetch; only of timm/NAME. "
            "Name a checkpoint by train_config.fine_tune_checkpoint",
        )
    return True
