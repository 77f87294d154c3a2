"""An account of data: what there is, what is used, and what is not, with the reason.

It also names classes that may be one class, misspelled.
"""

from __future__ import annotations

import copy
import re
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from itertools import combinations

import numpy as np
from numpy.typing import NDArray

from boxwright.base.errors import DataError, first_line
from boxwright.base.text import counted
from boxwright.data.dataset import Dataset
from boxwright.data.groundtruth import HiddenRegionsDataset
from boxwright.data.image_io import ImageHeader, upright_by_size
from boxwright.data.listed import ListedDataset
from boxwright.data.picture_dataset import PictureDataset
from boxwright.data.reading import UNKNOWN_CLASS, Notices, ReasonCounts
from boxwright.data.survey import suspicion
from boxwright.types import Sample

# Short names are not compared: cat and car may both be classes, raccoon and racoon hardly.
_SHORT = 3
_RARE = 1 / 5


def near_equal_names(counts: Mapping[str, int]) -> list[tuple[str, str]]:
    """Return the pairs of class names that may mean one class, the rarer name first.

    They differ in case, blanks, dashes and underscores alone; or in one letter, and one of them is rare.

    Args:
        counts: The number of objects of each class name.
    """
    spelled, nearby = defaultdict[str, list[str]](list), defaultdict[str, list[str]](list)
    for name in counts:
        plain = _normalize_name(name)
        spelled[plain].append(name)
        # Names that differ in one letter are the same without it.
        for key in dict.fromkeys((plain, *_without_a_letter(plain))):
            nearby[key].append(name)
    pairs = dict.fromkeys(_pairs(spelled.values(), counts))
    for rare, often in _pairs(nearby.values(), counts):
        if counts[rare] <= _RARE * counts[often] and _one_letter_apart(_normalize_name(rare), _normalize_name(often)):
            pairs[rare, often] = None
    return sorted(pairs)


def _pairs(groups: Iterable[list[str]], counts: Mapping[str, int]) -> Iterator[tuple[str, str]]:
    """Yield the pairs in each group, the rarer name first."""
    for names in groups:
        yield from combinations(sorted(names, key=lambda name: (counts[name], name)), 2)


def _normalize_name(name: str) -> str:
    return "".join(letter for letter in name.casefold() if not letter.isspace() and letter not in "-_")


def _without_a_letter(name: str) -> Iterator[str]:
    for place in range(len(name)):
        yield name[:place] + name[place + 1 :]


def _one_letter_apart(first: str, second: str) -> bool:
    """Return whether one letter was added, left out or replaced; numbers, as in type1 and type2, are no letters."""
    short, long = sorted((first, second), key=len)
    if len(long) <= _SHORT or len(long) - len(short) > 1 or short == long:
        return False
    start = next((place for place, pair in enumerate(zip(short, long, strict=False)) if pair[0] != pair[1]), len(short))
    rest = short[start + 1 :] if len(short) == len(long) else short[start:]
    return long[start + 1 :] == rest and not any(letter.isdigit() for letter in (short[start : start + 1], long[start]))


_SHOWN = 8  # causes in an error
USELESS = ("turned inside out", "no area", "outside the image")
_UPRIGHT = (
    "pictures with an EXIF orientation, whose labels are taken to refer to the upright picture (--ignore_exif: to "
    "stored pixels)"
)
# What stands in a message for one sample alone: its path, its quoted name, its numbers.
_ITS_OWN = re.compile(r"[^\s:]*/[^\s:]*|'[^']*'|\"[^\"]*\"|\b\S+\.(?:xml|json|txt|jpg|jpeg|png)\b|\d+(?:\.\d+)?")


@dataclass(frozen=True)
class DatasetUsage:
    """Counts that add up: files are samples and those left out, boxes are used, ignored or dropped.

    Attributes:
        samples: Samples that are used.
        empty: Those of them that have no object.
        boxes: Boxes of objects that are used.
        ignored: Regions that are neither objects nor background.
        dropped: Boxes that are not used, by reason.
        left_out: Pictures and annotation files that are no sample, by reason.
        assumed: What was read otherwise than it is written, by kind.
        unreadable: Indices of the samples that are left out.
    """

    samples: int
    empty: int
    boxes: int
    ignored: int
    dropped: ReasonCounts
    left_out: ReasonCounts
    assumed: ReasonCounts
    unreadable: tuple[int, ...] = ()

    @property
    def files(self) -> int:
        """Pictures and annotation files."""
        return self.samples + self.left_out.total()

    def lost(self, undecodable: int = 0) -> float:
        """Return the larger of the shares of boxes and of files that are not used.

        Args:
            undecodable: Samples whose pixels turned out to be unreadable.
        """
        boxes = self.boxes + self.ignored + self.dropped.total()
        files = (self.left_out.total() + undecodable) / max(self.files, 1)
        return max(self.dropped.total() / max(boxes, 1), files)

    def refuse_losses(self, most: float, name: str, undecodable: int = 0) -> None:
        """Raise a DataError, with the account, if a larger share than `most` of boxes or of files is not used."""
        if (lost := self.lost(undecodable)) > most:
            causes = [line for line in self.lines()[2:] if not line.startswith("assumed")]
            undecoded = [f"left out: {counted(undecodable, 'picture')} that cannot be decoded"] if undecodable else []
            raise DataError(
                f"{name}: {lost:.0%} of the boxes or pictures would not be used, more than {most:.0%}: "
                + "; ".join([*self.lines()[:2], *causes[:_SHOWN], *undecoded])
                + "; correct them, or write what can be used with doctor --fix; --most_lost 1 goes on without them"
            )

    def lines(self) -> list[str]:
        """Return the account, a sentence a line."""
        ignored = f", {counted(self.ignored, 'region')} to ignore" if self.ignored else ""
        total = self.boxes + self.ignored + self.dropped.total()
        files = counted(self.files, "picture or annotation", "pictures or annotations")
        lines = [
            f"{files}: {self.samples} used ({self.empty} without objects), {self.left_out.total()} left out",
            f"{counted(total, 'box', 'boxes')}: {self.boxes} used{ignored}, {self.dropped.total()} dropped",
        ]
        lines += [f"left out: {line}" for line in self.left_out.lines()]
        lines += [f"dropped: {line}" for line in self.dropped.lines()]
        return lines + [f"assumed: {line}" for line in self.assumed.lines()]

    def summary(self) -> list[str]:
        """Return the account, in one line where everything is used as it is written."""
        if self.left_out.total() or self.dropped.total() or self.assumed.total() or self.ignored:
            return self.lines()
        empty = f" ({self.empty} without objects)" if self.empty else ""
        return [f"{counted(self.samples, 'image')}{empty} and {counted(self.boxes, 'box', 'boxes')}; all are used"]


def notices_of(dataset: Dataset) -> Notices:
    """Return what a data set's reader noticed when it opened pictures in files; nothing for other data."""
    while isinstance(dataset, ListedDataset | HiddenRegionsDataset):
        dataset = dataset.whole
    return dataset.notices if isinstance(dataset, PictureDataset) else Notices()


def take_account(dataset: Dataset, progress: Callable[[Iterable[int]], Iterable[int]] = iter) -> DatasetUsage:
    """Return the account of a data set; of pictures in files only headers are read.

    Args:
        dataset: With all samples, or those of a list.
        progress: Wraps the indices, for a progress bar.
    """
    whole, indices = (dataset.whole, dataset.indices) if isinstance(dataset, ListedDataset) else (dataset, None)
    if isinstance(whole, HiddenRegionsDataset):
        whole = whole.whole
    noticed = notices_of(whole)
    dropped, left_out, assumed = (copy.deepcopy(counts) for counts in (noticed.boxes, noticed.files, noticed.assumed))
    samples = empty = boxes = ignored = 0
    unreadable: list[int] = []
    names = Counter({item.name: 0 for item in whole.categories})
    for index in progress(range(len(whole)) if indices is None else indices):
        try:
            if isinstance(whole, PictureDataset):
                sample, header = whole.sample_and_header(index)
                turned = _assumed_upright(header, whole.declared_size(index), ignore_exif=whole.ignore_exif)
            else:
                sample, turned = whole[index], ""
        except DataError as error:
            left_out.add(general_cause(error), first_line(error))
            unreadable.append(index)
            continue
        useless = _useless(sample, dropped)
        samples += 1
        empty += not len(sample.boxes)
        names.update(whole.categories.by_label(label).name for label in sample.labels.tolist())
        crowd = sample.is_crowd & ~useless
        # A region that is ignored for every class is one.
        ignored += len(np.unique(sample.boxes[crowd], axis=0))
        boxes += int((~useless & ~crowd).sum())
        if not isinstance(whole, PictureDataset):
            dropped.add(UNKNOWN_CLASS, sample.filename, sample.left_out)
        if turned:
            assumed.add(turned, sample.filename)
    for rare, other in near_equal_names(names):
        assumed.add(f"pair of class names that may mean one class: {rare!r} and {other!r}")
    return DatasetUsage(samples, empty, boxes, ignored, dropped, left_out, assumed, tuple(unreadable))


def without_pixels(dataset: Dataset, index: int) -> Sample:
    """Return a sample, without its pixels if the data set can do without reading them."""
    return dataset.without_pixels(index) if isinstance(dataset, PictureDataset) else dataset[index]


def general_cause(error: DataError) -> str:
    """Return what is wrong without what is of this sample alone, so that equal causes are equal texts."""
    text = " ".join(_ITS_OWN.sub("…", first_line(error)).split())
    parts = [part.strip() for part in text.split(":")]
    return ": ".join(part for part in parts if part.strip("… ") and not part.startswith(("image …", "line …"))) or text


def _useless(sample: Sample, dropped: ReasonCounts) -> NDArray[np.bool_]:
    """Return which boxes training ignores, bool [N], and count them."""
    height, width = sample.image.shape[:2]
    reasons = [suspicion(box, height, width) for box in sample.boxes.tolist()]
    for reason in reasons:
        if reason in USELESS:
            dropped.add(reason, sample.filename)
    return np.array([reason in USELESS for reason in reasons], np.bool_)


def _assumed_upright(header: ImageHeader, declared: tuple[int, int] | None, *, ignore_exif: bool) -> str:
    """Return what was assumed of a picture's orientation; empty if it has none, or its annotation shows it."""
    if header.orientation == 1 or upright_by_size(header.size, header.orientation, declared) is not None:
        return ""
    if ignore_exif:
        return "pictures with an EXIF orientation that is ignored"
    return _UPRIGHT
