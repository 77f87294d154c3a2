"""The order of samples: complete, repeatable from anywhere, the same for any number of processes."""

from __future__ import annotations

from collections import Counter
from itertools import islice

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from boxwright.base.distributed import Processes
from boxwright.base.errors import ConfigError
from boxwright.data.order import StreamSettings, sample_keys


@given(
    st.lists(st.integers(1, 9), min_size=1, max_size=3),
    st.integers(1, 5),
    st.integers(0, 60),
    st.booleans(),
    st.booleans(),
)
def test_stream_begins_anywhere(sizes: list[int], batch: int, start: int, group: bool, weighted: bool) -> None:
    weights = tuple(float(n + 1) for n in range(len(sizes))) if weighted else ()
    settings = StreamSettings(batch, seed=3, group=group and not weighted, source_weights=weights)
    wide = np.arange(sum(sizes)) % 3 == 0
    whole = list(islice(sample_keys(sizes, settings, 0, wide), start + 30))
    assert list(islice(sample_keys(sizes, settings, start, wide), 30)) == whole[start:]


@given(st.integers(1, 40), st.integers(1, 7), st.integers(0, 2**20))
def test_each_sample_once_an_epoch_grouped_or_not(count: int, batch: int, seed: int) -> None:
    wide = np.random.default_rng(seed).random(count) < 0.4
    for group in (False, True):
        settings = StreamSettings(batch, seed=seed, group=group)
        keys = list(islice(sample_keys((count,), settings, 0, wide), 3 * count))
        for epoch in range(3):
            assert sorted(index for e, index in keys if e == epoch) == list(range(count))


def test_grouped_batches_are_of_one_kind_but_for_the_ends() -> None:
    wide = np.random.default_rng(0).random(103) < 0.5
    keys = list(islice(sample_keys((103,), StreamSettings(4, group=True), 0, wide), 4 * 100))
    kinds = [{bool(wide[index]) for _, index in keys[at : at + 4]} for at in range(0, 400, 4)]
    mixed = sum(len(kind) == 2 for kind in kinds)
    assert mixed <= 2 * 4, "at most two batches an epoch"
    plain = list(islice(sample_keys((103,), StreamSettings(4), 0), 400))
    assert sum(len({bool(wide[index]) for _, index in plain[at : at + 4]}) == 2 for at in range(0, 400, 4)) > 70


@pytest.mark.parametrize("count", [1, 2, 4])
def test_processes_share_the_same_batches(count: int) -> None:
    batch = list(islice(sample_keys((50,), StreamSettings(8, seed=1)), 8))
    shares = [Processes(rank, count).share(batch) for rank in range(count)]
    assert sorted(key for share in shares for key in share) == sorted(batch)
    assert {len(share) for share in shares} == {8 // count}


@pytest.mark.parametrize(
    ("weights", "wanted"),
    [((0.5, 0.5), (0.5, 0.5)), ((1.0, 1.0), (0.5, 0.5)), ((1.0, 0.0), (1.0, 0.0)), ((0.1, 0.9), (0.1, 0.9))],
)
def test_sources_come_by_weight(weights: tuple[float, float], wanted: tuple[float, float]) -> None:
    """The weights and shares of TF's own test of sample_from_datasets_weights."""
    keys = islice(sample_keys((2, 2), StreamSettings(4, source_weights=weights)), 4000)
    found = Counter(index // 2 for _, index in keys)
    assert [found[source] / 4000 for source in (0, 1)] == pytest.approx(wanted, abs=0.03)


def test_weighted_sources_that_end() -> None:
    settings = StreamSettings(1, source_weights=(1.0, 3.0), num_epochs=2, shuffle=False)
    keys = list(sample_keys((3, 2), settings))
    assert sorted(keys) == sorted((epoch, index) for epoch in (0, 1) for index in range(5))
    assert list(sample_keys((3, 2), settings, 4)) == keys[4:]


def test_one_weight_a_source() -> None:
    with pytest.raises(ConfigError, match="1 weights for 2 sources"):
        sample_keys((3, 2), StreamSettings(1, source_weights=(1.0,)))
