"""Which engine spreads work."""

from __future__ import annotations

import pytest

from boxwright.base.errors import ConfigError
from boxwright.base.worker_pools import engine_of


def test_a_gpu_by_its_number_is_not_for_ray() -> None:
    with pytest.raises(ConfigError, match="--engine ray --device cuda:1: Ray assigns each worker its own GPU"):
        engine_of("ray", "cuda:1")
    assert engine_of("ray", "cuda") is engine_of("ray")


def test_an_engine_that_there_is_not() -> None:
    with pytest.raises(ConfigError, match="--engine slurm: expected local or ray"):
        engine_of("slurm")
