"""Tracking the objects of a video, so that each keeps its number; by ByteTrack from the library Trackers."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np

from boxwright.base.errors import DataError
from boxwright.types import FoundObjects
from boxwright.types.found import chosen

# The track of an object seen for the first time, which may not persist.
NO_TRACK = -1
# ByteTrack's lower threshold, from which a box may continue a track.
_UNSURE = 0.1
_LOST_S = 1.0


def least_score(min_score: float) -> float:
    """Return the least score that tracking uses: low-scoring boxes may continue a track."""
    return min(min_score, _UNSURE)


class Tracker:
    """Tracks objects across the pictures of one video.

    ByteTrack (Zhang et al., 2022): a Kalman filter predicts each object's box; high-scoring detections are assigned
    first, then low-scoring ones, by overlap. Classes are not compared. An object that is not seen for a second loses
    its number.
    """

    def __init__(self, min_score: float) -> None:
        """Create a tracker; `min_score` is needed to start a track. DataError if the library is not installed."""
        try:
            from trackers import ByteTrackTracker
        except ImportError:
            raise DataError("--track needs the library Trackers: pip install 'boxwright[track]'") from None
        self._min_score = min_score
        self._tracker = ByteTrackTracker(
            # In frames of the library's nominal rate, 30 per second.
            lost_track_buffer=round(30 * _LOST_S),
            track_activation_threshold=min_score,
            high_conf_det_threshold=min_score,
            minimum_consecutive_frames=1,
        )

    def update(self, found: FoundObjects, seconds: float) -> FoundObjects:
        """Return the tracked objects of the next picture, best first, with `tracks`.

        Args:
            found: The detections, down to `least_score`.

        Returns:
            The objects on a track or with enough score to start one; tracks are numbered from 0, `NO_TRACK` for new
            objects.
        """
        numbered: Any = self._tracker.update(_as_supervision(found), timestamp=seconds)
        if not len(numbered):
            return replace(found.first(0), tracks=np.zeros(0, np.int64))
        rows, tracks = numbered.data["row"], numbered.tracker_id
        # The library has its own order; rows are best first.
        order = np.argsort(rows, kind="stable")
        rows, tracks = rows[order], tracks[order].astype(np.int64)
        kept = (tracks != NO_TRACK) | (found.scores[rows] >= self._min_score)
        return replace(chosen(found, rows[kept]), tracks=tracks[kept])


def _as_supervision(found: FoundObjects) -> Any:
    from supervision import Detections

    rows: dict[str, Any] = {"row": np.arange(len(found))}
    return Detections(xyxy=found.boxes.astype(np.float64), confidence=found.scores.astype(np.float64), data=rows)
