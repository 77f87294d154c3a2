"""What an evaluation's folder tells of its origin: model, data, settings, command and versions."""

from __future__ import annotations

import sys
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from boxwright.evaluation.settings import EvaluationSettings
from boxwright.runtime.formats import TORCH
from boxwright.runtime.optional import installed_versions
from boxwright.weights.open_model import OpenModel

# The settings that say which images were evaluated, and how objects were counted.
DATA_SETTINGS = ("eval_index", "class_agnostic", "sample_1_of_n_eval_examples", "eval_on_train_data")
_LIBRARIES = ("boxwright", "torch", "torchvision", "numpy", "pycocotools")


def about_evaluation(
    model: OpenModel, settings: EvaluationSettings, config: Path | None, runtime: str = TORCH
) -> dict[str, Any]:
    """Return the facts for `evaluation.json`; the digest is of the weights before they are optimized.

    Args:
        config: The configuration's file; None if the model contains it.
        runtime: What detected.
    """
    return {
        "model": str(model.path),
        "weights_sha256": model.weights_sha256(),
        "step": model.step,
        "runtime": runtime,
        "device": settings.device,
        "config": None if config is None else str(config),
        "settings": {name: getattr(settings, name) for name in DATA_SETTINGS},
        "created": datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%SZ"),
        "command": " ".join(["boxwright", *sys.argv[1:]]),
        "versions": installed_versions(*_LIBRARIES, *({runtime} - {TORCH})),
    }
