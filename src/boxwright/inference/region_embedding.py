"""The embedding of an image's best box by a two-stage detector, for context features (Context R-CNN)."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from boxwright.base.errors import CheckpointError
from boxwright.data.captures import box_embedding
from boxwright.runtime.formats import EXPORTS
from boxwright.weights.open_model import fixed, open_model

# From images to each best box's embedding, float32 [C + 4], and score; None if nothing was detected.
Embed = Callable[[list[NDArray[np.uint8]]], list[tuple[NDArray[np.float32], float] | None]]

_SUPPRESSION = "model.faster_rcnn.second_stage_post_processing.batch_non_max_suppression"


def open_embedder(checkpoint: Path, *, device: str = "auto") -> Embed:
    """Return a function that embeds the best box of each image: its pooled features and its place.

    Args:
        checkpoint: A run's folder or a checkpoint, of a two-stage detector without context.
        device: As for `open_model`.

    Raises:
        BoxwrightError: If there is no such detector.
    """
    if checkpoint.suffix in EXPORTS:
        raise fixed(checkpoint)
    from boxwright.pipeline.overrides import with_overrides
    from boxwright.weights.restore import stored_config

    config = stored_config(checkpoint)
    two_stage = config.model.faster_rcnn if config.model is not None else None
    if two_stage is None or two_stage.number_of_stages < 2 or two_stage.context_config is not None:
        raise CheckpointError(
            f"{checkpoint}: context is computed by a two-stage detector of single images (model.faster_rcnn without "
            "context_config)"
        )
    # Features of one box per image: the second stage runs on each final box once more.
    changes = [
        "model.faster_rcnn.output_final_box_features=true",
        f"{_SUPPRESSION}.max_total_detections=1",
        f"{_SUPPRESSION}.max_detections_per_class=1",
    ]
    config = with_overrides(config, changes)
    detector = open_model(checkpoint, device=device, config=config).detector.optimize()

    def embed(images: list[NDArray[np.uint8]]) -> list[tuple[NDArray[np.float32], float] | None]:
        found: list[tuple[NDArray[np.float32], float] | None] = []
        for image, one in zip(images, detector.detect(images), strict=True):
            if not len(one.scores) or one.features is None:
                found.append(None)
                continue
            pooled = one.features[0].float().mean((1, 2)).cpu().numpy()
            place = box_embedding(one.boxes[0].numpy(), (image.shape[0], image.shape[1]))
            found.append((np.concatenate([pooled, place]), float(one.scores[0])))
        return found

    return embed
