"""Objects of a video that come back get their old number by their embedding; worked by hand."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from boxwright.base.errors import ConfigError, DataError
from boxwright.inference.settings import PredictionSettings
from boxwright.inference.tracking import NO_TRACK, Reidentification, Tracker
from boxwright.types import Array, Detections

A, B = (1.0, 0.0), (0.0, 1.0)


def picture(
    tracks: list[int], embeddings: list[tuple[float, float]], labels: list[int] | None = None
) -> Detections[Array]:
    count = len(tracks)
    return Detections(
        np.tile(np.array([[0, 0, 10, 20]], np.float32), (count, 1)),
        np.full(count, 0.9, np.float32),
        np.array(labels or [0] * count),
        (100, 100),
        tracks=np.array(tracks),
        embeddings=np.array(embeddings, np.float32).reshape(count, 2),
    )


def numbers(memory: Reidentification, found: Detections[Array], seconds: float) -> list[int]:
    tracks = memory.update(found, seconds).tracks
    assert tracks is not None
    return [int(number) for number in tracks]


def seen() -> Reidentification:
    """Return the memory of a picture with two individuals, 0 and 1, at 0 s."""
    memory = Reidentification(0.7)
    assert numbers(memory, picture([0, 1], [A, B]), 0.0) == [0, 1]
    return memory


def test_who_comes_back_has_the_old_number() -> None:
    """Cosines with A and B: 0.6 and 0.8; 0.8 and 0.6."""
    memory = seen()
    assert numbers(memory, picture([5, 6], [(0.6, 0.8), (0.8, 0.6)]), 3.0) == [1, 0]
    # And keeps it, although the tracker says 5 and 6.
    assert numbers(memory, picture([6, 5], [A, A]), 3.1) == [0, 1]


def test_the_most_similar_one_comes_first() -> None:
    memory = seen()
    assert numbers(memory, picture([5, 6], [(0.8, 0.6), (0.96, 0.28)]), 3.0) == [5, 0], "0.6 with B is too little"


@pytest.mark.parametrize(
    ("found", "seconds", "why"),
    [
        (picture([5], [(0.71, -0.71)]), 3.0, "a cosine of 0.707 is enough"),
        (picture([5], [(0.69, 0.73)], [1]), 3.0, "another class"),
        (picture([5], [A]), 0.9, "the tracker has not lost it yet"),
        (picture([5], [A]), 61.0, "forgotten"),
        (picture([5, 0], [A, B]), 3.0, "it is in the picture"),
        (picture([5], [(-0.7, -0.7)]), 3.0, "nobody like it"),
    ],
)
def test_who_has_a_number_of_its_own(found: Detections[Array], seconds: float, why: str) -> None:
    expected = 0 if "enough" in why else 5
    assert numbers(seen(), found, seconds)[0] == expected, why


def test_the_mean_of_what_was_seen_is_compared() -> None:
    """Of A three times and B once: (3, 1), whose cosine with (0.8, 0.6) is 3 / √10; and with B 0.316."""
    memory = Reidentification(0.94)
    for time, embedding in enumerate((A, A, A, B)):
        numbers(memory, picture([0], [embedding]), 0.1 * time)
    assert numbers(memory, picture([5, 6], [B, (0.8, 0.6)]), 3.0) == [5, 0]


def test_an_object_in_its_first_picture_has_none() -> None:
    memory = seen()
    assert numbers(memory, picture([NO_TRACK], [A]), 3.0) == [NO_TRACK]
    assert numbers(memory, picture([], []), 3.1) == []
    assert numbers(memory, picture([5], [A]), 3.2) == [0]


def test_a_tracker_that_recognizes_objects() -> None:
    """An object leaves on the left and comes back on the right, three seconds later."""

    def tracks(reidentify: float) -> list[int]:
        tracker, found = Tracker(0.5, reidentify), []
        for step in range(12):
            left = step < 6
            one = replace(picture([0], [A]), tracks=None)
            box = np.array([[0, 0, 10, 20]] if left else [[70, 50, 80, 70]], np.float32)
            result = tracker.update(replace(one, boxes=box), 0.1 * step + (0 if left else 3))
            assert result.tracks is not None
            found += result.tracks.tolist()
        return found

    first = tracks(0.0)
    assert len({number for number in first if number != NO_TRACK}) == 2
    assert {number for number in tracks(0.7) if number != NO_TRACK} == {first[1]}


def test_what_is_missing_is_named() -> None:
    bare = replace(picture([0], [A]), tracks=None, embeddings=None)
    with pytest.raises(DataError, match="--reidentify needs embeddings, which a CenterNet with track_estimation_task"):
        Tracker(0.5, 0.7).update(bare, 0.0)
    with pytest.raises(ConfigError, match="--reidentify: objects have numbers with --track alone"):
        PredictionSettings(reidentify=0.7)
