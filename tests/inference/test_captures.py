"""Where and when images were captured: TF's encodings of date and box, and its groups."""

from __future__ import annotations

from datetime import datetime
from typing import Any

import numpy as np
import pytest

from boxwright.base.errors import DataError
from boxwright.inference.context_memory import (
    HORIZONS,
    Capture,
    box_embedding,
    memory_banks,
    read_capture,
    time_embedding,
)
from boxwright.inference.settings import ContextSettings
from tests.conftest import assert_close

FEATURES: dict[str, Any] = {
    "image/date_captured": [b"2015-07-30 18:45:59"],
    "image/location": [b"C09"],
    "image/seq_id": [b"S1"],
    "image/seq_frame_num": [3],
    "image/source_id": [b"a"],
}


def capture(name: str, time: str, sequence: str = "C", frame: int = 0) -> Capture:
    return Capture(name, sequence, datetime.fromisoformat(time), frame)


def test_a_records_keys() -> None:
    found = read_capture(FEATURES, "image/seq_id", "r")
    assert found == Capture("a", "S1", datetime(2015, 7, 30, 18, 45, 59), 3)
    assert read_capture({**FEATURES, "image/date_captured": []}, "image/location", "r") is None
    assert read_capture({**FEATURES, "image/location": []}, "image/location", "r") is None
    with pytest.raises(DataError, match=r"^r: image/date_captured: expected a date such as .*; found '30.7.2015'$"):
        read_capture({**FEATURES, "image/date_captured": [b"30.7.2015"]}, "image/location", "r")


def test_embeddings_are_shares() -> None:
    """Year of 1990 to 2030, month and day from 0, hour and minute; center, width and height."""
    assert_close(time_embedding(datetime(2015, 7, 30, 18, 45, 59)), np.array([25 / 40, 6 / 12, 29 / 31, 0.75, 0.75]))
    found = box_embedding(np.array([20, 10, 60, 40], np.float32), (50, 80))
    assert_close(found, np.array([40 / 80, 25 / 50, 40 / 80, 30 / 50]))


def test_groups_are_of_one_camera_and_span() -> None:
    captures = [
        capture("0", "2015-07-06T10:00:00"),
        capture("1", "2015-07-07T09:00:00"),
        None,
        capture("3", "2015-07-01T10:00:00"),
        capture("4", "2015-07-06T10:30:00", "D"),
        capture("5", "2016-07-06T10:00:01"),
    ]

    def banks(horizon: str) -> list[list[int]]:
        return memory_banks(captures, "image/location", horizon, 10)

    assert banks("all") == [[3, 0, 1, 5], [4]]
    assert banks("year") == banks("month") == [[3, 0, 1], [5], [4]]
    assert banks("week") == [[3, 0], [1], [5], [4]], "days 1 to 6, and from 7"
    assert banks("day") == banks("hour") == banks("minute") == [[3], [0], [1], [5], [4]]
    assert tuple(HORIZONS) == ("all", "year", "month", "week", "day", "hour", "minute")
    for horizon in HORIZONS:
        assert ContextSettings(time_horizon=horizon).time_horizon == horizon


def test_sequences_are_ordered_by_frame_and_divided_evenly() -> None:
    captures = [capture(str(n), "2015-07-06T10:00:00", frame=9 - n) for n in range(7)]
    assert memory_banks(captures, "image/seq_id", "all", 7) == [[6, 5, 4, 3, 2, 1, 0]]
    assert memory_banks(captures, "image/seq_id", "all", 3) == [[6, 5, 4], [3, 2], [1, 0]]
