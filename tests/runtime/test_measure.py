from __future__ import annotations

import numpy as np
import pytest

from boxwright.runtime.measure import measure


def test_contenders_take_turns_and_are_compared_round_by_round() -> None:
    calls: list[str] = []
    timings = measure({"a": lambda: calls.append("a"), "b": lambda: calls.append("b")}, batch=4, rounds=5)
    assert calls == ["a", "a", "b", "b", *["a", "b"] * 5], "two calls each to warm up"
    for one in timings:
        samples = np.array(one.samples_ms)
        assert len(samples) == 5
        assert (one.least_ms, one.median_ms) == (samples.min(), np.median(samples))
        assert one.p95_ms == pytest.approx(np.percentile(samples, 95))
        assert one.images_per_s == pytest.approx(4000 / np.median(samples))
        shares = samples / np.array(timings[0].samples_ms)
        assert (one.ratio, one.ratio_least) == (pytest.approx(np.median(shares)), pytest.approx(shares.min()))
    assert (timings[0].ratio, timings[0].ratio_least) == (1, 1)
