"""Where YOLO's data lie: the names of classes, and the folders and lists of each split, in all tools' layouts.

| tool                      | names of classes        | splits                                              |
|---------------------------|-------------------------|-----------------------------------------------------|
| Ultralytics, Roboflow     | data.yaml, or any .yaml | data.yaml                                           |
| CVAT's YOLO 1.1, Darknet  | obj.names               | obj.data; else train.txt, valid.txt                 |
| labelImg, Label Studio, … | classes.txt             | folders train, valid, test; else all that lie there |
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from boxwright.base.errors import DataError
from boxwright.base.files import file_size, is_file, is_folder, open_regular, shown
from boxwright.data.picture_files import fold_name, is_left_over, parts_of_name
from boxwright.data.reading import inside, read_text
from boxwright.data.yolo_yaml import read_data_yaml, yaml_keypoint_names, yaml_keypoints, yaml_lists, yaml_names

SPLITS = ("train", "val", "valid", "test")
# Two names for the same split.
_OTHER_NAME = {"val": "valid", "valid": "val"}
_YAMLS = ("data.yaml", "data.yml", "dataset.yaml")
NAME_FILES = ("classes.txt", "obj.names", "_darknet.labels", "predefined_classes.txt")
_LARGEST_SEARCHED = 2**20
_TRIED = 20
_ROW = re.compile(r"\s*[0-9]+(\.0+)?(\s+[-+0-9.eE]+){4,}\s*")


@dataclass(frozen=True)
class YoloLayout:
    """A data set's classes and splits, whatever file names them.

    Attributes:
        path: The file that names them.
        folder: What the names of folders and lists are relative to.
        names: Of the classes, by number from 0.
        splits: By name the folders and lists of pictures, as the file has them.
        keypoints: How many keypoints an object has, and how many numbers each, if the file says so.
        keypoint_names: Of each class; empty without keypoints.
    """

    path: Path
    folder: Path
    names: tuple[str, ...]
    splits: dict[str, tuple[str, ...]]
    keypoints: tuple[int, int] | None = None
    keypoint_names: tuple[tuple[str, ...], ...] = ()

    def split_called(self, name: str) -> str:
        """Return a split's own name: val and valid are the same.

        Raises:
            DataError: If there is no such split; the error lists those that there are.
        """
        own = name if name in self.splits else _OTHER_NAME.get(name, name)
        if own not in self.splits:
            raise DataError(f"{self.path}: no {name!r}; there are: {', '.join(self.splits) or 'none'}")
        return own

    def find(self, name: str) -> tuple[Path | None, str]:
        """Return the folder or list that a name means, and what was assumed to find it; None if it does not exist.

        The last parts of another machine's path count, if they exist here and the path itself does not.
        """
        if "\0" in name:
            return None, ""
        own = name
        while own.startswith("../"):
            own = own.removeprefix("../")
        # Roboflow's exports say ../train/images for their own train/images.
        for exact in (own, name):
            if os.path.exists(self.folder / exact):
                return self.folder / exact, ""
        parts = parts_of_name(name)
        below = (_find_below(self.folder, parts[start:]) for start in range(len(parts)))
        match = next((place for place in below if place is not None), None)
        return match, "folders or lists named by another system's or another machine's path" if match else ""

    def place(self, name: str, *, allow_outside: bool) -> tuple[Path, str]:
        """Return a folder or list as `find` does.

        Raises:
            DataError: If it does not exist, or lies outside.
        """
        path, assumption = self.find(name)
        if path is None:
            path = inside(self.folder, name, str(self.path), allow_outside=allow_outside)
            raise DataError(f"{self.path}: no such folder or list: {shown(path)}")
        relative = os.path.relpath(path, self.folder)
        inside(self.folder, relative, str(self.path), allow_outside=allow_outside)
        return path, assumption

    def check_distinct(self, split: str) -> None:
        """Raise a DataError if another split's names, different ones, mean the same folder or list as this one's."""
        own_places = {item: self.find(item) for item in self.splits[split]}
        others = ((name, item) for name in self.splits for item in self.splits[name] if item not in own_places)
        for name, item in others:
            place, assumption = self.find(item)
            for own, (own_place, assumed) in own_places.items():
                if place is not None and place == own_place and (assumption or assumed):
                    raise DataError(
                        f"{self.path}: {split} ({shown(own)}) and {name} ({shown(item)}) would both be {shown(place)}: "
                        "correct their paths"
                    )


def _find_below(folder: Path, parts: tuple[str, ...]) -> Path | None:
    """Return the file or folder below a folder, its name in any case and Unicode form; None if there is no single."""
    place = folder
    for part in parts:
        exact = os.path.exists(place / part)
        matches = [part] if exact else [name for name in list_names(place) if fold_name(name) == fold_name(part)]
        if len(matches) != 1:
            return None
        place = place / matches[0]
    return place


def list_names(folder: Path) -> list[str]:
    """Return the names in a folder, sorted, without systems' left-overs; none if it cannot be listed."""
    try:
        return sorted(name for name in os.listdir(folder) if not is_left_over(name))
    except (OSError, ValueError):
        return []


def find_yolo(path: str | Path) -> Path | None:
    """Return what describes YOLO's data at a path: a .yaml, a .data, or a folder with class names; None for other data.

    The .yaml lies in the folder under any name, or beside it.

    Raises:
        DataError: If two .yaml files may be meant.
    """
    path = Path(path)
    if is_file(path):
        if path.suffix.lower() in (".yaml", ".yml", ".data"):
            is_other = path.suffix == ".data" and "names" not in _darknet_keys(path)
            return None if is_other else path
        return _above(path) if path.name in NAME_FILES and label_files_near(_above(path)) else None
    if not is_folder(path):
        return None
    if (own := next((path / name for name in _YAMLS if is_file(path / name)), None)) is not None:
        return own
    if yamls := list(_yamls_in(path)):
        if len(yamls) > 1:
            raise DataError(
                f"{shown(path)}: which of {' and '.join(item.name for item in yamls[:4])}? pass one of them"
            )
        return yamls[0]
    if label_files_near(path) is None:
        return None
    data = (path / name for name in list_names(path) if name.endswith(".data"))
    if (darknet := next((item for item in data if "names" in _darknet_keys(item)), None)) is not None:
        return darknet
    lists = list(_name_files(path))
    # labelImg writes VOC's .xml beside its classes.txt, too, and those name the classes themselves.
    if lists and not (lists[0].parent == path and any(name.lower().endswith(".xml") for name in list_names(path))):
        return path
    return next((item for item in _yamls_in(path.parent) if _leads_into(item, path)), None)


def _yamls_in(folder: Path) -> Iterator[Path]:
    for name in list_names(folder):
        path = folder / name
        if path.suffix.lower() in (".yaml", ".yml") and is_file(path) and file_size(path) <= _LARGEST_SEARCHED:
            try:
                text = read_text(path)
            except DataError:  # somebody else's file: what is not text, or not ours to read, is no data.yaml
                continue
            if all(re.search(rf"^['\"]?{key}['\"]?\s*:", text, re.MULTILINE) for key in ("names", "train")):
                yield path


def _leads_into(path: Path, folder: Path) -> bool:
    """Return whether a .yaml beside a folder names pictures in it."""
    try:
        layout = read_layout(path)
    except DataError:  # a folder beside it may be of another format; a .yaml that is meant is passed itself
        return False
    places = [layout.find(item)[0] for item in layout.splits.get("train", ())]
    return any(os.path.abspath(place).startswith(f"{os.path.abspath(folder)}{os.sep}") for place in places if place)


def _split_folders(folder: Path) -> list[Path]:
    """Return the folders in which a split's label files, or a file of names, may lie."""
    above = [folder, folder / "labels", folder / "images"]
    below = [place / name for place in above for name in (*SPLITS, "obj_train_data", "obj_valid_data")]
    return [place for place in (*above, *below, *(item / "labels" for item in below)) if is_folder(place)]


def label_files_near(folder: Path) -> Path | None:
    """Return a label file of YOLO's in a folder, or where its splits' labels usually lie; None if there is none."""
    for place in _split_folders(folder):
        texts = [name for name in list_names(place) if name.lower().endswith(".txt") and name not in NAME_FILES]
        if path := next((place / name for name in texts[:_TRIED] if is_label_file(place / name)), None):
            return path
    return None


def is_label_file(path: Path) -> bool:
    """Return whether a text file begins with a class and 4 numbers or more."""
    try:
        with open_regular(path) as file:
            head = file.read(4096).decode("utf-8-sig", "replace")
    except OSError:
        return False
    first = next((line for line in head.splitlines() if line.strip()), "")
    # A long outline is cut off at 4096 bytes, perhaps in a number.
    return _ROW.fullmatch(first) is not None


def _name_files(folder: Path) -> Iterator[Path]:
    for place in _split_folders(folder):
        yield from (place / name for name in NAME_FILES if is_file(place / name))


def _above(path: Path) -> Path:
    """Return the folder of the data set in which a file of names lies."""
    folder = path.parent
    while folder.name in ("labels", *SPLITS) and folder != folder.parent:
        folder = folder.parent
    return folder


def read_layout(path: Path, *, from_one: bool = False) -> YoloLayout:
    """Return the layout that `find_yolo` found.

    Args:
        from_one: Whether a mapping of names may start at 1.

    Raises:
        DataError: If it is not readable, or the classes are not named.
    """
    if is_folder(path):
        return YoloLayout(path, path, _agreed_names(path), _splits_here(path))
    return _darknet_layout(path) if path.suffix == ".data" else _yaml_layout(path, from_one=from_one)


def _yaml_layout(path: Path, *, from_one: bool) -> YoloLayout:
    content = read_data_yaml(path)
    names = yaml_names(content, path, from_one=from_one)
    splits = {key: yaml_lists(content, key, path) for key in SPLITS}
    shape = yaml_keypoints(content, path)
    own = [yaml_keypoint_names(content, path, number, shape[0]) for number in range(len(names))] if shape else []
    return YoloLayout(path, path.parent, names, {key: items for key, items in splits.items() if items}, shape, (*own,))


def _darknet_keys(path: Path) -> dict[str, str]:
    pairs = (line.partition("=") for line in read_text(path).splitlines() if "=" in line)
    return {key.strip(): value.strip() for key, _, value in pairs}


def _darknet_layout(path: Path) -> YoloLayout:
    keys = _darknet_keys(path)
    layout = YoloLayout(path, path.parent, (), {})
    if "names" not in keys:
        raise DataError(f"{path}: expected names = and the file that has them")
    # Paths are relative to the folder from which Darknet was started: their last parts lie here.
    names = _lines(layout.place(keys["names"], allow_outside=False)[0])
    return YoloLayout(path, path.parent, names, {key: (keys[key],) for key in SPLITS if keys.get(key)})


def _lines(path: Path) -> tuple[str, ...]:
    names = tuple(line.strip() for line in read_text(path).splitlines())
    while names and not names[-1]:
        names = names[:-1]
    if not names or not all(names):
        raise DataError(f"{path}: expected a class on each line{', found an empty line' if names else ''}")
    return names


def _agreed_names(folder: Path) -> tuple[str, ...]:
    """Return the names of classes in a folder; labelImg writes them beside each split, and their order may differ."""
    files = list(_name_files(folder))
    if not files:
        raise DataError(
            f"{shown(folder)}: nothing names the classes of YOLO's labels: write them into classes.txt there, one on "
            "each line in order of their numbers, or write a data.yaml"
        )
    names = _lines(files[0])
    for other in files[1:]:
        if other.name == files[0].name and (other_names := _lines(other)) != names:
            raise DataError(
                f"{files[0]} has {', '.join(names)[:100]}, but {other} {', '.join(other_names)[:100]}: the same number "
                "would mean two classes; correct one of them and its label files"
            )
    return names


def _splits_here(folder: Path) -> dict[str, tuple[str, ...]]:
    """Return the splits of a folder that has no file of splits: lists, folders named after splits, or all as train."""
    lists: dict[str, tuple[str, ...]] = {name: (f"{name}.txt",) for name in SPLITS if is_file(folder / f"{name}.txt")}
    if "train" in lists and not is_label_file(folder / "train.txt"):
        return lists
    for pattern in ("images/{}", "{}/images", "{}"):
        names = [name for name in SPLITS if is_folder(folder / pattern.format(name))]
        if "train" in names:
            return {name: (pattern.format(name),) for name in names}
    return {"train": ("images" if is_folder(folder / "images") else ".",)}


def yolo_splits(data: Path) -> dict[str, list[str]]:
    """Return the folders and lists of each split of the data that `find_yolo` found.

    Splits other than train whose folders are missing are skipped: exports list splits that they do not have.
    """
    layout = read_layout(data)
    return {
        name: [*items]
        for name, items in layout.splits.items()
        if name == "train" or any(_exists(layout, item) for item in items)
    }


def _exists(layout: YoloLayout, item: str) -> bool:
    try:
        layout.place(item, allow_outside=True)
    except DataError:
        return False
    return True
