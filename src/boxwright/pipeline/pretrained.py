"""`pretrained` of the feature extractors."""

from __future__ import annotations

from typing import Any

from boxwright.config.support import refuse_contradictions
from boxwright.pipeline import messages as m


def wants_pretrained(model: m.DetectionModel) -> bool:
    """Return whether the backbone's weights are fetched for a run without a checkpoint."""
    family = getattr(model, model.which("model") or "", None)
    extractor: Any = getattr(family, "feature_extractor", None)
    if not getattr(extractor, "pretrained", False):
        return False
    refuse_contradictions(extractor)
    return True
