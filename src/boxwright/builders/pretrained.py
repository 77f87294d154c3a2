"""`pretrained` of the feature extractors: whether a backbone's weights are fetched."""

from __future__ import annotations

from typing import Any

from boxwright.config import messages as m


def wants_pretrained(model: m.DetectionModel) -> bool:
    """Return whether weights of the backbone are fetched where a run starts without others."""
    family = getattr(model, model.which("model") or "", None)
    extractor: Any = getattr(family, "feature_extractor", None)
    return bool(getattr(extractor, "pretrained", False))
