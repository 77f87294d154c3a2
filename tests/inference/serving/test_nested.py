from __future__ import annotations

import tracemalloc
from typing import Any

import numpy as np
import pytest

from boxwright.inference.serving.nested import bytes_of, flat_numbers, nested_shape, picture_of_list
from boxwright.inference.serving.requests import BadRequest

GENERATOR = np.random.default_rng(0)


@pytest.mark.parametrize("channels", [1, 3, 4])
@pytest.mark.parametrize("kind", ["int", "float", "mixed"])
def test_pictures_of_lists(channels: int, kind: str) -> None:
    array = GENERATOR.integers(0, 256, (5, 7, channels), np.uint8)
    values = array.astype(float).tolist() if kind == "float" else array.tolist()
    if kind == "mixed":
        values[2][3][0] = float(values[2][3][0])
    found = picture_of_list(values, "it")
    wanted = np.repeat(array, 3, axis=2) if channels == 1 else array[..., :3]
    assert found.dtype == np.uint8
    assert found.flags.c_contiguous
    np.testing.assert_array_equal(found, wanted)


@pytest.mark.parametrize(
    ("values", "reason"),
    [
        ([[[True, 1, 2]]], "expected numbers"),
        ([[[None, 1, 2]]], "expected numbers"),
        ([[["1", 1, 2]]], "expected numbers"),
        ([[[{}, 1, 2]]], "expected numbers"),
        ([[[1, 2, 3], 4]], "different lengths"),
        ([[[1, 2, 3]], 4], "different lengths"),
        ([[[1, 2, 3]], [[1, 2]]], "different lengths"),
        ([[[[1]]]], "at most 3 levels"),
        ([[[float("nan"), 1, 2]]], "0 to 255"),
        ([[[1e300, 1, 2]]], "0 to 255"),
        ([[[2**62, 1, 2]]], "0 to 255"),
        ([[[0.5, 1, 2]]], "integers"),
        ([[[1, 2]]], r"expected \[height, width, 3\]"),
        ([[[]]], r"expected \[height, width, 3\]"),
        ([], r"expected \[height, width, 3\]"),
        ([[], []], r"expected \[height, width, 3\]"),
        (3, r"expected \[height, width, 3\]"),
        ("text", "expected numbers"),
    ],
)
def test_what_is_no_picture(values: Any, reason: str) -> None:
    with pytest.raises(BadRequest, match=reason) as refused:
        picture_of_list(values, "it")
    assert refused.value.status == 400


@pytest.mark.parametrize("values", [["a" * 10_000, *[""] * 20_000], [[[0] * 10_000], *[[]] * 20_000]])
def test_memory_is_in_proportion(values: Any) -> None:
    """An array of these would have 10,000 times as many bytes as they."""
    tracemalloc.start()
    with pytest.raises(BadRequest):
        flat_numbers(values, 4, "it")
    with pytest.raises(BadRequest):
        picture_of_list([values], "it")
    _, most = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert most < 2_000_000


def test_an_outline_does_not_go_deeper_than_a_picture() -> None:
    deep: Any = 1
    for _ in range(1000):
        deep = [deep]
    assert len(nested_shape(deep)) <= 5
    assert nested_shape([[[1, 2, 3]], 7]) == (2, 1, 3)


def test_nothing_is_no_number() -> None:
    assert flat_numbers([[1, 2], [3, 4]], 4, "it") == ((2, 2), [1, 2, 3, 4])
    assert bytes_of([0, 255], "it").tolist() == [0, 255]
