"""The distributions of the random steps: recorded statistics of TensorFlow's draws against ours, by two-sample tests.

Together all tests raise a false alarm once in a hundred seeds at most (Bonferroni); the seed is fixed. Three tests are
made of each statistic: how often it is defined and what it is (χ² or Kolmogorov–Smirnov), and how many of ours lie
beyond all of TF's (Rosenbaum, 1954), which sees a range that is too wide before the others do.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import scipy
from numpy.typing import NDArray

from boxwright.config.load import parse_message
from boxwright.data.augmentation.transform import Transform
from boxwright.pipeline import messages as m
from boxwright.pipeline.augmentation import build_steps
from boxwright.types import Sample
from tests.parity.augment_statistics import index_picture, measure
from tests.parity.recordings import FOLDER
from tests.parity.test_augment import entries_of, given, scene_sample

ENTRIES = entries_of(FOLDER, "draws")
_SEED = 20_260
_FALSE_ALARMS = 0.01
_TESTS_A_STATISTIC = 4  # defined, distribution, beyond either end
# Values that differ by less are one: by rounding of boxes in units of the image, and of levels.
_NEAR, _NEAR_LEVELS = 2e-5, 1e-3
# Fewer than TF's 2000 where time is short; BOXWRIGHT_DRAWS sets another number, as `make test-all` does.
_DRAWS = int(os.environ.get("BOXWRIGHT_DRAWS", "150"))
_LEAST = _FALSE_ALARMS / max(_TESTS_A_STATISTIC * sum(len(entry["stats"]) for entry in ENTRIES), 1)


def drawn_sample(entry: dict[str, Any]) -> Sample:
    """Return the sample whose draws were recorded; its labels number the objects."""
    sample = scene_sample(entry, ["label_weights"])
    height, width = sample.image.shape[:2]
    image = index_picture(height, width) if entry["picture"] == "index" else sample.image
    # Pixels as float32 are not rounded, as TF's are not.
    return replace(sample, image=image.astype(np.float32), labels=np.arange(len(sample.boxes)))


def followed_places(height: int, width: int) -> dict[int, tuple[int, int]]:
    """Return rows and columns of the pixels whose values are recorded."""
    return {0: (height // 4, width // 4), 1: (height // 2, width // 2), 2: (3 * height // 4, 2 * width // 3)}


def draw(entry: dict[str, Any], step: Transform, count: int) -> dict[str, NDArray[np.float64]]:
    """Return each statistic's values over some draws, NaN where it has none."""
    sample = drawn_sample(entry)
    height, width = sample.image.shape[:2]
    places = followed_places(height, width)
    names, place = set(entry["stats"]), [one["id"] for one in ENTRIES].index(entry["id"])
    rows = []
    for number in range(count):
        rng = np.random.default_rng([_SEED, place, number])
        rows.append(measure(sample, step(sample, rng), names, places))
    return {name: np.array([row.get(name, np.nan) for row in rows]) for name in names}


def p_values(entry: dict[str, Any], name: str, ours: NDArray[np.float64]) -> Iterator[float]:
    """Yield how likely so large a difference is where there is none, one number a test."""
    recorded = entry["stats"][name]
    total, missing = entry["draws"], recorded["missing"]
    defined = ours[~np.isnan(ours)]
    near = _NEAR_LEVELS if name.startswith(("pixel", "fill")) else _NEAR
    table = [[missing, total - missing], [len(ours) - len(defined), len(defined)]]
    yield float(scipy.stats.fisher_exact(table)[1])
    if not len(defined) or missing == total:
        return
    if recorded["kind"] == "discrete":
        yield _chi_square(np.array(recorded["values"]), np.array(recorded["counts"]), defined, near)
        return
    theirs, defined = np.asarray(entry["arrays"][recorded["key"]], np.float64), np.sort(defined)
    distance = max(_excess(defined, theirs, near), _excess(theirs, defined, near))
    share = len(defined) / (len(defined) + len(theirs))
    yield float(scipy.stats.kstwobign.sf(distance * np.sqrt(share * len(theirs))))
    yield share ** int((defined > theirs[-1] + near).sum())
    yield share ** int((defined < theirs[0] - near).sum())


def _excess(first: NDArray[np.float64], second: NDArray[np.float64], near: float) -> float:
    """Return by how much the share of the first that is below some value exceeds that of the second; both sorted."""
    below = np.arange(1, len(first) + 1) / len(first)
    return float((below - np.searchsorted(second, first + near, side="right") / len(second)).max())


def _chi_square(values: NDArray[Any], counts: NDArray[Any], ours: NDArray[np.float64], near: float) -> float:
    """Compare how often each value comes; rare ones count together."""
    everything = np.unique(np.concatenate([values, ours]))
    group = np.concatenate([[0], np.cumsum(np.diff(everything) > near)])
    theirs = np.bincount(group[np.searchsorted(everything, values)], counts, minlength=group[-1] + 1)
    mine = np.bincount(group[np.searchsorted(everything, ours)], minlength=group[-1] + 1).astype(np.float64)
    expected = (theirs + mine) * min(theirs.sum(), mine.sum()) / (theirs.sum() + mine.sum())
    rare = expected < 5
    table = np.stack([np.append(row[~rare], row[rare].sum()) for row in (theirs, mine)])
    table = table[:, table.sum(0) > 0]
    return 1.0 if table.shape[1] < 2 else float(scipy.stats.chi2_contingency(table).pvalue)


def unlikely(entry: dict[str, Any], step: Transform, count: int) -> dict[str, float]:
    """Return the statistics that differ, with the least of their tests' p-values."""
    found = draw(entry, step, count)
    least = {name: min(p_values(entry, name, values)) for name, values in found.items()}
    return {name: value for name, value in least.items() if value < _LEAST}


# The recordings were seeded, which ties TF's draws: an operation within `tf.cond` is seeded by its place in its branch,
# so the same one in two branches draws the same 32 bits, as often as each has run. Without a seed, as in TF's own
# training loop, they are independent, and so are ours. What follows from several draws together is told apart then.
_OF_CANVAS = ("acted", "fill", "dst", "first", "mean")
_TIED = {
    "random_pad_image": _OF_CANVAS,
    "random_crop_pad_image": _OF_CANVAS,
    "ssd_random_crop_pad": (*_OF_CANVAS, "out", "num_boxes", "kept", "weights"),
}
# Their patches or operations are drawn from one stream, so that pictures that follow each other are alike: so many
# recorded draws say less than as many independent ones.
_ALIKE = ("random_black_patches", "autoaugment_image")


def _step_of(entry: dict[str, Any]) -> str:
    return "".join(entry["text"].split("{")[0].split())


def _with_stats(entry: dict[str, Any], wanted: Callable[[str], bool]) -> dict[str, Any]:
    return {**entry, "stats": {name: stat for name, stat in entry["stats"].items() if wanted(name)}}


def _rounded_away(entry: dict[str, Any]) -> float:
    """Return the share of pixels that TF's way through HSV changes by rounding alone: gray and fully saturated ones."""
    colors = drawn_sample(entry).image[..., :3]
    return float(((colors.min(-1) == 0) | (colors.min(-1) == colors.max(-1))).mean())


# Of each step the first of its settings is quick, in the scene of many objects; a single one and none take the same steps.
@pytest.mark.slow_except(*(str(entry["id"]) for entry in ENTRIES if str(entry["id"]).endswith("/0/many")))
@pytest.mark.parametrize("entry", ENTRIES, ids=lambda entry: str(entry["id"]))
def test_draws_are_distributed_as_the_original(entry: dict[str, Any]) -> None:
    name = _step_of(entry)
    step = build_steps([parse_message(entry["text"], m.PreprocessingStep)])
    compared = _with_stats(entry, lambda stat: not stat.startswith(_TIED.get(name, ("tied",))))
    assert len(compared["stats"]) >= 5
    found = unlikely(compared, step, min(_DRAWS, 300) if name in _ALIKE else _DRAWS)
    if name == "random_adjust_saturation" and found.pop("changed_fraction", None) is not None:
        ours = draw(_with_stats(entry, "changed_fraction".__eq__), step, 50)["changed_fraction"].mean()
        assert abs(ours - entry["stats"]["changed_fraction"]["mean"]) <= _rounded_away(entry)
    assert found == {}


class TiedGenerator:
    """A generator whose integers all come from the same 32 bits, as the recorded ones do."""

    def __init__(self, rng: np.random.Generator) -> None:
        self._bits = int(rng.integers(0, 2**32))

    def integers(self, low: int, high: int) -> int:
        return low + self._bits % (high - low)


@pytest.mark.slow  # tests/parity/test_augment.py has the step with the draws of the original
@pytest.mark.parametrize("name", ["random_pad_image/1/many", "random_pad_image/1/none"])
def test_tied_draws_give_what_was_recorded(name: str) -> None:
    """Where all four draws always take place, tying ours makes the distributions equal: nothing else differs."""
    entries = [entry for entry in ENTRIES if entry["id"] == name]
    if not entries:
        pytest.skip(f"{name} is not among the recordings in {FOLDER}")
    step = build_steps([parse_message(entries[0]["text"], m.PreprocessingStep)])

    def tied(sample: Sample, rng: np.random.Generator) -> Sample:
        return step(sample, TiedGenerator(rng))  # type: ignore[arg-type] # draws integers only

    assert unlikely(entries[0], tied, 2000) == {}
    assert "dst_xmin" in unlikely(entries[0], step, 2000), "and independent ones are told from them"


# A number of each step; one that is a twentieth above the recorded one is to be seen.
_SHIFTED = {
    "random_adjust_brightness": "max_delta",
    "random_adjust_contrast": "max_delta",
    "random_adjust_hue": "max_delta",
    "random_adjust_saturation": "max_delta",
    "random_pixel_value_scale": "maxval",
    "random_image_scale": "max_scale_ratio",
    "random_jitter_boxes": "ratio",
    "random_scale_crop_and_pad_to_square": "output_size",
}


@pytest.mark.slow_except("random_adjust_brightness", "random_pixel_value_scale", "random_jitter_boxes")
@pytest.mark.parametrize("name", _SHIFTED)
def test_a_number_that_is_off_by_a_twentieth_is_seen(name: str) -> None:
    """By so many draws as the recording's own spread asks for."""
    entries = [entry for entry in ENTRIES if _step_of(entry) == name and entry["scene"] == "many"]
    if not entries:
        pytest.skip(f"{name} is not among the recordings in {FOLDER}")
    message = parse_message(entries[0]["text"], m.PreprocessingStep)
    field, within = _SHIFTED[name], getattr(message, name)
    value = getattr(within, field)
    setattr(within, field, max(round(value * 1.05), value + 1) if isinstance(value, int) else value * 1.05)
    step = build_steps([message])
    assert any(unlikely(entries[0], step, times * _DRAWS) for times in (4, 8, 16))


def test_places_of_the_pixels_that_are_followed() -> None:
    """They are known by the mean of a step that changes none on the average."""
    entry = next((entry for entry in ENTRIES if entry["id"] == "random_pixel_value_scale/0/many"), None)
    if entry is None:
        pytest.skip(f"random_pixel_value_scale is not among the recordings in {FOLDER}")
    image = given(entry, "image")
    for number, (row, column) in followed_places(*image.shape[:2]).items():
        means = [entry["stats"][f"pixel_{channel}_at_{number}"]["mean"] for channel in range(3)]
        np.testing.assert_allclose(image[row, column], means, atol=1)


def test_how_many_there_are() -> None:
    if not ENTRIES:
        pytest.skip(f"no augment/ in {FOLDER}")
    assert len({entry["id"] for entry in ENTRIES}) == len(ENTRIES) >= 11
    assert sum(len(entry["stats"]) for entry in ENTRIES) >= 300
