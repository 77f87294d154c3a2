"""Recognizing an object of a video that comes back, by its embedding.

Dimensions: E embedding.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from boxwright.types import FoundObjects

# The track of an object seen for the first time, which may not persist.
NO_TRACK = -1
# After so many seconds the tracker forgets an object that it does not see, and this memory may claim it; after so many
# the memory forgets it too, so that a stream without end takes no memory without end.
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

    def update(self, detections: FoundObjects, seconds: float) -> FoundObjects:
        """Return the objects of the next picture, those that come back with their old number.

        A new track gets the number of the most similar object of its class that is lost, if the cosine of its embedding
        and the mean of the other's is large enough.

        Args:
            detections: With `tracks` and `embeddings`.
        """
        if detections.tracks is None or detections.embeddings is None:
            raise ValueError("expected tracks and embeddings")
        tracks, rows = detections.tracks.tolist(), detections.embeddings.astype(np.float64)
        self._known = {number: known for number, known in self._known.items() if seconds - known.seen <= REMEMBERED_S}
        here = {self._numbers[track] for track in tracks if track in self._numbers}
        lost = [number for number, known in self._known.items() if number not in here and seconds - known.seen > LOST_S]
        new = [row for row, track in enumerate(tracks) if track != NO_TRACK and track not in self._numbers]
        pairs = sorted(
            ((self._similarity(detections, row, number), row, number) for row in new for number in lost), reverse=True
        )
        for similarity, row, number in pairs:
            taken = tracks[row] in self._numbers or number in here
            if similarity >= self._least and not taken:
                self._numbers[tracks[row]] = number
                here.add(number)
        numbers = [track if track == NO_TRACK else self._numbers.setdefault(track, track) for track in tracks]
        for number, label, embedding in zip(numbers, detections.labels.tolist(), rows, strict=True):
            if number != NO_TRACK:
                before = self._known.get(number)
                total = embedding if before is None else before.total + embedding
                self._known[number] = _Identity(label, total, seconds)
        return replace(detections, tracks=np.array(numbers, np.int64))

    def _similarity(self, detections: FoundObjects, row: int, number: int) -> float:
        """Return the cosine of an object's embedding and a lost one's mean; -1 for another class."""
        known = self._known[number]
        if detections.embeddings is None or known.label != detections.labels[row]:
            return -1.0
        embedding = detections.embeddings[row].astype(np.float64)
        norms = float(np.linalg.norm(embedding) * np.linalg.norm(known.total))
        return float(embedding @ known.total) / max(norms, 1e-12)
