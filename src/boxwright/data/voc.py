"""Pascal VOC: one XML file per image, lists of images in `ImageSets/Main`.

Coordinates are read as continuous, as by the TF Object Detection API's converter: `xmin 10` to `xmax 20` is ten pixels
wide.
"""

from __future__ import annotations

import os
import re
import unicodedata
import xml.etree.ElementTree as ET
from collections import Counter
from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from boxwright.base.errors import DataError, OutputError
from boxwright.base.files import is_file, is_folder, refuse_unfinished, shown, write_whole
from boxwright.base.text import counted
from boxwright.data.coordinates import in_order, look_like_sizes
from boxwright.data.picture_dataset import PictureDataset
from boxwright.data.picture_files import PictureFiles, files_below, fold_name
from boxwright.data.reading import (
    NOT_XML,
    UNKNOWN_CLASS,
    Notices,
    checked_sample,
    find_labels,
    inside,
    numbered_lines,
    reading,
)
from boxwright.data.rotated import Box
from boxwright.data.voc_pictures import (
    PRESERVED,
    Picture,
    PictureNames,
    VocAnnotation,
    match_pictures,
    read_voc_annotation,
)
from boxwright.types import Categories, Category, Sample

_IMAGE_FOLDERS = frozenset({"jpegimages", "images", "image", "imgs", "img"})
_ANNOTATION_FOLDERS = frozenset({"annotations", "annotation", "xml", "xmls"})
# The second column of VOC's lists of one class: absent, present, or difficult.
_FLAG = re.compile(r"\s+(?:-1|0|1)$")


@dataclass(frozen=True)
class _Entry:
    """One sample: its annotation and its picture, or why it cannot be read."""

    stem: str
    path: Path
    annotation: VocAnnotation | None
    picture: Path | None
    problem: str

    def readable(self) -> tuple[VocAnnotation, Path]:
        """Return annotation and picture."""
        if self.annotation is None or self.picture is None:
            raise DataError(self.problem)
        return self.annotation, self.picture


class VocDataset(PictureDataset):
    """Samples from a folder in Pascal VOC's layout; a sample's id is its annotation's name.

    Attributes:
        stems: The annotations' names without ending, with their folders: `a`, `job1/a`.
    """

    def __init__(
        self,
        root: str | Path,
        image_set: str = "",
        categories: Categories | None = None,
        *,
        allow_paths_outside: bool = False,
        ignore_exif: bool = False,
        rescale: bool = False,
        sizes: bool = False,
    ) -> None:
        """Read the annotations, and find their pictures.

        Args:
            root: The folder that holds `Annotations` and `JPEGImages`, or `annotations` and `images`, or both kinds of
                files together; with or without folders below.
            image_set: A list in `ImageSets/Main`, without suffix; empty for all annotations that have a picture.
            categories: The classes; by default all that occur, in alphabetical order. Objects of others are left out.
            allow_paths_outside: Whether names may lead outside the folder, such as `../other/a` in a list.
            ignore_exif: Whether pixels stay as stored where nothing shows that labels refer to the upright picture: for
                a tool that ignores EXIF.
            sizes: Whether xmax and ymax are width and height.
            rescale: Whether boxes are moved from the size that annotations declare to that of the picture, for pictures
                that were resized since they were labeled.

        Raises:
            DataError: If a folder, list or listed file is missing, no annotation has a picture, or no object is of one
                of the classes.
        """
        self.root, self._allow_outside, self.ignore_exif = Path(root), allow_paths_outside, ignore_exif
        self.rescale, self._sizes = rescale, sizes
        self.repairs = {"xywh": "sizes"}
        self.name = f"{root}" + (f" ({image_set})" if image_set else "")
        self.notices = Notices()
        refuse_unfinished(self.root)
        self._annotations, self._files = self._find_annotations()
        stems = self._read_list(image_set) if image_set else sorted(self._files)
        self._entries = self._with_ordered_corners(self._read(stems, keep_all=bool(image_set)))
        self.stems = [entry.stem for entry in self._entries]
        self.categories, self._labels = self._find_classes(categories)

    def _find_annotations(self) -> tuple[Path, dict[str, Path]]:
        """Return the folder of the annotations, and each annotation by its name."""
        if not is_folder(self.root):
            raise DataError(f"{shown(self.root)}: no such folder")
        for folder in (*_folders(self.root, _ANNOTATION_FOLDERS), self.root):
            paths = [path for path in files_below(folder) if path.suffix.lower() == ".xml"]
            if paths:
                break
        else:
            raise DataError(f"{self.root}: no annotations (*.xml)")
        if folder == self.root:
            folder = Path(os.path.commonpath([path.parent for path in paths]))
        files: dict[str, Path] = {}
        for path in paths:
            stem = path.relative_to(folder).as_posix()[: -len(path.suffix)]
            if stem in files:
                self.notices.files.add("annotations whose name another one has", path.name)
            files.setdefault(stem, path)
        return folder, files

    def _read_list(self, image_set: str) -> list[str]:
        folder = self.root / "ImageSets" / "Main"
        path = folder / f"{image_set}.txt"
        if not is_file(path):
            known = sorted(file.stem for file in folder.glob("*.txt")) if is_folder(folder) else []
            raise DataError(f"{shown(path)}: no such list; there are: {', '.join(known) or 'none'}")
        stems = [self._stem(line, path, number) for number, line in numbered_lines(path)]
        missing = [stem for stem in stems if not self._has_stem(stem)]
        if missing:
            raise DataError(
                f"{path}: {counted(len(missing), 'image')} without an annotation in {self._annotations}: "
                f"{shown(missing[0])}{', …' if len(missing) > 1 else ''}"
            )
        if not stems:
            raise DataError(f"{path}: the list is empty")
        return stems

    def _stem(self, line: str, path: Path, number: int) -> str:
        """Return the name on a line, which may contain spaces, without the flag in lists of one class."""
        where = f"{path}: line {number}"
        inside(self._annotations, f"{line}.xml", where, allow_outside=self._allow_outside)
        without = _FLAG.sub("", line)
        if without != line and self._has_stem(without):
            if self._has_stem(line):
                raise DataError(
                    f"{where}: {line!r} may mean {line}.xml, or {without}.xml with a flag; rename one of them"
                )
            return without
        if self._has_stem(line):
            return line
        for name in dict.fromkeys((line, without)):
            if stem := self._stems_as_written.get(_as_written(name)):
                reason = "names in lists with backslashes, or in another case or Unicode form"
                self.notices.assumed.add(reason, name)
                return stem
        return line

    @cached_property
    def _stems_as_written(self) -> dict[str, str]:
        return {_as_written(stem): stem for stem in self._files}

    def _has_stem(self, stem: str) -> bool:
        return stem in self._files or is_file(self._annotation(stem))

    def _annotation(self, stem: str) -> Path:
        return self._files.get(stem) or self._annotations / f"{stem}.xml"

    def _read(self, stems: list[str], *, keep_all: bool) -> list[_Entry]:
        """Return the samples, without annotations that have no picture unless all are to be kept."""
        # A list may name an annotation twice.
        paths = {self._annotation(stem): stem for stem in stems}
        annotations: list[VocAnnotation | None] = []
        problems: list[str] = []
        named: list[PictureNames] = []
        for path, stem in paths.items():
            annotation, problem = None, f"{shown(path)}: no <annotation>"
            try:
                with reading(str(path)):
                    annotation = read_voc_annotation(path, self.notices)
                if annotation is None and not keep_all:
                    self.notices.files.add("XML files that are no annotation of VOC's", path.name)
                    continue
            except DataError as error:  # raised again when the sample is read, where it can be skipped
                problem = str(error)
            annotations.append(annotation)
            problems.append("" if annotation else problem)
            named.append(PictureNames(path, stem, annotation.filename if annotation else ""))
        folders = self._picture_folders()
        pictures = match_pictures(named, folders, self.notices.assumed)
        entries = [
            _Entry(item.stem, item.path, annotation, picture.path, problem or picture.problem)
            for item, annotation, problem, picture in zip(named, annotations, problems, pictures, strict=True)
        ]
        if not keep_all:
            return self._with_pictures(entries, pictures, folders)
        by_path = {entry.path: entry for entry in entries}
        return [by_path[self._annotation(stem)] for stem in stems]

    def _with_ordered_corners(self, entries: list[_Entry]) -> list[_Entry]:
        """Return entries whose boxes go from their smaller to their larger sides: some draw from the lower right.

        Where all boxes would fit their pictures as x, y, width and height, they stay: they are that, and not exchanged.
        """
        known = [entry.annotation for entry in entries if entry.annotation is not None and entry.annotation.declared]
        boxes = [item.box for annotation in known for item in annotation.objects]
        sizes = [annotation.declared for annotation in known for _ in annotation.objects]
        if self._sizes:
            return [self._with_boxes(entry, _xywh_to_corners) for entry in entries]
        if look_like_sizes(np.array(boxes, np.float64).reshape(-1, 4), np.array(sizes, np.float64).reshape(-1, 2)):
            return entries
        return [self._in_order(entry) for entry in entries]

    def _in_order(self, entry: _Entry) -> _Entry:
        exchanged = sum(item.box != in_order(item.box) for item in entry.annotation.objects) if entry.annotation else 0
        self.notices.assumed.add("boxes whose corners are exchanged, read in order", entry.path.name, exchanged)
        return self._with_boxes(entry, in_order) if exchanged else entry

    def _with_boxes(self, entry: _Entry, change: Callable[[Box], Box]) -> _Entry:
        if entry.annotation is None:
            return entry
        objects = tuple(replace(item, box=change(item.box)) for item in entry.annotation.objects)
        return replace(entry, annotation=replace(entry.annotation, objects=objects))

    def _with_pictures(
        self, entries: list[_Entry], pictures: list[Picture], folders: list[PictureFiles]
    ) -> list[_Entry]:
        """Return the samples that have a picture, or a problem to be told when they are read; count the others."""
        if not entries:
            raise DataError(f"{self.name}: no XML file is an annotation of VOC's (<annotation>)")
        kept = []
        for entry, picture in zip(entries, pictures, strict=True):
            if entry.annotation is not None and not picture.claimed:
                self.notices.files.add("annotations without a picture", entry.path.name)
            else:
                kept.append(entry)
        claimed = {path for picture in pictures for path in picture.claimed}
        free = {path for files in folders for path in files.pictures()} - claimed
        for path in sorted(free):
            self.notices.files.add("pictures without an annotation", path.name)
        if not any(entry.picture for entry in kept):
            others = f"; pictures there: {shown(min(free).name)}, …" if free else ""
            problem = next(entry.problem for entry in entries)
            raise DataError(f"{self.name}: none of {len(entries)} annotations has a picture: {problem}{others}")
        return kept

    def _picture_folders(self) -> list[PictureFiles]:
        folders = _folders(self.root, _IMAGE_FOLDERS)
        # The whole folder only without the usual ones: VOC2012's SegmentationClass has masks of the same names.
        if not folders or self._annotations == self.root:
            folders.append(self.root)
        elif not self._annotations.is_relative_to(folders[0]):
            folders.append(self._annotations)
        return [PictureFiles(folder, allow_outside=self._allow_outside) for folder in folders]

    def _find_classes(self, given: Categories | None) -> tuple[Categories, dict[str, int]]:
        """Return the classes, and the label of each class name in the data that is among them."""
        names = Counter(item.name for entry in self._entries if entry.annotation for item in entry.annotation.objects)
        if given is not None:
            labels = find_labels(names, given, self.name)
            missing = {name: count for name, count in names.items() if name not in labels}
            example = ", ".join(sorted(missing))
            self.notices.boxes.add(UNKNOWN_CLASS, example, sum(missing.values()))
            return given, labels
        problems = [entry.problem for entry in self._entries if entry.problem]
        if not names and problems:
            raise DataError(problems[0])
        if not names:
            raise DataError(f"{self.name}: no object in any of {len(self.stems)} annotations; a label map is needed")
        merged = _one_form(names)
        for name, form in merged.items():
            if name != form:
                reason = "objects whose class is written in two Unicode forms, read as one class"
                self.notices.assumed.add(reason, form, names[name])
        rows = enumerate(sorted(set(merged.values())))
        categories = Categories(tuple(Category(label, label + 1, name) for label, name in rows))
        return categories, find_labels(names, categories, self.name)

    def __len__(self) -> int:
        return len(self._entries)

    def _where(self, index: int) -> str:
        return str(self._entries[index].path)

    def _path(self, index: int) -> Path:
        return self._entries[index].readable()[1]

    def declared_size(self, index: int) -> tuple[int, int] | None:
        """Return the (height, width) that an annotation states, if any."""
        return self._entries[index].readable()[0].declared

    def _size_meant(self, index: int, path: Path) -> tuple[int, int] | None:
        """Return the declared size, if it tells which way up the picture is; that of another size does not."""
        return None if self.rescale else super()._size_meant(index, path)

    def _sample(self, index: int, image: NDArray[np.uint8]) -> Sample:
        entry = self._entries[index]
        annotation, picture = entry.readable()
        objects = [item for item in annotation.objects if item.name in self._labels]
        factors = np.ones(4)
        if self.rescale and annotation.declared is not None:
            factors = np.tile(np.divide(image.shape[:2], annotation.declared)[::-1], 2)
        sample = Sample(
            image=image,
            boxes=(np.array([item.box for item in objects], np.float64).reshape(-1, 4) * factors).astype(np.float32),
            labels=np.array([self._labels[item.name] for item in objects], np.int64),
            difficult=np.array([item.difficult for item in objects], np.bool_),
            left_out=len(annotation.objects) - len(objects),
            id=entry.stem,
            filename=picture.name,
        )
        return checked_sample(sample, str(entry.path))


def _xywh_to_corners(box: Box) -> Box:
    return box[0], box[1], box[0] + box[2], box[1] + box[3]


def _folders(root: Path, names: frozenset[str]) -> list[Path]:
    """Return the folders of some names, in any case, below another, sorted."""
    return sorted(path for path in root.iterdir() if path.name.lower() in names and path.is_dir())


def _as_written(name: str) -> str:
    """Return a name as systems compare it that ignore case, Unicode forms and the kind of slash."""
    return fold_name(name.replace("\\", "/"))


def _one_form(names: Iterable[str]) -> dict[str, str]:
    """Return each name's composed form where it is written in several forms, else the name itself."""
    composed = {name: unicodedata.normalize("NFC", name) for name in names}
    counts = Counter(composed.values())
    return {name: form if counts[form] > 1 else name for name, form in composed.items()}


def write_voc_annotation(sample: Sample, filename: str, categories: Categories, path: str | Path) -> None:
    """Write one annotation; coordinates are rounded to 1/1000 pixel.

    Raises:
        OutputError: For a name that XML cannot represent; if the file cannot be written.
    """
    height, width = sample.image.shape[:2]
    root = ET.Element("annotation")
    _add_text(root, "filename", filename)
    size = ET.SubElement(root, "size")
    for tag, value in (("width", width), ("height", height), ("depth", 3)):
        ET.SubElement(size, tag).text = str(value)
    for box, label, difficult in zip(sample.boxes.tolist(), sample.labels, sample.difficult, strict=True):
        element = ET.SubElement(root, "object")
        _add_text(element, "name", categories.by_label(int(label)).name)
        ET.SubElement(element, "difficult").text = str(int(difficult))
        corners = ET.SubElement(element, "bndbox")
        for tag, value in zip(("xmin", "ymin", "xmax", "ymax"), box, strict=True):
            ET.SubElement(corners, tag).text = f"{round(value, 3):.10g}"
    ET.indent(root)
    write_whole(path, ET.tostring(root, encoding="utf-8"))


def _add_text(parent: ET.Element, tag: str, text: str) -> None:
    """Add an element; `xml:space` preserves spaces around a name, which readers of VOC strip otherwise."""
    if bad := NOT_XML.search(text):
        raise OutputError(f"{text[:60]!r} cannot be written to VOC's XML, which cannot represent {bad[0]!r}")
    element = ET.SubElement(parent, tag)
    element.text = text
    if text != text.strip():
        element.set(PRESERVED, "preserve")
