"""Tracking the objects of a video, so that each keeps its number; by ByteTrack from the library Trackers.

An object that comes back later is recognized by its embedding.

Dimensions: E embedding.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from boxwright.base.errors import DataError
from boxwright.types import Array, Detections

# The track of an object seen for the first time, which may not persist.
NO_TRACK = -1
# After LOST_S the tracker forgets an object that it does not see, and `Reidentification` may recognize it; after
# REMEMBERED_S that forgets it too, so that a stream without end takes no memory without end.
LOST_S, REMEMBERED_S = 1.0, 60.0


@dataclass
class _Identity:
    """An object that had a number.

    Attributes:
        total: float64 [E]; the sum of its embeddings, each of length 1.
        seen: When it was last seen, in seconds.
    """

    label: int
    total: NDArray[np.float64]
    seen: float


class Reidentification:
    """The memory of a video's objects."""

    def __init__(self, least_similarity: float) -> None:
        """Create an empty memory; `least_similarity` is a cosine."""
        self._least = least_similarity
        self._known: dict[int, _Identity] = {}
        self._numbers: dict[int, int] = {}

    def update(self, detections: Detections[Array], seconds: float) -> Detections[Array]:
        """Return the objects of the next picture, those that come back with their old number.

        A new track gets the number of the most similar object of its class that is lost, if the cosine of its embedding
        and the mean of the other's is large enough.

        Args:
            detections: With `tracks` and `embeddings`.
        """
        if detections.tracks is None or detections.embeddings is None:
            raise ValueError("expected tracks and embeddings")
        tracks, labels = detections.tracks.tolist(), detections.labels.tolist()
        rows = detections.embeddings.astype(np.float64)
        self._known = {number: known for number, known in self._known.items() if seconds - known.seen <= REMEMBERED_S}
        here = {self._numbers[track] for track in tracks if track in self._numbers}
        lost = [number for number, known in self._known.items() if number not in here and seconds - known.seen > LOST_S]
        new = [row for row, track in enumerate(tracks) if track != NO_TRACK and track not in self._numbers]
        pairs = sorted(
            ((self._similarity(rows[row], labels[row], number), row, number) for row in new for number in lost),
            reverse=True,
        )
        for similarity, row, number in pairs:
            taken = tracks[row] in self._numbers or number in here
            if similarity >= self._least and not taken:
                self._numbers[tracks[row]] = number
                here.add(number)
        numbers = [track if track == NO_TRACK else self._numbers.setdefault(track, track) for track in tracks]
        for number, label, embedding in zip(numbers, labels, rows, strict=True):
            if number != NO_TRACK:
                before = self._known.get(number)
                total = embedding if before is None else before.total + embedding
                self._known[number] = _Identity(label, total, seconds)
        return replace(detections, tracks=np.array(numbers, np.int64))

    def _similarity(self, embedding: NDArray[np.float64], label: int, number: int) -> float:
        """Return the cosine of an object's embedding and a lost one's mean; -1 for another class."""
        known = self._known[number]
        if known.label != label:
            return -1.0
        norms = float(np.linalg.norm(embedding) * np.linalg.norm(known.total))
        return float(embedding @ known.total) / max(norms, 1e-12)


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

    def update(self, detections: Detections[Array], seconds: float) -> Detections[Array]:
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
        tracked = replace(detections.select(rows[kept]), tracks=tracks[kept])
        return tracked if self._memory is None else self._memory.update(tracked, seconds)


def _as_supervision(detections: Detections[Array]) -> Any:
    from supervision import Detections

    rows: dict[str, Any] = {"row": np.arange(len(detections))}
    return Detections(
        xyxy=detections.boxes.astype(np.float64), confidence=detections.scores.astype(np.float64), data=rows
    )
