"""Matched detections of many images, in 48 bytes each, so that those of a large data set fit in memory.

Dimensions: T overlap thresholds, S ranges of size, R = S × T rules, B = ⌈R / 8⌉ bytes, D detections, O rows of objects:
T, or 0 where nobody asks which object was found.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields

import numpy as np
from numpy.typing import NDArray

Bools = NDArray[np.bool_]
# Images that are packed at a time: few need little memory, and more do not make it faster.
_BLOCK = 256


@dataclass(frozen=True)
class MatchedDetections:
    """Matched detections under every rule, of one image (by class, best first) or of several.

    Attributes:
        labels: int64 [D].
        ranks: int64 [D]; the number of better detections of its class in its image.
        scores: float32 [D].
        right: bool [S, T, D]; whether each is matched with an object that counts.
        ignored: bool [S, T, D]; whether each is ignored, which no right one is.
        images: int64 [D]; the index of the image, in the order of `add`.
        detections: int64 [D]; the index among the image's detections.
        objects: int32 [O, D]; the index of the matched object for the range of all sizes; -1 for none.
    """

    labels: NDArray[np.int64]
    ranks: NDArray[np.int64]
    scores: NDArray[np.float32]
    right: Bools
    ignored: Bools
    images: NDArray[np.int64]
    detections: NDArray[np.int64]
    objects: NDArray[np.int32]

    @staticmethod
    def join(parts: Sequence[MatchedDetections]) -> MatchedDetections:
        """Return the concatenation of one or more."""
        names = [column.name for column in fields(MatchedDetections)]
        return MatchedDetections(
            **{name: np.concatenate([getattr(part, name) for part in parts], axis=-1) for name in names}
        )


@dataclass(frozen=True)
class PackedMatches:
    """The same with a bit for each rule, and no wider numbers than they need.

    Attributes:
        labels: int32 [D].
        ranks: uint16 [D].
        scores: float32 [D].
        right: uint8 [B, D]; bits of the rules.
        ignored: uint8 [B, D].
        images: int32 [D].
        detections: int32 [D].
        objects: int16 [O, D], or int32 where an image has too many objects.
    """

    labels: NDArray[np.int32]
    ranks: NDArray[np.uint16]
    scores: NDArray[np.float32]
    right: NDArray[np.uint8]
    ignored: NDArray[np.uint8]
    images: NDArray[np.int32]
    detections: NDArray[np.int32]
    objects: NDArray[np.int16] | NDArray[np.int32]

    @classmethod
    def of(cls, judged: MatchedDetections) -> PackedMatches:
        """Return the packed form."""
        rules = judged.right.shape[0] * judged.right.shape[1]
        narrow = judged.objects.size == 0 or judged.objects.max() <= np.iinfo(np.int16).max
        return cls(
            judged.labels.astype(np.int32),
            judged.ranks.astype(np.uint16),
            judged.scores.astype(np.float32),
            np.packbits(judged.right.reshape(rules, -1), axis=0),
            np.packbits(judged.ignored.reshape(rules, -1), axis=0),
            judged.images.astype(np.int32),
            judged.detections.astype(np.int32),
            judged.objects.astype(np.int16) if narrow else judged.objects,
        )

    def __len__(self) -> int:
        return len(self.labels)


@dataclass(frozen=True)
class MatchFlags:
    """What the rules say of some detections, best first.

    Attributes:
        ranks: uint16 [D]; the number of better detections of its class in its image.
        right: uint8 [B, D]; bits of the rules.
        ignored: uint8 [B, D].
    """

    ranks: NDArray[np.uint16]
    right: NDArray[np.uint8]
    ignored: NDArray[np.uint8]

    def among(self, limit: int) -> MatchFlags:
        """Return those of the best `limit` detections of each image."""
        kept = self.ranks < limit
        return self if kept.all() else MatchFlags(self.ranks[kept], self.right[:, kept], self.ignored[:, kept])

    def right_by(self, rule: int) -> Bools:
        """Return whether each is right under a rule (size × T + threshold), bool [D]."""
        return _bit(self.right, rule)

    def counted_by(self, rule: int) -> Bools:
        """Return whether each counts under a rule, bool [D]: it is not ignored."""
        return ~_bit(self.ignored, rule)


def _bit(packed: NDArray[np.uint8], number: int) -> Bools:
    # packbits puts the first into the highest bit.
    return np.asarray(packed[number // 8] & (128 >> (number % 8)), np.bool_)


@dataclass(frozen=True)
class MatchesByClass:
    """Detections of many images, in order of class.

    Attributes:
        every: All of them, image by image.
        order: int64 [D]; their indices by class, then image by image.
        spans: The part of `order` that each label has.
    """

    every: PackedMatches
    order: NDArray[np.int64]
    spans: Mapping[int, slice]

    def best_first(self, label: int) -> NDArray[np.int64]:
        """Return the indices of a class's detections, the best first, ties image by image; int64 [N]."""
        own = self.order[self.spans.get(label, slice(0))]
        return own[np.argsort(-self.every.scores[own], kind="stable")]

    def verdicts(self, chosen: NDArray[np.int64]) -> MatchFlags:
        """Return what the rules say of some detections."""
        return MatchFlags(self.every.ranks[chosen], self.every.right[:, chosen], self.every.ignored[:, chosen])


class MatchAccumulator:
    """Accumulates the detections of images, packed as they come."""

    def __init__(self, sizes: int, thresholds: int, rows_of_objects: int) -> None:
        """Start without images.

        Args:
            rows_of_objects: How many rows `MatchedDetections.objects` has.
        """
        none = np.zeros(0, np.int64)
        verdicts = np.zeros((sizes, thresholds, 0), np.bool_)
        objects = np.zeros((rows_of_objects, 0), np.int32)
        self._nothing = MatchedDetections(none, none, none.astype(np.float32), verdicts, verdicts, none, none, objects)
        self._packed: list[PackedMatches] = []
        self._waiting: list[MatchedDetections] = []

    def add(self, judged: MatchedDetections) -> None:
        """Add those of an image."""
        if not len(judged.labels):
            return
        self._waiting.append(judged)
        if len(self._waiting) == _BLOCK:
            self._pack()

    def _pack(self) -> None:
        self._packed.append(PackedMatches.of(MatchedDetections.join([self._nothing, *self._waiting])))
        self._waiting = []

    def by_class(self) -> MatchesByClass:
        """Return all detections so far."""
        self._pack()
        self._packed = [_joined(self._packed)]
        every = self._packed[0]
        order = np.argsort(every.labels, kind="stable")
        labels, starts = np.unique(every.labels[order], return_index=True)
        bounds = [*starts.tolist(), len(order)]
        spans = {label: slice(*bounds[n : n + 2]) for n, label in enumerate(labels.tolist())}
        return MatchesByClass(every, order, spans)


def _joined(parts: list[PackedMatches]) -> PackedMatches:
    """Return the concatenation; `parts` is emptied column by column, so that two copies never exist at once."""
    columns = [[getattr(part, column.name) for part in parts] for column in reversed(fields(PackedMatches))]
    parts.clear()
    whole = []
    while columns:
        whole.append(np.concatenate(columns.pop(), axis=-1))
    return PackedMatches(*whole)
