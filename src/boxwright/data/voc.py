"""Pascal VOC: one XML file per image, lists of images in `ImageSets/Main`.

Coordinates are read as continuous, as by the TF Object Detection API's converter: `xmin 10` to `xmax 20` is ten pixels
wide.
"""

from __future__ import annotations

import math
import re
import xml.etree.ElementTree as ET
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from boxwright.base.errors import DataError, OutputError
from boxwright.base.files import is_file, is_folder, read_file, refuse_unfinished, shown, write_whole
from boxwright.data.image_io import read_image
from boxwright.data.reading import checked_sample, inside, label_of, numbered_lines, reading
from boxwright.data.xml_files import NOT_XML, read_xml
from boxwright.types import Categories, Category, Sample

_IMAGE_FOLDERS = ("JPEGImages", "images", "Images", ".")
_ANNOTATION_FOLDERS = ("Annotations", "annotations", ".")
_SUFFIXES = (".jpg", ".jpeg", ".png", ".JPG", ".JPEG", ".PNG", ".bmp")
# The second column of VOC's lists of one class: absent, present, or difficult.
_FLAG = re.compile(r"\s+(?:-1|0|1)$")
_PRESERVED = "{http://www.w3.org/XML/1998/namespace}space"


@dataclass(frozen=True)
class _Object:
    name: str
    box: tuple[float, float, float, float]
    difficult: bool


class VocDataset:
    """Samples from a folder in Pascal VOC's layout."""

    def __init__(
        self,
        root: str | Path,
        image_set: str = "",
        categories: Categories | None = None,
        *,
        allow_paths_outside: bool = False,
    ) -> None:
        """Find the annotations.

        Args:
            root: The folder that holds `Annotations` and `JPEGImages` (or `annotations` and `images`).
            image_set: A list in `ImageSets/Main`, without suffix; empty for all annotations.
            categories: The classes; by default all that occur, in alphabetical order.
            allow_paths_outside: Whether a list may name annotations outside the folder, such as `../other/a`.

        Raises:
            DataError: If a folder, list or listed file is missing.
        """
        self.root, self._allow_outside = Path(root), allow_paths_outside
        self.name = f"{root}" + (f" ({image_set})" if image_set else "")
        refuse_unfinished(self.root)
        self._annotations = _existing(self.root, _ANNOTATION_FOLDERS, "*.xml", "annotations")
        # Never exhausted: the last candidate is the folder itself.
        self._images = next(folder for folder in (self.root / name for name in _IMAGE_FOLDERS) if is_folder(folder))
        self.stems = self._read_list(image_set) if image_set else self._all_stems()
        self.categories = categories or self._find_categories()

    def _all_stems(self) -> list[str]:
        # The order of a folder's files depends on the file system; samples are numbered by this list.
        return sorted(path.stem for path in self._annotations.glob("*.xml"))

    def _read_list(self, image_set: str) -> list[str]:
        folder = self.root / "ImageSets" / "Main"
        path = folder / f"{image_set}.txt"
        if not is_file(path):
            known = sorted(file.stem for file in folder.glob("*.txt")) if is_folder(folder) else []
            raise DataError(f"{shown(path)}: no such list; there are: {', '.join(known) or 'none'}")
        stems = [self._stem(line, path, number) for number, line in numbered_lines(path)]
        missing = [stem for stem in stems if not is_file(self._annotation(stem))]
        if missing:
            raise DataError(
                f"{path}: {len(missing)} images have no annotation in {self._annotations}: {shown(missing[0])}, …"
            )
        if not stems:
            raise DataError(f"{path}: the list is empty")
        return stems

    def _stem(self, line: str, path: Path, number: int) -> str:
        """Return the name on a line, which may contain spaces, without the flag in lists of one class."""
        where = f"{path}: line {number}"
        inside(self._annotations, f"{line}.xml", where, allow_outside=self._allow_outside)
        without = _FLAG.sub("", line)
        if without == line or not is_file(self._annotation(without)):
            return line
        if is_file(self._annotation(line)):
            raise DataError(f"{where}: {line!r} may mean {line}.xml, or {without}.xml with a flag; rename one of them")
        return without

    def _annotation(self, stem: str) -> Path:
        return self._annotations / f"{stem}.xml"

    def _find_categories(self) -> Categories:
        names: set[str] = set()
        problems: list[DataError] = []
        for stem in self.stems:
            try:
                names |= {item.name for item in self._parse(stem)[2]}
            except DataError as error:  # raised again when the sample is read, where it can be skipped
                problems.append(error)
        if not names and problems:
            raise problems[0]
        if not names:
            raise DataError(f"{self.name}: no object in any of {len(self.stems)} annotations; a label map is needed")
        return Categories(tuple(Category(label, label + 1, name) for label, name in enumerate(sorted(names))))

    def _parse(self, stem: str) -> tuple[str, tuple[int, int] | None, list[_Object]]:
        """Return one annotation's image file name, declared (height, width), and objects."""
        path = self._annotation(stem)
        root = read_xml(path)
        size = root.find("size")
        declared = None
        if size is not None and size.findtext("width") and size.findtext("height"):
            declared = (int(_number(size, "height", path)), int(_number(size, "width", path)))
        objects = [_parse_object(element, path) for element in root.iter("object")]
        return root.findtext("filename") or "", declared, objects

    def __len__(self) -> int:
        return len(self.stems)

    def _image_path(self, stem: str, filename: str) -> Path:
        candidates = [self._images / f"{stem}{suffix}" for suffix in _SUFFIXES]
        if filename:
            # Without a folder in <filename>, so that no annotation can point elsewhere.
            candidates.insert(0, self._images / Path(filename).name)
        for path in candidates:
            if is_file(path):
                return path
        raise DataError(f"{self._annotation(stem)}: no image {shown(candidates[0].name)} in {self._images}")

    def __getitem__(self, index: int) -> Sample:
        """Return one sample; its id is the annotation's name."""
        stem = self.stems[index]
        where = str(self._annotation(stem))
        with reading(where):
            filename, declared, objects = self._parse(stem)
            path = self._image_path(stem, filename)
            sample = Sample(
                image=read_image(path, declared=declared),
                boxes=np.array([item.box for item in objects], np.float64).reshape(-1, 4).astype(np.float32),
                labels=np.array([label_of(item.name, self.categories, where) for item in objects], np.int64),
                difficult=np.array([item.difficult for item in objects], np.bool_),
                id=stem,
                filename=path.name,
            )
            return checked_sample(sample, where)

    def encoded(self, index: int) -> tuple[bytes, str]:
        """Return the image file's bytes and its name."""
        path = self._image_path(self.stems[index], self._parse(self.stems[index])[0])
        return read_file(path), path.name


def _existing(root: Path, names: Sequence[str], pattern: str, what: str) -> Path:
    if not is_folder(root):
        raise DataError(f"{shown(root)}: no such folder")
    for folder in (root / name for name in names):
        if next(iter(folder.glob(pattern)), None) is not None:
            return folder
    raise DataError(f"{root}: no {what} ({pattern}) in {', '.join(names)}")


def _number(element: ET.Element, tag: str, path: Path) -> float:
    text = element.findtext(tag)
    try:
        value = float(text or "")
    except ValueError:
        raise DataError(f"{path}: <{element.tag}><{tag}>: expected a number, found {text!r}") from None
    if not math.isfinite(value):
        raise DataError(f"{path}: <{element.tag}><{tag}>: expected a finite number, found {text!r}")
    return value


def _parse_object(element: ET.Element, path: Path) -> _Object:
    tag, box = element.find("name"), element.find("bndbox")
    name = "" if tag is None else tag.text or ""
    if tag is None or tag.get(_PRESERVED) != "preserve":
        name = name.strip()
    if not name or box is None:
        raise DataError(f"{path}: an object without <{'bndbox' if name else 'name'}>")
    x_min, y_min, x_max, y_max = (_number(box, side, path) for side in ("xmin", "ymin", "xmax", "ymax"))
    difficult = (element.findtext("difficult") or "0").strip() not in ("0", "")
    return _Object(name, (x_min, y_min, x_max, y_max), difficult)


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
        element.set(_PRESERVED, "preserve")
