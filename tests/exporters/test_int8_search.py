from __future__ import annotations

import pytest

from boxwright.exporters.int8 import smallest


@pytest.mark.parametrize("most", [1, 2, 7, 50])
def test_the_smallest_good_count(most: int) -> None:
    for least in range(1, most + 1):
        tried: list[int] = []

        def good(count: int, least: int = least, tried: list[int] = tried) -> bool:
            tried.append(count)
            return count >= least

        assert smallest(good, most) == least
        assert len(tried) == len(set(tried)) <= 2 * most.bit_length() + 1
        assert max(tried) <= most


def test_none_is_good() -> None:
    tried: list[int] = []
    assert smallest(lambda count: bool(tried.append(count)), 10) is None
    assert tried == [1, 2, 4, 8, 10]
