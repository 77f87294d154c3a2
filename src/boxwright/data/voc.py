"""Pascal VOC: one XML file an image, lists of images in `ImageSets/Main`.

Coordinates are taken as they stand, as continuous ones (the TF Object Detection API's converter does
so too): `xmin 10` to `xmax 20` is ten pixels wide.
"""

from __future__ import annotations

import math
import xml.etree.ElementTree as ET
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from boxwright.data.image_io import read_image
from boxwright.errors import DataError
from boxwright.types import Categories, Category, Sample

__all__ = ["VocDataset", "write_voc_annotation"]

_IMAGE_FOLDERS = ("JPEGImages", "images", "Images", ".")
_ANNOTATION_FOLDERS = ("Annotations", "annotations", ".")
_SUFFIXES = (".jpg", ".jpeg", ".png", ".JPG", ".JPEG", ".PNG", ".bmp")


@dataclass(frozen=True)
class _Object:
    name: str
    box: tuple[float, float, float, float]
    difficult: bool


class VocDataset:
    """Samples from a folder in Pascal VOC's layout."""

    def __init__(self, root: str | Path, image_set: str = "", categories: Categories | None = None) -> None:
        """Find the annotations.

        Args:
            root: The folder that holds `Annotations` and `JPEGImages` (or `annotations` and `images`).
            image_set: A list in `ImageSets/Main`, without its ending; empty for every annotation.
            categories: The classes; without, all that occur, in alphabetical order.

        Raises:
            DataError: Where a folder or list is missing, or names what is not there.
        """
        self.root = Path(root)
        self.name = f"{root}" + (f" ({image_set})" if image_set else "")
        self._annotations = _existing(self.root, _ANNOTATION_FOLDERS, "*.xml", "annotations")
        self._images = next(folder for folder in (self.root / name for name in _IMAGE_FOLDERS) if folder.is_dir())
        self.stems = self._read_list(image_set) if image_set else self._all_stems()
        self.categories = categories or self._find_categories()

    def _all_stems(self) -> list[str]:
        return sorted(path.stem for path in self._annotations.glob("*.xml"))

    def _read_list(self, image_set: str) -> list[str]:
        path = self.root / "ImageSets" / "Main" / f"{image_set}.txt"
        if not path.is_file():
            known = sorted(file.stem for file in path.parent.glob("*.txt")) if path.parent.is_dir() else []
            raise DataError(f"{path}: no such list; there are: {', '.join(known) or 'none'}")
        # VOC's lists of one class have a second column.
        stems = [line.split()[0] for line in path.read_text(encoding="utf-8").splitlines() if line.strip()]
        missing = [stem for stem in stems if not (self._annotations / f"{stem}.xml").is_file()]
        if missing:
            raise DataError(f"{path}: {len(missing)} images have no annotation in {self._annotations}: {missing[0]}, …")
        if not stems:
            raise DataError(f"{path}: the list is empty")
        return stems

    def _find_categories(self) -> Categories:
        names = sorted({item.name for stem in self.stems for item in self._parse(stem)[2]})
        if not names:
            raise DataError(f"{self.name}: no object in any of {len(self.stems)} annotations; a label map is needed")
        return Categories(tuple(Category(label, label + 1, name) for label, name in enumerate(names)))

    def _parse(self, stem: str) -> tuple[str, tuple[int, int] | None, list[_Object]]:
        """Read one annotation: the image's file name, its declared (height, width), the objects."""
        path = self._annotations / f"{stem}.xml"
        try:
            root = ET.parse(path).getroot()
        except ET.ParseError as error:
            raise DataError(f"{path}: not XML: {error}") from None
        except OSError as error:
            raise DataError(f"{path}: {error.strerror}") from None
        size = root.find("size")
        declared = None
        if size is not None and size.findtext("width") and size.findtext("height"):
            declared = (int(_number(size, "height", path)), int(_number(size, "width", path)))
        objects = [_parse_object(element, path) for element in root.iter("object")]
        return root.findtext("filename") or "", declared, objects

    @property
    def parts(self) -> tuple[int, ...]:
        """How many samples each source has; they follow one another."""
        return (len(self),)

    def __len__(self) -> int:
        return len(self.stems)

    def _image_path(self, stem: str, filename: str) -> Path:
        candidates = [self._images / f"{stem}{suffix}" for suffix in _SUFFIXES]
        if filename:
            candidates.insert(0, self._images / Path(filename).name)
        for path in candidates:
            if path.is_file():
                return path
        raise DataError(f"{self._annotations / stem}.xml: no image {candidates[0].name} in {self._images}")

    def __getitem__(self, index: int) -> Sample:
        """Read one sample.

        Args:
            index: From 0.

        Returns:
            The sample; its id is the annotation's name.

        Raises:
            DataError: Where the annotation or image cannot be read, or has a class that is not known.
        """
        stem = self.stems[index]
        filename, declared, objects = self._parse(stem)
        path = self._image_path(stem, filename)
        labels = [self._label(item.name, stem) for item in objects]
        return Sample(
            image=read_image(path, declared=declared),
            boxes=np.array([item.box for item in objects], np.float32).reshape(-1, 4),
            labels=np.array(labels, np.int64),
            difficult=np.array([item.difficult for item in objects], np.bool_),
            id=stem,
            filename=path.name,
        )

    def _label(self, name: str, stem: str) -> int:
        category = self.categories.by_name(name)
        if category is None:
            known = ", ".join(item.name for item in self.categories)
            raise DataError(f"{self._annotations / stem}.xml: class {name!r} is not in the label map ({known})")
        return category.label

    def encoded(self, index: int) -> tuple[bytes, str]:
        """Read one image as it is stored.

        Args:
            index: From 0.

        Returns:
            The image file's bytes and its name.
        """
        path = self._image_path(self.stems[index], self._parse(self.stems[index])[0])
        return path.read_bytes(), path.name


def _existing(root: Path, names: Sequence[str], pattern: str, what: str) -> Path:
    if not root.is_dir():
        raise DataError(f"{root}: no such folder")
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
    name, box = element.findtext("name"), element.find("bndbox")
    if not name or box is None:
        raise DataError(f"{path}: an object without <{'bndbox' if name else 'name'}>")
    x_min, y_min, x_max, y_max = (_number(box, tag, path) for tag in ("xmin", "ymin", "xmax", "ymax"))
    difficult = (element.findtext("difficult") or "0").strip() not in ("0", "")
    return _Object(name.strip(), (x_min, y_min, x_max, y_max), difficult)


def write_voc_annotation(sample: Sample, filename: str, categories: Categories, path: str | Path) -> None:
    """Write one annotation. Coordinates are written as integers where they are, else to 1/1000 pixel.

    Args:
        sample: The sample.
        filename: The image's file name.
        categories: The classes.
        path: The XML file.
    """
    height, width = sample.image.shape[:2]
    root = ET.Element("annotation")
    ET.SubElement(root, "filename").text = filename
    size = ET.SubElement(root, "size")
    for tag, value in (("width", width), ("height", height), ("depth", 3)):
        ET.SubElement(size, tag).text = str(value)
    for box, label, difficult in zip(sample.boxes.tolist(), sample.labels, sample.difficult, strict=True):
        element = ET.SubElement(root, "object")
        ET.SubElement(element, "name").text = categories.by_label(int(label)).name
        ET.SubElement(element, "difficult").text = str(int(difficult))
        corners = ET.SubElement(element, "bndbox")
        for tag, value in zip(("xmin", "ymin", "xmax", "ymax"), box, strict=True):
            ET.SubElement(corners, tag).text = f"{round(value, 3):.10g}"
    ET.indent(root)
    ET.ElementTree(root).write(path, encoding="utf-8")
