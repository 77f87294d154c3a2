"""A record of what a chain of transforms drew and changed, for display."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from boxwright.data.augmentation.transform import Transform
from boxwright.types import Sample

_DRAWS = frozenset({"beta", "integers", "normal", "permutation", "random", "uniform"})
_MOST_SHOWN = 5


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
