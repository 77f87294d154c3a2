"""YOLO's text labels: a `data.yaml`, folders of images, and a `labels` folder beside each `images` folder.

Each line of a label file is an object: its class, from 0, then center, width and height of its box, or the points of
its outline, all in units of the image. An image without a label file has no objects.
"""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import numpy as np
import yaml

from boxwright.base.errors import DataError, first_line
from boxwright.base.files import is_file, is_folder, read_file, shown, size_of
from boxwright.data.coco_masks import check_mask_memory, decode_mask
from boxwright.data.image_io import read_image
from boxwright.data.reading import checked_sample, inside, label_of, read_text, reading
from boxwright.types import Categories, Category, Sample

_SUFFIXES = frozenset({".jpg", ".jpeg", ".png", ".bmp", ".webp", ".tif", ".tiff"})
_LARGEST = 2**20  # bytes of a data.yaml
_BOX = 4
# Two names for the same split.
_VALIDATION = {"val": "valid", "valid": "val"}
_FARTHEST = 1e6  # units of the image


def find_yolo(path: str | Path) -> Path | None:
    """Return the `data.yaml` that a path is, or that a folder holds; None otherwise."""
    path = Path(path)
    candidates = [path] if path.suffix in (".yaml", ".yml") else [path / "data.yaml", path / "data.yml"]
    return next((candidate for candidate in candidates if is_file(candidate)), None)


def yolo_splits(data: Path) -> dict[str, list[str]]:
    """Return the paths that train, val, valid and test list in a `data.yaml`.

    Splits other than train whose folders are missing are skipped: exports list splits that they do not have.
    """
    content = _read_yaml(data)
    root = data.parent / str(content.get("path") or ".")
    found = {}
    for name in ("train", "val", "valid", "test"):
        value = content.get(name)
        listed = [str(item) for item in value] if isinstance(value, list) else [str(value)] if value else []
        there = any((root / _within_export(root, item)).exists() for item in listed)
        if listed and (there or name == "train"):
            found[name] = listed
    return found


class YoloDataset:
    """Samples from images and YOLO's text labels."""

    def __init__(
        self,
        data: str | Path,
        split: str = "train",
        categories: Categories | None = None,
        *,
        load_masks: bool = False,
        allow_paths_outside: bool = False,
    ) -> None:
        """Find the images.

        Args:
            data: A `data.yaml`, or the folder that holds it.
            categories: The classes, matched by name; by default those of `data.yaml`, with ids from 1.
            load_masks: Whether to draw outlines as masks; plain boxes are then an error.
            allow_paths_outside: Whether `data.yaml` may name folders outside its own.

        Raises:
            DataError: If a file or folder is missing, or the classes are not named.
        """
        found = find_yolo(data)
        if found is None:
            raise DataError(f"{shown(data)}: no data.yaml")
        self.path, self.load_masks = found, load_masks
        self.name = f"{found} ({split})"
        content = _read_yaml(found)
        names = _names(content.get("names"), found)
        if content.get("nc", len(names)) != len(names):
            raise DataError(f"{found}: nc is {content['nc']}, but names has {len(names)}; correct one of the two")
        if content.get("kpt_shape") is not None:
            raise DataError(f"{found}: kpt_shape: YOLO's keypoints are not read; convert them to TFRecords")
        own = Categories(tuple(Category(label, label + 1, name) for label, name in enumerate(names)))
        self.categories = categories or own
        self._labels = [label_of(name, self.categories, found) for name in names]
        split = _VALIDATION.get(split, split) if split not in content else split
        if split not in content:
            given = ", ".join(name for name in ("train", "val", "valid", "test") if name in content)
            raise DataError(f"{found}: no {split!r}; there are: {given or 'none'}")
        root = self._below(found.parent, str(content.get("path") or "."), allow_outside=allow_paths_outside)
        listed = content[split] if isinstance(content[split], list) else [content[split]]
        self.images = [
            image for item in listed for image in self._listed(root, item, allow_outside=allow_paths_outside)
        ]
        if not self.images:
            raise DataError(f"{found}: {split}: no images in {', '.join(map(str, listed))[:200]}")

    def _below(self, folder: Path, name: str, *, allow_outside: bool) -> Path:
        return inside(folder, name, str(self.path), allow_outside=allow_outside)

    def _listed(self, root: Path, item: Any, *, allow_outside: bool) -> list[Path]:
        """Return the images in a folder, or in a text file that lists them."""
        name = _within_export(root, str(item))
        path = self._below(root, name, allow_outside=allow_outside)
        if is_folder(path):
            return sorted(image for image in path.rglob("*") if image.suffix.lower() in _SUFFIXES)
        if not is_file(path):
            raise DataError(f"{self.path}: no such folder or list: {shown(path)}")
        lines = read_text(path).splitlines()
        return [self._below(root, line.strip(), allow_outside=allow_outside) for line in lines if line.strip()]

    def __len__(self) -> int:
        return len(self.images)

    def __getitem__(self, index: int) -> Sample:
        """Return one sample; its id is the image's name without suffix."""
        image_path = self.images[index]
        path = _label_path(image_path)
        with reading(str(path)):
            image = read_image(image_path)
            size = (image.shape[0], image.shape[1])
            rows = _rows(path) if is_file(path) else []
            scale = np.array([size[1], size[0]], np.float64)
            boxes = [_box(values) * np.tile(scale, 2) for _, values in rows]
            labels = [self._checked_label(number, path) for number, _ in rows]
            sample = Sample(
                image=image,
                boxes=np.array(boxes, np.float64).reshape(-1, 4).astype(np.float32),
                labels=np.array(labels, np.int64),
                masks=_masks([values for _, values in rows], size, path) if self.load_masks else None,
                id=image_path.stem,
                filename=image_path.name,
            )
            return checked_sample(sample, str(path))

    def _checked_label(self, number: int, path: Path) -> int:
        if not 0 <= number < len(self._labels):
            raise DataError(f"{path}: class {number}, but {self.path.name} names {len(self._labels)} from 0")
        return self._labels[number]

    def encoded(self, index: int) -> tuple[bytes, str]:
        """Return the image file's bytes and its name."""
        return read_file(self.images[index]), self.images[index].name


def _within_export(root: Path, name: str) -> str:
    """Resolve a path of Roboflow's exports: `../train/images` may be the export's own `train/images`."""
    own = name
    while own.startswith("../"):
        own = own.removeprefix("../")
    return own if own != name and (is_folder(root / own) or is_file(root / own)) else name


def _label_path(image: Path) -> Path:
    """Return the path of an image's labels: the last `images` in its path becomes `labels`."""
    parts = list(image.parts[:-1])
    for place in range(len(parts) - 1, -1, -1):
        # Ultralytics' loader replaces the last `images`, too; the folder above may have the same name.
        if parts[place] == "images":
            parts[place] = "labels"
            break
    return Path(*parts, f"{image.stem}.txt")


def _read_yaml(path: Path) -> dict[str, Any]:
    if size_of(path) > _LARGEST:
        raise DataError(f"{path}: more than {_LARGEST} bytes: not a data.yaml of YOLO's")
    try:
        content = yaml.safe_load(read_text(path))
    except (yaml.YAMLError, ValueError, RecursionError) as error:
        raise DataError(f"{path}: not YAML: {first_line(error)}") from None
    if not isinstance(content, dict):
        raise DataError(f"{path}: expected names and lists of images")
    return content


def _names(given: Any, path: Path) -> list[str]:
    """Return the names of classes 0, 1, …, given as list or mapping."""
    # By text, since YAML keys of mixed types have no order.
    if isinstance(given, dict) and sorted(given, key=str) == sorted(range(len(given)), key=str):
        given = [given[number] for number in range(len(given))]
    if (
        not isinstance(given, list)
        or not given
        # YAML reads a class named 7 as a number, which is fine, and one named no as False, whose spelling is lost.
        or not all(isinstance(name, str | int) and not isinstance(name, bool) for name in given)
    ):
        raise DataError(f"{path}: names: expected a list of class names, or a mapping from 0, 1, … to them")
    return [str(name) for name in given]


def _rows(path: Path) -> list[tuple[int, list[float]]]:
    """Return the class and the numbers of each object."""
    rows = []
    for line_number, line in enumerate(read_text(path).splitlines(), start=1):
        words = line.split()
        if not words:
            continue
        where = f"{path}: line {line_number}"
        try:
            number, values = float(words[0]), [float(word) for word in words[1:]]
        except ValueError:
            raise DataError(f"{where}: expected numbers, found {line[:60]!r}") from None
        outline = len(values) >= 6 and len(values) % 2 == 0
        if (
            not math.isfinite(number)
            or number != int(number)
            or not (len(values) == _BOX or outline)
            or not np.abs(values).max() < _FARTHEST
        ):
            raise DataError(
                f"{where}: expected a class and 4 numbers, or a class and an outline of 3 or more points, "
                f"found {line[:60]!r}"
            )
        rows.append((int(number), values))
    return rows


def _box(values: list[float]) -> Any:
    """Return xyxy in units of the image."""
    if len(values) == _BOX:
        x, y, width, height = values
        return np.array([x - width / 2, y - height / 2, x + width / 2, y + height / 2])
    points = np.array(values).reshape(-1, 2)
    return np.concatenate([points.min(0), points.max(0)])


def _masks(rows: list[list[float]], size: tuple[int, int], path: Path) -> Any:
    """Draw outlines as masks [N, H, W]; an object with only a box is an error."""
    check_mask_memory(len(rows), size, str(path))
    drawn = []
    for number, values in enumerate(rows):
        if len(values) == _BOX:
            raise DataError(f"{path}: object {number} has a box but no outline; masks were requested")
        scaled = (np.array(values).reshape(-1, 2) * [size[1], size[0]]).reshape(-1).tolist()
        drawn.append(decode_mask([scaled], size, f"{path}: object {number}"))
    return np.array(drawn, np.uint8).reshape(-1, *size)
