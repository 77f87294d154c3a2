"""The pictures of a YOLO split, and the label file of each."""

from __future__ import annotations

import os
from collections import Counter, defaultdict
from collections.abc import Iterator, Sequence
from pathlib import Path

from boxwright.base.errors import DataError
from boxwright.base.files import is_folder, shown
from boxwright.data.picture_files import PictureFiles, fold_name, pictures_in
from boxwright.data.reading import Notices, numbered_lines
from boxwright.data.yolo_layout import NAME_FILES, YoloLayout, is_label_file, list_names

# Beside `images` people have these, too; Ultralytics reads only the first.
_FOLDERS = ("labels", "Labels", "label", "Label", "labelTxt")


def list_pictures(
    layout: YoloLayout, split: str, notices: Notices, *, allow_outside: bool
) -> tuple[list[Path], dict[int, str]]:
    """Return the pictures of a split, and by index what is wrong with those that a list names and that are not there.

    Raises:
        DataError: If there are none, or a folder or list does not exist or lies outside.
    """
    pictures: list[Path] = []
    problems: dict[int, str] = {}
    assumed: dict[int, tuple[str, str]] = {}
    layout.check_distinct(split)
    for item in layout.splits[split]:
        place, assumption = layout.place(item, allow_outside=allow_outside)
        if assumption:
            notices.assumed.add(assumption, item)
        if is_folder(place):
            pictures += pictures_in(place)
            continue
        finders = [PictureFiles(folder, allow_outside=allow_outside) for folder in _bases(layout, item, place)]
        for number, line in numbered_lines(place):
            try:
                picture, assumption = _find_listed_picture(finders, line, f"{place}: line {number}")
            except _MissingError as error:
                problems[len(pictures)] = str(error)
                picture, assumption = layout.folder / line.replace("\0", "_"), ""
            assumed[len(pictures)] = assumption, line
            pictures.append(picture)
    users = Counter(pictures)
    for number, (assumption, line) in assumed.items():
        if assumption and users[pictures[number]] > 1:
            problems[number] = f"{layout.path}: {line}: no such picture; {pictures[number]} is that of another line"
        elif assumption:
            notices.assumed.add(assumption, line)
    if not pictures:
        raise DataError(f"{layout.path}: {split}: no images in {', '.join(layout.splits[split])[:200]}")
    return pictures, problems


class _MissingError(Exception):
    """Why a picture that a list names cannot be read."""


def _bases(layout: YoloLayout, item: str, place: Path) -> list[Path]:
    """Return the folders that lines of a list may be relative to: the data's, `path` in data.yaml, the list's own."""
    root = layout.folder / item.removesuffix(place.name)
    return list(dict.fromkeys((layout.folder, root, place.parent)))


def _find_listed_picture(finders: Sequence[PictureFiles], line: str, where: str) -> tuple[Path, str]:
    match: tuple[Path, str] | None = None
    problem: DataError | None = None
    outside: DataError | None = None
    for finder in finders:
        try:
            picture, assumption = finder.find(line, where)
        except DataError as error:
            exists = "\0" not in line and os.path.lexists(finder.folder / line)
            problem, outside = problem or error, error if exists else outside
            continue
        if not assumption:
            return picture, ""
        match = match or (picture, assumption)
    # A line that leads outside to an existing file is no broken line: the whole list is meant so.
    if match is None and outside is not None:
        raise outside
    if match is None:
        raise _MissingError(str(problem))
    return match


class _Folder:
    """The names in a folder, listed once."""

    def __init__(self, path: Path) -> None:
        self.names = list_names(path)
        texts = [name for name in self.names if name.lower().endswith(".txt") and name not in NAME_FILES]
        self.texts = {name[:-4]: path / name for name in texts}
        self._alike: dict[str, list[Path]] = defaultdict(list)
        for stem, text in self.texts.items():
            self._alike[fold_name(stem)].append(text)

    def label_file(self, stem: str) -> Path | None:
        """Return the file of labels for a picture's stem, whose case or Unicode form may differ."""
        if stem in self.texts:
            return self.texts[stem]
        matches = self._alike.get(fold_name(stem), [])
        return matches[0] if len(matches) == 1 else None


def find_label_files(pictures: Sequence[Path], notices: Notices) -> list[Path | None]:
    """Return the label file of each picture; None for a picture without, when others have one.

    Raises:
        DataError: If no picture has a label file, or most pictures and label files of a folder disagree in their names.
    """
    by_folder: dict[Path, list[int]] = defaultdict(list)
    for index, picture in enumerate(pictures):
        by_folder[picture.parent].append(index)
    listed: dict[Path, _Folder] = {}
    labels: list[Path | None] = [None] * len(pictures)
    of_labels: dict[Path, list[Path]] = defaultdict(list)
    for folder, indices in by_folder.items():
        stems = [pictures[index].stem for index in indices]
        place = _label_folder(folder, stems, listed)
        of_labels[place].append(folder)
        for index, stem in zip(indices, stems, strict=True):
            labels[index] = listed[place].label_file(stem)
        _note_folder(folder, place, [path for index in indices if (path := labels[index])], notices)
    for place, folders in of_labels.items():
        indices = [index for folder in folders for index in by_folder[folder]]
        _compare(place, folders, [(pictures[index], labels[index]) for index in indices], listed, notices)
    if not any(labels):
        first = next(_candidates(pictures[0].parent))
        raise DataError(
            f"no label file for any of {len(pictures)} pictures: {shown(first / pictures[0].stem)}.txt and so on are "
            "not there; a picture without objects has an empty file"
        )
    return labels


def _label_folder(folder: Path, stems: list[str], listed: dict[Path, _Folder]) -> Path:
    """Return the folder with most of the label files of a folder's pictures; the usual one if none has any."""
    best, most = None, -1
    for place in _candidates(folder):
        if place not in listed:
            listed[place] = _Folder(place)
        count = sum(listed[place].label_file(stem) is not None for stem in stems) if listed[place].texts else 0
        if count > most:
            best, most = place, count
        if count == len(stems):
            break
    return best or folder


def _candidates(folder: Path) -> Iterator[Path]:
    """Yield the folders in which a folder's pictures may have their labels, the usual one first."""
    parts = folder.parts
    # Ultralytics' loader replaces the last `images`, too; the folder above may have the same name.
    places = [place for place in range(len(parts)) if parts[place].lower() == "images"]
    if not places:
        yield folder
    if places:
        above, below = Path(*parts[: places[-1]]), Path(*parts[places[-1] + 1 :])
        yield from (above / name / below for name in _FOLDERS)
        yield folder
        yield from (above / name for name in _FOLDERS)
    for near in (folder, folder.parent):
        yield from (near / name for name in _FOLDERS)
    yield from (folder.parent / name / folder.name for name in _FOLDERS)


def _note_folder(folder: Path, place: Path, labels: list[Path], notices: Notices) -> None:
    usual = next(_candidates(folder))
    if place != usual and labels:
        where = "beside their pictures" if place == folder else f"in a folder {place.name}"
        notices.assumed.add(f"label files {where}, not in {usual.parent.name}/{usual.name}", place, len(labels))


def _compare(
    place: Path,
    folders: list[Path],
    pairs: list[tuple[Path, Path | None]],
    listed: dict[Path, _Folder],
    notices: Notices,
) -> None:
    """Note pictures without a label file and label files without a picture; refuse a folder where most disagree."""
    without = [picture for picture, label in pairs if label is None]
    named = {picture: label for picture, label in pairs if label is not None}
    matched = set(named.values())
    for picture, label in named.items():
        if label.stem != picture.stem:
            notices.assumed.add("label files whose name differs in upper and lower case or Unicode's form", label.name)
    notices.assumed.add("pictures that share a label file with one of another ending", place, len(named) - len(matched))
    # Pictures of other splits that share the folder have their labels here, too.
    stems = {fold_name(os.path.splitext(name)[0]) for folder in folders for name in _names(folder, place, listed)}
    rest = (path for path in listed[place].texts.values() if path not in matched)
    unmatched = [path for path in rest if fold_name(path.stem) not in stems and is_label_file(path)]
    if unmatched and len(matched) < len(without) and len(matched) < len(unmatched):
        raise DataError(
            f"{shown(place)}: the names of most pictures and label files disagree: {len(without)} pictures have no "
            f"label file, such as {shown(without[0].name)}, and {len(unmatched)} label files no picture, such as "
            f"{shown(unmatched[0].name)}; rename them alike"
        )
    # Elsewhere than usual, a folder may hold the label files of several splits.
    if all(place == next(_candidates(folder)) for folder in folders):
        for path in unmatched:
            notices.files.add("label files without a picture", path.name)
    for picture in without:
        notices.assumed.add("pictures without a label file: used as pictures without objects", picture.name)


def _names(folder: Path, place: Path, listed: dict[Path, _Folder]) -> Iterator[str]:
    """Yield the names of files in a folder of pictures; beside pictures, label files do not count."""
    if folder not in listed:
        listed[folder] = _Folder(folder)
    for name in listed[folder].names:
        if not name.lower().endswith(".txt"):
            yield name
