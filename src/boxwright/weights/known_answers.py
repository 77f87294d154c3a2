"""Known answers of published weights: what their authors' code detects in an image made by a formula.

Weights that load can still be computed with wrongly: with another activation, other preprocessing or another order of
classes. A recording is a JSON file named by the weights' SHA-256, in `assets/known_answers`, or in the folder
`known_answers` beside a team's own table (`BOXWRIGHT_WEIGHTS_TABLE`):

    {"recorded_with": "transformers 5.24.0", "height": 640, "width": 640, "score_tolerance": 0.001,
     "box_tolerance": 0.5, "detections": [{"label": 0, "score": 0.91, "box": [12.0, 30.5, 200.0, 310.0]}, …]}

Labels count from 0, boxes are xyxy in pixels. `python -m tests.golden.known_answers` makes one with transformers.
"""

from __future__ import annotations

import json
import logging
from dataclasses import dataclass
from importlib.resources import files
from importlib.resources.abc import Traversable
from typing import Any

import numpy as np
from numpy.typing import NDArray

from boxwright.base.errors import CheckpointError, first_line
from boxwright.nn.detector import Detector
from boxwright.types.detections import Array, Detections
from boxwright.weights.published import own_table

_LOG = logging.getLogger("boxwright")
_FOLDER = "known_answers"


@dataclass(frozen=True, eq=False)
class KnownAnswers:
    """What another implementation detected with the same weights in `made_image(height, width)`.

    Attributes:
        recorded_with: That implementation, and its version.
        score_tolerance: By how much a score may differ.
        box_tolerance: By how many pixels a side of a box may differ.
        boxes: float32 [D, 4], xyxy in pixels.
        scores: float32 [D].
        labels: int64 [D], 0-based.
    """

    recorded_with: str
    height: int
    width: int
    score_tolerance: float
    box_tolerance: float
    boxes: NDArray[np.float32]
    scores: NDArray[np.float32]
    labels: NDArray[np.int64]


def made_image(height: int, width: int) -> NDArray[np.uint8]:
    """Return the image that answers are recorded for, uint8 [H, W, 3] in RGB.

    In integers, so that every implementation makes the same: at (y, x) red is 255 y // H, green 255 x // W and blue
    (x // 16 xor y // 16) · 40 mod 256. Nearer than H // 4 to the point (H // 3, W // 3) all three are 230. In the
    rectangle from (H // 2, W // 2) up to and without (7 H // 8, 3 W // 4) they are 20, 60 and 150.
    """
    y, x = np.indices((height, width))
    image = np.stack([255 * y // height, 255 * x // width, ((x // 16) ^ (y // 16)) * 40 % 256], axis=-1)
    image[(y - height // 3) ** 2 + (x - width // 3) ** 2 < (height // 4) ** 2] = 230
    image[height // 2 : 7 * height // 8, width // 2 : 3 * width // 4] = (20, 60, 150)
    return image.astype(np.uint8)


def check_known_answers(detector: Detector, name: str, sha256: str) -> None:
    """Compare what published weights detect with what is recorded of them, and log that it is the same.

    Nothing happens where nothing is recorded. It takes one image.

    Args:
        detector: Of these weights, with the configuration they are published for.
        name: Of the weights, for the message.
        sha256: Of their file.

    Raises:
        CheckpointError: If a recorded detection is not among those of the detector, within the tolerances; or the
            recording cannot be read.
    """
    answers = read_known_answers(sha256)
    if answers is None:
        return
    detected = detector.detect([made_image(answers.height, answers.width)])[0].arrays()
    problem = _difference(answers, detected)
    if problem:
        raise CheckpointError(
            f"{name}: does not answer as published (recorded with {answers.recorded_with}): {problem}"
        )
    _LOG.info("%s answers as published (%d detections, %s)", name, len(answers.scores), answers.recorded_with)


def read_known_answers(sha256: str) -> KnownAnswers | None:
    """Return what is recorded of weights by their file's SHA-256; None if nothing is.

    Raises:
        CheckpointError: If the recording cannot be read.
    """
    folders: list[Traversable] = [files("boxwright.assets").joinpath(_FOLDER)]
    if (table := own_table()) is not None:
        folders.insert(0, table.parent / _FOLDER)
    recording = next((file for folder in folders if (file := folder.joinpath(f"{sha256}.json")).is_file()), None)
    if recording is None:
        return None
    try:
        return _parse(json.loads(recording.read_text(encoding="utf-8")))
    except (OSError, ValueError, KeyError, TypeError, RecursionError) as error:
        raise CheckpointError(f"{recording}: not a recording of known answers: {first_line(error)}") from None


def _parse(content: dict[str, Any]) -> KnownAnswers:
    rows = content["detections"]
    if not rows:
        raise ValueError("it has no detections")
    if not (content["score_tolerance"] > 0 and content["box_tolerance"] > 0):
        raise ValueError("its tolerances have to be above 0")
    return KnownAnswers(
        recorded_with=str(content["recorded_with"]),
        height=int(content["height"]),
        width=int(content["width"]),
        score_tolerance=float(content["score_tolerance"]),
        box_tolerance=float(content["box_tolerance"]),
        boxes=np.array([row["box"] for row in rows], np.float32).reshape(len(rows), 4),
        scores=np.array([row["score"] for row in rows], np.float32),
        labels=np.array([row["label"] for row in rows], np.int64),
    )


def _difference(answers: KnownAnswers, detected: Detections[Array]) -> str:
    """Return the first recorded detection that was not made, with the nearest of its class; empty if all were made.

    Detections are compared without their order, as equal scores may come in any.
    """
    for box, score, label in zip(answers.boxes, answers.scores, answers.labels, strict=True):
        same = detected.labels == label
        scores, boxes = (
            np.abs(detected.scores[same] - score),
            np.abs(detected.boxes[same] - box).max(axis=-1, initial=0),
        )
        if np.any((scores <= answers.score_tolerance) & (boxes <= answers.box_tolerance)):
            continue
        recorded = f"class {label} with score {score:.4f} at {np.round(box, 1).tolist()}"
        if not len(scores):
            return f"{recorded} was recorded, and nothing of that class is detected"
        nearest = np.argmin(scores / answers.score_tolerance + boxes / answers.box_tolerance)
        return (
            f"{recorded} was recorded; the nearest detection is off by {scores[nearest]:.4f} in its score (at most "
            f"{answers.score_tolerance:g}) and by {boxes[nearest]:.1f} pixels (at most {answers.box_tolerance:g})"
        )
    return ""
