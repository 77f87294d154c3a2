"""A detector made fast as asked for."""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any

import pytest
import torch

import boxwright as bw
from boxwright.runtime.measure import Timing, measure
from boxwright.weights import optimized as module
from boxwright.weights.optimized import optimized
from tests.exporters.small_detectors import FAMILIES, build, pictures


@pytest.mark.slow_cases("float32-dtype0", "float16-dtype2")
@pytest.mark.parametrize(
    ("precision", "dtype"), [("float32", torch.float32), ("bfloat16", torch.bfloat16), ("float16", torch.float16)]
)
def test_precisions(precision: str, dtype: torch.dtype) -> None:
    detector = optimized(build(FAMILIES["ssd"]), precision, compile=False)
    assert detector.optimized
    assert detector.dtype == dtype
    assert len(detector.detect(pictures())) == len(pictures())


@pytest.mark.slow_except("0.6-bfloat16")
@pytest.mark.parametrize(("ratio", "chosen"), [(0.6, "bfloat16"), (0.95, "float32"), (1.4, "float32")])
def test_the_fastest_is_what_is_measured_to_be(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, ratio: float, chosen: str
) -> None:
    """A tenth at least: bfloat16 changes scores."""

    def made_up(contenders: Mapping[str, Callable[[], Any]], batch: int, rounds: int) -> list[Timing]:
        first, second = measure(contenders, batch, 3)
        assert rounds >= 3
        assert [first.name, second.name] == ["float32", "bfloat16"]
        return [first, replace(second, ratio=ratio)]

    monkeypatch.setattr(module, "measure", made_up)
    with caplog.at_level(logging.INFO, "boxwright"):
        detector = optimized(build(FAMILIES["ssd"]), "fastest", compile=False)
    assert str(detector.dtype) == f"torch.{chosen}"
    assert f"bfloat16 takes {ratio:.2f} of float32's time here: {chosen}" in caplog.text


def test_another_precision_is_refused() -> None:
    with pytest.raises(bw.ConfigError, match="--precision int8: expected float32, bfloat16, float16, fastest"):
        optimized(build(FAMILIES["ssd"]), "int8", compile=False)
