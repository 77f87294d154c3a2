from __future__ import annotations

import pytest

from boxwright.data.account import near_equal_names


@pytest.mark.parametrize(
    ("counts", "wanted"),
    [
        ({"red": 6, "Red": 6, "blue": 3}, [("Red", "red")]),
        ({"traffic light": 9, "traffic_light": 2, "TrafficLight": 1}, 3),
        ({"red ": 1, "red": 6}, [("red ", "red")]),
        # One letter more, less, or another, of names where one is rare: a fifth of the other's objects at most.
        ({"green": 5, "gren": 1}, [("gren", "green")]),
        ({"green": 4, "gren": 1}, []),
        ({"raccoon": 200, "raccon": 1, "racoon": 2}, [("raccon", "raccoon"), ("racoon", "raccoon")]),
        ({"person": 50, "persom": 3}, [("persom", "person")]),
        ({"person": 50, "persons": 3}, [("persons", "person")]),
        ({"person": 50, "eperson": 3}, [("eperson", "person")]),
        ({"person": 50, "presom": 3}, []),
        # Short names, numbers, and names that are equally frequent may all be meant.
        ({"cat": 50, "car": 1}, []),
        ({"cats": 50, "cat": 1}, [("cat", "cats")]),
        ({"type1": 50, "type2": 1}, []),
        ({"type": 50, "type2": 1}, []),
        ({"boat": 30, "goat": 30}, []),
        ({"a": 1}, []),
        ({}, []),
    ],
)
def test_near_equal_names(counts: dict[str, int], wanted: list[tuple[str, str]] | int) -> None:
    pairs = near_equal_names(counts)
    assert (len(pairs) if isinstance(wanted, int) else pairs) == wanted


def test_a_thousand_classes_take_no_time() -> None:
    assert near_equal_names({f"{number:05d} kind of thing": 1 for number in range(20_000)}) == []
