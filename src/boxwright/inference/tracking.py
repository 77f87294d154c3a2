"""Tracking the objects of a video, so that each keeps its number; by ByteTrack from the library Trackers."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np

from boxwright.base.errors import DataError
from boxwright.inference.reidentification import LOST_S, NO_TRACK, Reidentification
from boxwright.types import FoundObjects
from boxwright.types.found import chosen

# ByteTrack's lower threshold, from which a box may continue a track.
_UNSURE = 0.1


def least_score(min_score: float) -> float:
    """Return the least score that tracking uses: low-scoring boxes may continue a track."""
    return min(min_score, _UNSURE)


class Tracker:
    """Tracks objects across the pictures of one video.

    ByteTrack (Zhang et al., 2022): a Kalman filter predicts each object's box; high-scoring detections are assigned
    first, then low-scoring ones, by overlap. Classes are not compared. An object that is not seen for a second loses
    its number, unless it is recognized by its embedding.
    """

    def __init__(self, min_score: float, reidentify: float = 0.0) -> None:
        """Create a tracker.

        Args:
            min_score: What starts a track.
            reidentify: The least cosine of embeddings for an object that comes back to get its old number; 0 for never.

        Raises:
            DataError: If the library is not installed.
        """
        try:
            from trackers import ByteTrackTracker
        except ImportError:
            raise DataError("--track needs the library Trackers: pip install 'boxwright[track]'") from None
        self._min_score = min_score
        self._memory = Reidentification(reidentify) if reidentify else None
        self._tracker = ByteTrackTracker(
            # In frames of the library's nominal rate, 30 per second.
            lost_track_buffer=round(30 * LOST_S),
            track_activation_threshold=min_score,
            high_conf_det_threshold=min_score,
            minimum_consecutive_frames=1,
        )

    def update(self, detections: FoundObjects, seconds: float) -> FoundObjects:
        """Return the tracked objects of the next picture, best first, with `tracks`.

        Args:
            detections: All of the picture, down to `least_score`.

        Returns:
            The objects on a track or with enough score to start one; tracks are numbered from 0, `NO_TRACK` for new
            objects.

        Raises:
            DataError: If objects are to be recognized, and the detector predicts no embeddings.
        """
        if self._memory is not None and detections.embeddings is None:
            raise DataError("--reidentify needs embeddings, which a CenterNet with track_estimation_task predicts")
        numbered: Any = self._tracker.update(_as_supervision(detections), timestamp=seconds)
        if not len(numbered):
            return replace(detections.first(0), tracks=np.zeros(0, np.int64))
        rows, tracks = numbered.data["row"], numbered.tracker_id
        # The library has its own order; rows are best first.
        order = np.argsort(rows, kind="stable")
        rows, tracks = rows[order], tracks[order].astype(np.int64)
        kept = (tracks != NO_TRACK) | (detections.scores[rows] >= self._min_score)
        tracked = replace(chosen(detections, rows[kept]), tracks=tracks[kept])
        return tracked if self._memory is None else self._memory.update(tracked, seconds)


def _as_supervision(detections: FoundObjects) -> Any:
    from supervision import Detections

    rows: dict[str, Any] = {"row": np.arange(len(detections))}
    return Detections(
        xyxy=detections.boxes.astype(np.float64), confidence=detections.scores.astype(np.float64), data=rows
    )
