"""Which picture each annotation of a VOC folder is of: by its `<filename>`, or by its own name.

`<filename>` is what the tool saw when the annotation was written; pictures that were renamed or copied since, and
scripts, leave it behind. Where it leads to another picture than the annotation's own name, all annotations decide.
Annotations are read as labelImg, CVAT, Roboflow, roLabelImg and LabelMe write them.
"""

from __future__ import annotations

import math
import os
import re
import xml.etree.ElementTree as ET
from collections import Counter, defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path, PurePosixPath

from boxwright.base.errors import DataError
from boxwright.base.files import shown
from boxwright.base.text import to_number
from boxwright.data.picture_files import PICTURE_ENDINGS, PictureFiles, is_picture, parts_of_name
from boxwright.data.reading import Notices, ReasonCounts, read_xml
from boxwright.data.rotated import Box, box_around_points, box_around_rectangle

PRESERVED = "{http://www.w3.org/XML/1998/namespace}space"
_YES, _NO = frozenset({"true", "yes", "y"}), frozenset({"", "false", "no", "n", "none", "unspecified"})
_COORDINATE = re.compile(r"([xy])\d*")
_LONGEST = 60


@dataclass(frozen=True)
class VocObject:
    """A box as annotated, with its class."""

    name: str
    box: Box
    difficult: bool


@dataclass(frozen=True)
class VocAnnotation:
    """What one XML file says.

    Attributes:
        filename: Its picture's, as written; may be empty.
        declared: The (height, width) that it states, if any.
        objects: Its objects, one for each box.
    """

    filename: str
    declared: tuple[int, int] | None
    objects: tuple[VocObject, ...]


def read_voc_annotation(path: Path, notices: Notices) -> VocAnnotation | None:
    """Return an annotation; None for XML of another kind.

    Args:
        notices: Receives what was assumed, and the boxes that are left out.

    Raises:
        DataError: If it is not XML, or an object has no name or no box.
    """
    root = read_xml(path, notices.assumed)
    size = root.find("size")
    filename = (root.findtext("filename") or "").strip()
    elements = list(root.iter("object"))
    if root.tag != "annotation" and not filename and not elements:
        return None
    declared = None
    if size is not None and size.findtext("width") and size.findtext("height"):
        declared = (int(_number(size, "height", path)), int(_number(size, "width", path)))
    objects = tuple(item for element in elements for item in _objects(element, path, notices))
    return VocAnnotation(filename, declared, objects)


def _objects(element: ET.Element, path: Path, notices: Notices) -> Iterator[VocObject]:
    """Yield an element's objects, which are several where it has several boxes."""
    tag = element.find("name")
    name = "" if tag is None else tag.text or ""
    if tag is None or tag.get(PRESERVED) != "preserve":
        name = name.strip()
    if not name:
        raise DataError(f"{shown(path)}: an object without <name>")
    if (element.findtext("deleted") or "").strip() == "1":
        # LabelMe keeps what its users removed.
        notices.boxes.add("marked as deleted", path.name)
        return
    boxes = _boxes(element, path, notices)
    if not boxes:
        raise DataError(f"{shown(path)}: an object without <bndbox>")
    if len(boxes) > 1:
        notices.assumed.add("further boxes of one <object>, read as objects of its class", path.name, len(boxes) - 1)
    difficult = _is_difficult((element.findtext("difficult") or "").strip(), path, notices)
    yield from (VocObject(name, box, difficult) for box in boxes)


def _boxes(element: ET.Element, path: Path, notices: Notices) -> list[Box]:
    """Return an object's boxes; those around its rotated boxes or polygons where it has no others."""
    # Children only: the boxes of a <part> are not objects.
    if boxes := [_corners(box, path) for box in element.findall("bndbox")]:
        return boxes
    if boxes := [_around_rotated(box, path) for box in element.findall("robndbox")]:
        notices.assumed.add("rotated boxes, read as the upright boxes around them", path.name, len(boxes))
        return boxes
    boxes = [_around_polygon(outline, path) for outline in element.findall("polygon")]
    notices.assumed.add("polygons without <bndbox>, read as the boxes around them", path.name, len(boxes))
    return boxes


def _corners(box: ET.Element, path: Path) -> Box:
    x_min, y_min, x_max, y_max = (_number(box, side, path) for side in ("xmin", "ymin", "xmax", "ymax"))
    return x_min, y_min, x_max, y_max


def _around_rotated(box: ET.Element, path: Path) -> Box:
    x, y, width, height, radians = (_number(box, name, path) for name in ("cx", "cy", "w", "h", "angle"))
    return box_around_rectangle((x, y), (width, height), math.degrees(math.remainder(radians, 2 * math.pi)))


def _around_polygon(outline: ET.Element, path: Path) -> Box:
    """Return the box around `<x1> <y1> <x2> …`, as Roboflow writes outlines, or `<pt><x> <y></pt>`, as LabelMe does."""
    points: dict[str, list[float]] = {"x": [], "y": []}
    for parent in outline.iter():
        for child in parent:
            if match := _COORDINATE.fullmatch(child.tag):
                points[match[1]].append(_number(parent, child.tag, path))
    if len(points["x"]) != len(points["y"]) or len(points["x"]) < 3:
        counts = f"{len(points['x'])} x and {len(points['y'])} y"
        raise DataError(f"{shown(path)}: <polygon>: expected x and y of at least three points, found {counts}")
    return box_around_points([value for point in zip(points["x"], points["y"], strict=True) for value in point])


def _is_difficult(text: str, path: Path, notices: Notices) -> bool:
    word = text.lower()
    if word in _YES or word in _NO:
        return word in _YES
    try:
        number = to_number(word)
    except ValueError:
        number = math.nan
    if math.isnan(number):
        reason = "objects whose <difficult> is neither yes nor no, read as not difficult"
        notices.assumed.add(reason, f"{path.name}: {text[:_LONGEST]}")
        return False
    return number != 0


def _number(element: ET.Element, tag: str, path: Path) -> float:
    text = element.findtext(tag)
    try:
        value = to_number(text or "")
    except ValueError:
        raise DataError(
            f"{shown(path)}: <{element.tag}><{tag}>: expected a number, found {_shown_text(text)}"
        ) from None
    if not math.isfinite(value):
        raise DataError(f"{shown(path)}: <{element.tag}><{tag}>: expected a finite number, found {_shown_text(text)}")
    return value


def _shown_text(text: str | None) -> str:
    return "none" if text is None else repr(text[:_LONGEST])


_SHOWN = 100
_ENDINGS_OUTSIDE = sorted(ending for lower in PICTURE_ENDINGS for ending in (lower, lower.upper()))


@dataclass(frozen=True)
class PictureNames:
    """An annotation's two names of its picture.

    Attributes:
        path: The annotation.
        stem: Its own name without ending, with its folders below that of all annotations.
        filename: As it says itself; may be empty.
    """

    path: Path
    stem: str
    filename: str


@dataclass(frozen=True)
class Picture:
    """An annotation's picture.

    Attributes:
        path: None if there is none, or it is uncertain.
        problem: Why there is none; empty otherwise.
        claimed: The pictures that it may be.
    """

    path: Path | None
    problem: str
    claimed: frozenset[Path]


@dataclass(frozen=True)
class _Candidates:
    by_name: Path | None
    by_stem: Path | None
    note: str
    problem: str

    @property
    def differ(self) -> bool:
        """Whether both exist and are two pictures."""
        return self.by_name is not None and self.by_stem is not None and self.by_name != self.by_stem

    @property
    def agree(self) -> bool:
        """Whether both exist and are one picture."""
        return self.by_name is not None and self.by_name == self.by_stem


def match_pictures(
    annotations: Sequence[PictureNames], folders: Sequence[PictureFiles], assumed: ReasonCounts
) -> list[Picture]:
    """Return the picture of each annotation.

    An annotation's own name decides over a `<filename>` that is another picture's if that is possible for all
    annotations. Otherwise those in question have no picture, but a problem.

    Args:
        folders: Where to look, in order.
        assumed: Receives what was assumed.
    """
    candidates = [_candidates(item, folders) for item in annotations]
    claims = [frozenset(path for path in (own.by_name, own.by_stem) if path) for own in candidates]
    claimants: dict[Path, list[PictureNames]] = defaultdict(list)
    for item, paths in zip(annotations, claims, strict=True):
        for path in paths:
            claimants[path].append(item)
    disputed = any(own.differ for own in candidates) or any(
        own.by_stem is None and own.by_name is not None and len(claimants[own.by_name]) > 1 for own in candidates
    )
    stems = Counter(own.by_stem for own in candidates if own.by_stem)
    if disputed and max(stems.values(), default=0) == 1 and all(own.by_stem or not own.by_name for own in candidates):
        return [_by_stem(item, own, assumed) for item, own in zip(annotations, candidates, strict=True)]
    certain = Counter(own.by_name for own in candidates if own.agree)
    pictures = []
    for item, own, claimed in zip(annotations, candidates, claims, strict=True):
        chosen = own.by_name or own.by_stem
        problem = own.problem
        if own.differ:
            problem = _two_pictures(item, own)
        elif chosen is not None and len(claimants[chosen]) > 1 and not (own.agree and certain[chosen] == 1):
            problem = _two_annotations(item, chosen, claimants[chosen])
        if not problem:
            _note(item, own, assumed)
        pictures.append(Picture(None if problem else chosen, problem, claimed))
    return pictures


def _by_stem(item: PictureNames, own: _Candidates, assumed: ReasonCounts) -> Picture:
    if own.differ:
        reason = "annotations whose <filename> names another picture, read by their own name"
        assumed.add(reason, f"{item.path.name}: {item.filename[:_SHOWN]}")
    elif own.by_stem:
        _note(item, own, assumed)
    return Picture(own.by_stem, "" if own.by_stem else own.problem, frozenset({own.by_stem} if own.by_stem else ()))


def _note(item: PictureNames, own: _Candidates, assumed: ReasonCounts) -> None:
    if own.note:
        assumed.add(own.note, f"{item.path.name}: {item.filename[:_SHOWN]}")
    if own.by_name and not own.by_stem:
        assumed.add("annotations that are named otherwise than their picture, read by <filename>", item.path.name)
    elif own.by_stem and not own.by_name and item.filename:
        reason = "annotations whose <filename> is no picture, read by their own name"
        assumed.add(reason, f"{item.path.name}: {item.filename[:_SHOWN]}")


def _two_pictures(item: PictureNames, own: _Candidates) -> str:
    return (
        f"{shown(item.path)}: of {_name(own.by_name)} by its <filename>, of {_name(own.by_stem)} by its own name; "
        "other annotations here do not show which holds: correct one of them"
    )


def _two_annotations(item: PictureNames, path: Path, claimants: Sequence[PictureNames]) -> str:
    other = next(claimant for claimant in claimants if claimant is not item)
    return (
        f"{shown(item.path)}: of {_name(path)}, as is {shown(other.path.name)}; remove one, or correct its <filename>"
    )


def _name(path: Path | None) -> str:
    return shown(path.name if path else "", _SHOWN)


def _candidates(item: PictureNames, folders: Sequence[PictureFiles]) -> _Candidates:
    by_name, note, problem = _find_by_name(item, folders)
    named = _find_by_stem(item.stem, folders)
    # If a.jpg and a.png lie beside a.xml, it means the one that it names, or that lies in its folder.
    stems = [path for path in named if path == by_name] or named
    if len(stems) > 1:
        stems = [path for path in stems if path.parent == item.path.parent] or stems
    by_stem = stems[0] if len(stems) == 1 else None
    if len(stems) > 1 and by_name is None:
        problem = f"{shown(item.path)}: may be of {_name(stems[0])} or {_name(stems[1])}; rename one of them"
    if by_name is None and by_stem is not None:
        problem = ""
    return _Candidates(by_name, by_stem, note, problem)


def _find_by_name(item: PictureNames, folders: Sequence[PictureFiles]) -> tuple[Path | None, str, str]:
    """Return the picture that `<filename>` names, what was assumed, and otherwise why there is none."""
    where, name = shown(item.path), item.filename
    if not name:
        return None, "", f"{where}: no picture {_named(item.stem)} in {shown(folders[0].folder)}, and no <filename>"
    problem = ""
    own_folder = PurePosixPath(item.stem).parent
    # The names of frames repeat in CVAT's folders of jobs: the annotation's own comes first.
    names = [name] if len(own_folder.parts) == 0 else [f"{own_folder}/{name}", name]
    for files in folders:
        for full in names:
            try:
                path, note = files.find(full, where)
            except DataError as error:
                problem = problem if full is not name else problem or str(error)
                continue
            if is_picture(path) and (full is name or not note):
                return _without_dots(path, name, files), note, ""
    parts = parts_of_name(name)
    for files in folders:
        if parts and len(paths := files.with_stem(parts[-1])) == 1:
            return paths[0], "pictures that <filename> names without ending", ""
        stem, ending = os.path.splitext(parts[-1] if parts else "")
        if ending.lower() in PICTURE_ENDINGS and len(paths := files.with_stem(stem)) == 1:
            return paths[0], "pictures of another ending than <filename> says", ""
    return None, "", problem or f"{where}: no picture {_named(name)} in {shown(folders[0].folder)}"


def _without_dots(path: Path, name: str, files: PictureFiles) -> Path:
    """Return the path as folders list it, to compare it with theirs."""
    return files.folder / os.path.relpath(path, files.folder) if ".." in name else path


def _named(name: str) -> str:
    return repr(shown(name, _SHOWN))


def _find_by_stem(stem: str, folders: Sequence[PictureFiles]) -> list[Path]:
    """Return the pictures of an annotation's own name in the first folder that has some."""
    # In the folder of the same name, or else anywhere: Annotations/job1/a.xml with JPEGImages/a.jpg.
    for name in dict.fromkeys((stem, PurePosixPath(stem).name)):
        for files in folders:
            if paths := files.with_stem(name):
                return paths
    # A list may lead outside the folder, which with_stem never does.
    if ".." in PurePosixPath(stem).parts or PurePosixPath(stem).is_absolute():
        for files in folders:
            for ending in _ENDINGS_OUTSIDE:
                try:
                    return [files.find(stem + ending, stem)[0]]
                except DataError:
                    continue
    return []
