"""What a reader assumed, and what it left out, counted by reason with an example each."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field

_LONGEST = 400


@dataclass
class ReasonCounts:
    """Counts by reason, and the first example of each."""

    counts: Counter[str] = field(default_factory=Counter)
    examples: dict[str, str] = field(default_factory=dict)

    def add(self, reason: str, example: object = "", times: int = 1) -> None:
        """Count a reason, `times` times; the first example of each is kept."""
        if times:
            self.counts[reason] += times
            self.examples.setdefault(reason, str(example)[:_LONGEST])

    def merge(self, other: ReasonCounts) -> None:
        """Add another tally's counts."""
        for reason, times in other.counts.items():
            self.add(reason, other.examples[reason], times)

    def lines(self) -> Iterator[str]:
        """Yield `without a box: 3 (a.jpg)` for each reason, most frequent first."""
        for reason, times in self.counts.most_common():
            example = self.examples[reason]
            yield f"{reason}: {times}" + (f" ({example})" if example else "")

    def total(self) -> int:
        """Return the sum of all counts."""
        return self.counts.total()


@dataclass
class Notices:
    """What a reader noticed when it opened data; complete then, and not changed by reading samples.

    Attributes:
        assumed: Pictures or labels that were read as their author meant them, not as they are written.
        boxes: Annotated boxes that no sample has.
        files: Pictures and annotation files that are no sample.
    """

    assumed: ReasonCounts = field(default_factory=ReasonCounts)
    boxes: ReasonCounts = field(default_factory=ReasonCounts)
    files: ReasonCounts = field(default_factory=ReasonCounts)

    def merge(self, other: Notices) -> None:
        """Add another reader's."""
        for own, more in ((self.assumed, other.assumed), (self.boxes, other.boxes), (self.files, other.files)):
            own.merge(more)
