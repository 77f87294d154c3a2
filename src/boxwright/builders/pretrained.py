"""`pretrained` of the feature extractors."""

from __future__ import annotations

from typing import Any

from boxwright.config import messages as m


def wants_pretrained(model: m.DetectionModel) -> bool:
    """Return whether the backbone's weights are fetched for a run without a checkpoint."""
    family = getattr(model, model.which("model") or "", None)
    extractor: Any = getattr(family, "feature_extractor", None)
    return bool(getattr(extractor, "pretrained", False))
