"""WIDER FACE: one text file of all images and faces, and the evaluation's lists of easy, medium and hard faces.

Two layouts are supported. The benchmark's has an image's path, a count, and a line `x y w h blur expression
illumination invalid occlusion pose` for each face; an image without faces has a count of 0 and one line of zeros. The
labels published with RetinaFace have `# path`, then lines `x y w h`, five landmarks as `x y flag` (-1 if unknown), and
values that are ignored. Paths start with the folder of their event.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from boxwright.base.errors import DataError
from boxwright.base.files import is_file, is_folder, open_regular, read_file, refuse_unfinished, shown
from boxwright.base.text import is_count, to_number
from boxwright.data.picture_dataset import LocatedPictures, PictureDataset
from boxwright.data.picture_files import PictureFiles
from boxwright.data.reading import Notices, checked_sample, finite_number, numbered_lines, reading
from boxwright.types import Categories, Category, Sample

FACE_LANDMARKS = ("left_eye", "right_eye", "nose", "left_mouth", "right_mouth")
WIDER_SUBSETS = ("easy", "medium", "hard")
_FACE = Categories((Category(0, 1, "face", keypoints=FACE_LANDMARKS),))
_ATTRIBUTES = ("blur", "expression", "illumination", "invalid", "occlusion", "pose")
_INVALID = _ATTRIBUTES.index("invalid")
_BOX, _POINT = 4, 3
_SUFFIXES = (".jpg", ".jpeg", ".png")
_FIRST_BYTES = 4096


@dataclass
class _Image:
    """One image's annotations.

    Attributes:
        path: Relative to the folder of images, starting with the event's folder.
        boxes: x, y, w, h of each face.
        attributes: Of each face, in the order of `_ATTRIBUTES`; empty in RetinaFace's labels.
        landmarks: Five times x, y, visibility of each face; empty in the benchmark's.
    """

    path: str
    line: int
    boxes: list[list[float]] = field(default_factory=list)
    attributes: list[list[int]] = field(default_factory=list)
    landmarks: list[list[float]] = field(default_factory=list)


def is_wider_face(path: str | Path) -> bool:
    """Return whether a text file starts like one of the two layouts."""
    if Path(path).suffix != ".txt" or not is_file(path):
        return False
    with open_regular(path) as file:
        lines = [line.strip() for line in file.read(_FIRST_BYTES).decode("utf-8-sig", "replace").splitlines()]
    first = next((line for line in lines if line), "")
    second = next((line for line in lines[lines.index(first) + 1 :] if line), "") if first else ""
    return _is_path(first) and (first.startswith("#") or is_count(second))


def face_label(categories: Categories, path: Path) -> int:
    """Return the label of the class named face, or of the only class.

    Raises:
        DataError: If there are several classes, and none is named face.
    """
    named = categories.by_name("face")
    if named is None and len(categories) > 1:
        raise DataError(f"{shown(path)}: none of the label map's classes is named face")
    return (named or categories.items[0]).label


class WiderFaceDataset(PictureDataset):
    """Samples from WIDER FACE's annotations; ids and file names are paths with the event's folder.

    Faces marked invalid are crowds: they are not trained on, and detecting them is not an error. Attributes are the six
    of the benchmark, and the membership in each subset if known.
    """

    def __init__(
        self,
        annotations: str | Path,
        image_folder: str | Path | None = None,
        categories: Categories | None = None,
        *,
        subsets: str | Path | None = None,
        ignore_exif: bool = False,
        allow_paths_outside: bool = False,
    ) -> None:
        """Read the file, and find its images.

        Args:
            annotations: Such as `wider_face_split/wider_face_val_bbx_gt.txt`, or a `label.txt` with landmarks.
            image_folder: The folder of the events' folders; by default `WIDER_train/images` or `WIDER_val/images`
                beside the annotations' folder, or `images` beside the annotations.
            categories: The classes, one of which is named face, or which is the only one; by default just face.
            subsets: The folder of the evaluation tool's `wider_easy_val.mat` and so on; samples then state the subsets
                of each face, which the metric needs.
            ignore_exif: Whether pixels stay as stored: for a tool that ignores EXIF.
            allow_paths_outside: Whether a path may point outside the folder.

        Raises:
            DataError: If the file is missing or malformed, with its line; or if the subsets belong to other data.
        """
        self.path, self.name = Path(annotations), str(annotations)
        self.ignore_exif, self.notices = ignore_exif, Notices()
        refuse_unfinished(self.path.parent)
        self.images = list(_images(self.path))
        if not self.images:
            raise DataError(f"{shown(self.path)}: no images")
        self.folder = Path(image_folder) if image_folder else self._usual_folder()
        self.categories = categories or _FACE
        self._label = face_label(self.categories, self.path)
        self._subsets = _read_subsets(Path(subsets), self.images) if subsets else None
        names = [(image.path, self._where(index)) for index, image in enumerate(self.images)]
        files = PictureFiles(self.folder, allow_outside=allow_paths_outside)
        self._files = LocatedPictures(files, names, self.notices)

    def _usual_folder(self) -> Path:
        above = self.path.absolute().parent.parent
        usual = [above / f"WIDER_{part}" / "images" for part in ("train", "val") if part in self.path.name]
        return next((folder for folder in usual if is_folder(folder)), self.path.parent / "images")

    def __len__(self) -> int:
        return len(self.images)

    def _sample(self, index: int, image: NDArray[np.uint8]) -> Sample:
        annotation = self.images[index]
        boxes = np.array(annotation.boxes, np.float64).reshape(-1, _BOX)
        count = len(boxes)
        names: tuple[str, ...] = _ATTRIBUTES if annotation.attributes else ()
        columns = [np.array(annotation.attributes, np.int64).reshape(count, len(names))]
        landmarks = np.array(annotation.landmarks, np.float32)
        invalid = columns[0][:, _INVALID] == 1 if names else np.zeros(count, np.bool_)
        if self._subsets is not None:
            names, columns = (*names, *WIDER_SUBSETS), [*columns, self._subsets[index]]
        sample = Sample(
            image=image,
            boxes=np.concatenate([boxes[:, :2], boxes[:, :2] + boxes[:, 2:]], 1).astype(np.float32),
            labels=np.full(count, self._label, np.int64),
            is_crowd=invalid,
            keypoints=landmarks.reshape(count, -1, _POINT) if annotation.landmarks else None,
            attributes=np.concatenate(columns, 1) if names else None,
            attribute_names=names,
            id=annotation.path,
            filename=annotation.path,
        )
        return checked_sample(sample, self._where(index))

    def _where(self, index: int) -> str:
        return f"{self.path}: line {self.images[index].line}"

    def _path(self, index: int) -> Path:
        return self._files.path(index)

    def encoded(self, index: int) -> tuple[bytes, str]:
        """Return the image file's bytes and its name, with the event's folder."""
        return read_file(self._files.path(index)), self.images[index].path


def _is_path(line: str) -> bool:
    return line.lower().endswith(_SUFFIXES)


def _images(path: Path) -> Iterator[_Image]:
    """Yield the images of a file of either layout."""
    if not is_file(path):
        raise DataError(f"{shown(path)}: no such file")
    lines = numbered_lines(path)
    if lines and lines[0][1].startswith("#"):
        yield from _with_landmarks(path, lines)
    else:
        yield from _benchmark(path, lines)


def _benchmark(path: Path, lines: list[tuple[int, str]]) -> Iterator[_Image]:
    place = 0
    while place < len(lines):
        number, line = lines[place]
        if not _is_path(line):
            raise DataError(f"{shown(path)}: line {number}: expected the path of an image, found {line[:60]!r}")
        if place + 1 >= len(lines) or not is_count(lines[place + 1][1]):
            raise DataError(f"{shown(path)}: line {number}: expected a count of faces on the next line")
        image, count = _Image(line, number), int(lines[place + 1][1])
        rows = lines[place + 2 : place + 2 + count]
        if len(rows) < count:
            raise DataError(
                f"{shown(path)}: line {number}: {count} faces announced, but the file ends after {len(rows)}"
            )
        for row_number, row in rows:
            values = _numbers(row, f"{shown(path)}: line {row_number}", _BOX + len(_ATTRIBUTES))
            image.boxes.append(values[:_BOX])
            image.attributes.append([int(value) for value in values[_BOX : _BOX + len(_ATTRIBUTES)]])
        place += 2 + count
        # The benchmark has a line of zeros for an image without faces.
        if count == 0 and place < len(lines) and not _is_path(lines[place][1]) and not set(lines[place][1]) - set("0 "):
            place += 1
        yield image


def _with_landmarks(path: Path, lines: list[tuple[int, str]]) -> Iterator[_Image]:
    image: _Image | None = None
    least = _BOX + _POINT * len(FACE_LANDMARKS)
    for number, line in lines:
        if line.startswith("#"):
            if image is not None:
                yield image
            image = _Image(line.lstrip("#").strip(), number)
            continue
        if image is None:  # cannot happen: `_images` checked the first line
            continue
        width = len(line.split())
        # The published validation labels have boxes alone.
        values = _numbers(line, f"{shown(path)}: line {number}", _BOX if width < least else least)
        image.boxes.append(values[:_BOX])
        points = np.array(values[_BOX:least] or [-1.0] * (least - _BOX)).reshape(-1, _POINT)
        # Unknown points are -1 in both coordinates, too.
        known = np.asarray(points[:, :2].min(1) >= 0)[:, None]
        rows = np.concatenate([np.where(known, points[:, :2], 0.0), known], 1)
        image.landmarks.append(rows.flatten().tolist())
    if image is not None:
        yield image


def _numbers(line: str, where: str, least: int) -> list[float]:
    texts = line.split()
    if len(texts) < least:
        raise DataError(f"{where}: expected {least} numbers, found {len(texts)}")
    values = []
    for text in texts:
        try:
            values.append(finite_number(to_number(text), where))
        except ValueError:
            raise DataError(f"{where}: expected numbers, found {text[:40]!r}") from None
    if values[2] < 0 or values[3] < 0:
        raise DataError(f"{where}: width {values[2]:g} and height {values[3]:g} may not be negative")
    return values


def _read_subsets(folder: Path, images: list[_Image]) -> list[NDArray[np.int64]]:
    """Return the subsets of the faces of each image, int64 [N, 3] of 0 and 1."""
    numbers_of: dict[str, list[int]] = {}
    for number, image in enumerate(images):  # an image may be listed twice
        numbers_of.setdefault(_stem(image.path), []).append(number)
    subsets = [np.zeros((len(image.boxes), len(WIDER_SUBSETS)), np.int64) for image in images]
    for column, subset in enumerate(WIDER_SUBSETS):
        path = folder / f"wider_{subset}_val.mat"
        tables = _matlab(path)
        try:
            # A cell of MATLAB is an array of objects, each an array again: ravel opens one level.
            events = [str(np.ravel(event)[0]) for event in np.ravel(tables["event_list"])]
            per_event = zip(events, np.ravel(tables["file_list"]), np.ravel(tables["gt_list"]), strict=True)
            for event, files, lists in per_event:
                for file, chosen in zip(np.ravel(files), np.ravel(lists), strict=True):
                    stem = f"{event}/{np.ravel(file)[0]}"
                    if stem not in numbers_of:
                        raise DataError(f"{shown(path)}: image {stem} is not in the annotations")
                    # MATLAB counts from 1.
                    rows = np.ravel(chosen).astype(np.int64) - 1
                    for flags in (subsets[number] for number in numbers_of[stem]):
                        if len(rows) and not 0 <= rows.min() <= rows.max() < len(flags):
                            raise DataError(
                                f"{shown(path)}: image {stem}: face {int(rows.max()) + 1} of {len(flags)}; these lists "
                                "belong to other annotations"
                            )
                        flags[rows, column] = 1
        except (KeyError, TypeError, ValueError, IndexError) as error:
            raise DataError(f"{shown(path)}: not a list of the evaluation tool: {error!r}") from None
    return subsets


def _matlab(path: Path) -> dict[str, Any]:
    if not is_file(path):
        raise DataError(f"{shown(path)}: no such file; the folder is ground_truth of WIDER FACE's eval_tools")
    try:
        from scipy.io import loadmat
    except ImportError:
        raise DataError(
            "reading WIDER FACE's lists of easy, medium and hard faces needs SciPy: pip install 'boxwright[wider-face]'"
        ) from None
    with reading(str(shown(path))):
        tables: dict[str, Any] = loadmat(str(path))
        return tables


def _stem(path: str) -> str:
    """Return an image's event and name, without suffix."""
    parts = Path(path).with_suffix("").parts
    return "/".join(parts[-2:])
