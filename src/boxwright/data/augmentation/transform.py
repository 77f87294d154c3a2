"""The interface of transforms, chains of them that may change with the training step, and a record of what they did.

Transforms that mix several images draw the others from the same data.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np

from boxwright.base.errors import ConfigError
from boxwright.data.dataset import Dataset
from boxwright.types import Sample

_DRAWS = frozenset({"beta", "integers", "normal", "permutation", "random", "uniform"})
_MOST_SHOWN = 5


class Transform(Protocol):
    """Changes a sample at random."""

    def __call__(self, sample: Sample, rng: np.random.Generator) -> Sample:
        """Return a new sample, or the same one; the sample itself is never modified."""
        ...


Change = Callable[[Sequence[Transform]], Sequence[Transform]]


@dataclass(frozen=True)
class Chain:
    """Several transforms in sequence."""

    transforms: Sequence[Transform] = ()

    def __call__(self, sample: Sample, rng: np.random.Generator) -> Sample:
        """Return the transformed sample."""
        for transform in self.transforms:
            sample = transform(sample, rng)
        return sample

    def at(self, step: int) -> Chain:
        """Return itself: it is the same at every training step."""
        del step
        return self

    def changed(self, change: Change) -> Chain:
        """Return the chain of other transforms."""
        return Chain(change(self.transforms))


@dataclass(frozen=True)
class OneOf:
    """One of several transforms, drawn uniformly."""

    transforms: Sequence[Transform]

    def __call__(self, sample: Sample, rng: np.random.Generator) -> Sample:
        """Return the transformed sample."""
        return self.transforms[int(rng.integers(0, len(self.transforms)))](sample, rng)


@dataclass(frozen=True)
class UnlessMosaic:
    """A transform that leaves samples which a mosaic made as they are."""

    transform: Transform

    def __call__(self, sample: Sample, rng: np.random.Generator) -> Sample:
        """Return the transformed sample, or the mosaic."""
        return sample if sample.is_mosaic else self.transform(sample, rng)


@dataclass(frozen=True)
class Stages:
    """The transforms of each stage of a training.

    Attributes:
        first_steps: The training step with which each stage begins, rising; the first is 0.
    """

    first_steps: Sequence[int]
    chains: Sequence[Chain]

    def at(self, step: int) -> Chain:
        """Return the transforms of the samples of a step, counted from 0."""
        return self.chains[bisect_right(self.first_steps, step) - 1]

    def changed(self, change: Change) -> Stages:
        """Return stages of other transforms."""
        return Stages(self.first_steps, [chain.changed(change) for chain in self.chains])

    def then(self, transforms: Sequence[Transform]) -> Stages:
        """Return the same stages with further transforms at the end of each."""
        return self.changed(lambda before: (*before, *transforms))


class SampleProvider(Protocol):
    """Draws samples."""

    def __call__(self, rng: np.random.Generator) -> Sample:
        """Return another sample."""
        ...


@dataclass(frozen=True)
class DrawnOthers:
    """Samples of a data set, drawn uniformly.

    Attributes:
        before: Applied to a sample before it is mixed.
    """

    dataset: Dataset
    before: Transform

    def __call__(self, rng: np.random.Generator) -> Sample:
        """Return a sample; a `DataError` if it cannot be read."""
        # Drawn from all, the same image included: to exclude it would need its index, which augmentation does not know.
        return self.before(self.dataset[int(rng.integers(0, len(self.dataset)))], rng)


@dataclass(frozen=True)
class NoSampleProvider:
    """The placeholder in chains that are built without data, for validation only."""

    def __call__(self, rng: np.random.Generator) -> Sample:
        """Raise a `ConfigError`."""
        del rng
        raise ConfigError("this chain was built without the data from which it draws other samples")


class RecordedGenerator(np.random.Generator):
    """A generator that records what it draws.

    Attributes:
        drawn: One text per draw, in order.
    """

    def __init__(self, rng: np.random.Generator) -> None:
        """Share the state of a generator, which advances with this one."""
        super().__init__(rng.bit_generator)
        self.drawn: list[str] = []

    # This records all draws at once; methods of our own would have to repeat NumPy's signatures.
    def __getattribute__(self, name: str) -> Any:
        attribute = super().__getattribute__(name)
        return self._recorded(attribute) if name in _DRAWS else attribute

    def _recorded(self, draw: Callable[..., Any]) -> Callable[..., Any]:
        def recorded(*args: Any, **kwargs: Any) -> Any:
            value = draw(*args, **kwargs)
            self.drawn.append(_shown(value))
            return value

        return recorded


def _shown(value: Any) -> str:
    if np.ndim(value) == 0:
        return f"{value:.3g}" if isinstance(value, float) else str(value)
    return f"[{'×'.join(map(str, np.shape(value)))} numbers]"


def apply_recorded(
    steps: Sequence[tuple[str, Transform]], sample: Sample, rng: np.random.Generator
) -> tuple[Sample, list[str]]:
    """Apply named transforms in order, with the same result as without recording.

    Returns:
        The sample, and a line per transform: "random_crop_image: 640×480 → 300×300, 5 → 3 objects (0.31, 12)".
    """
    lines = []
    for name, step in steps:
        recorded = RecordedGenerator(rng)
        before, sample = sample, step(sample, recorded)
        drawn = recorded.drawn[:_MOST_SHOWN] + ["…"] * (len(recorded.drawn) > _MOST_SHOWN)
        lines.append(f"{name}: {_change(before, sample)}" + (f" ({', '.join(drawn)})" if drawn else ""))
    return sample, lines


def _change(before: Sample, after: Sample) -> str:
    if after is before:
        return "as it was"
    changes = []
    sizes = [f"{sample.image.shape[1]}×{sample.image.shape[0]}" for sample in (before, after)]
    if sizes[0] != sizes[1]:
        changes.append(" → ".join(sizes))
    elif not np.array_equal(before.image, after.image):
        changes.append("other pixels")
    if len(before.boxes) != len(after.boxes):
        changes.append(f"{len(before.boxes)} → {len(after.boxes)} objects")
    elif not np.array_equal(before.boxes, after.boxes):
        changes.append("boxes moved")
    return ", ".join(changes) or "as it was"
