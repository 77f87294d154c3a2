"""A generator that returns what TensorFlow drew, and insists on being asked for it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

_ATTEMPTS = 100
_WINDOW = "sample_distorted_bounding_box"


class Replay:
    """Stands for `np.random.Generator`: recorded draws, in order, each asked for by its kind, range and shape.

    TF's sampler of windows is recorded by its result alone. It is asked for as `RandomCrop` draws one: the ratio,
    the height, and where the window lies along each side that it leaves room on.
    """

    def __init__(self, draws: Sequence[tuple[dict[str, Any], NDArray[Any]]], size: tuple[int, int]) -> None:
        """Remember the draws.

        Args:
            draws: Descriptions with values.
            size: (height, width) of the image that windows are drawn in.
        """
        self._draws, self._size = list(draws), size
        self._window: list[int] = []
        # How many more windows the sampler is to try, and whether the one that it draws is to be in vain.
        self._failing, self._in_vain = 0, False

    @property
    def left(self) -> list[str]:
        """What nobody asked for."""
        return [f"{drawn['op']} by {drawn['by']}" for drawn, _ in self._draws]

    def random(self, size: int | None = None) -> Any:
        return self.uniform(0.0, 1.0, size)

    def uniform(self, low: float, high: float, size: Any = None) -> Any:
        if self._failing:
            self._failing -= 1
            return low
        if self._draws and self._draws[0][0]["op"] == _WINDOW:
            return self._begin_window(low, high)
        if isinstance(size, int) and self._draws[0][0]["shape"] == []:
            return np.array([self.uniform(low, high) for _ in range(size)])
        return self._take("uniform", low, high, size)

    def integers(self, low: int, high: int) -> Any:
        if self._in_vain and (self._failing or not self._is_next(low, high)):
            return low
        self._in_vain = False
        if self._window:
            value = self._window.pop(0)
            assert low <= value < high
            return value
        return self._take("uniform", low, high, None)

    def normal(self, mean: float, deviation: float, size: Any) -> Any:
        drawn, value = self._draws.pop(0)
        assert (drawn["op"], mean, tuple(drawn["shape"])) == ("normal", 0, tuple(size))
        return value

    def permutation(self, boxes: NDArray[np.int64]) -> NDArray[np.int64]:
        """Return boxes in whole pixels in the recorded order, which is known by the boxes in that order."""
        drawn, rows = self._draws.pop(0)
        assert (drawn["op"], rows.shape) == ("shuffle", boxes.shape)
        height, width = self._size
        wanted = np.trunc(rows.astype(np.float32)[:, [1, 0, 3, 2]] * np.array([width, height] * 2, np.float32))
        left, found = list(range(len(boxes))), []
        for row in wanted:
            found.append(min(left, key=lambda number: float(np.abs(boxes[number] - row).max())))
            left.remove(found[-1])
        # Of boxes that are equal in whole pixels it does not matter which comes first.
        assert np.array_equal(boxes[found], wanted)
        return boxes[found]

    def _is_next(self, low: float, high: float) -> bool:
        drawn = self._draws[0][0] if self._draws else {}
        return (drawn.get("minval"), drawn.get("maxval")) == (low, high)

    def _take(self, op: str, low: float, high: float, size: Any) -> Any:
        drawn, value = self._draws.pop(0)
        shape = () if size is None else (size,) if isinstance(size, int) else tuple(size)
        assert (drawn["op"], tuple(drawn["shape"])) == (op, shape), drawn
        value = np.asarray(value).reshape(shape)
        np.testing.assert_allclose([low, high], [drawn["minval"], drawn["maxval"]], rtol=1e-5, atol=1e-7)
        return value if shape else value.item()

    def _begin_window(self, low: float, high: float) -> float:
        drawn, value = self._draws.pop(0)
        y, x, _, tall, wide, _ = np.asarray(value).tolist()
        np.testing.assert_allclose([low, high], drawn["aspect_ratio_range"], rtol=1e-5)
        if (tall, wide) == self._size and not low <= wide / tall <= high:
            self._failing, self._in_vain = _ATTEMPTS - 1, True
            return low
        self._window = [tall]
        self._window += [y] if tall < self._size[0] else []
        self._window += [x] if wide < self._size[1] else []
        return float(np.clip(wide / tall, low, high))
