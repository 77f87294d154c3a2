"""YOLO's `data.yaml`: the names of classes, the lists of splits, and the shape of keypoints."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import yaml

from boxwright.base.errors import DataError, first_line
from boxwright.base.files import file_size
from boxwright.base.text import is_count
from boxwright.base.yaml_text import load_yaml
from boxwright.data.reading import read_text

_LARGEST = 2**20  # bytes
_MOST_KEYPOINTS = 1000


class _Loader(yaml.SafeLoader):
    """Reads yes, no, on and off as text."""


# A class may be called no, on or yes, which YAML 1.1 reads as truth values.
_Loader.yaml_implicit_resolvers = {
    first: [(tag, pattern) for tag, pattern in resolvers if tag != "tag:yaml.org,2002:bool"]
    for first, resolvers in yaml.SafeLoader.yaml_implicit_resolvers.items()
}


def read_data_yaml(path: Path) -> dict[Any, Any]:
    """Return the content of a `data.yaml`.

    Raises:
        DataError: If it is not YAML, not a mapping, or too large.
    """
    if file_size(path) > _LARGEST:
        raise DataError(f"{path}: more than {_LARGEST} bytes: not a data.yaml of YOLO's")
    text = read_text(path)
    try:
        content = load_yaml(text, _Loader)
    except (yaml.YAMLError, ValueError, RecursionError) as error:
        hint = "; in paths, write / in place of \\" if "\\" in text else ""
        raise DataError(f"{path}: not YAML: {first_line(error)}{hint}") from None
    if not isinstance(content, dict):
        raise DataError(f"{path}: expected names and lists of images")
    return content


def yaml_names(content: dict[Any, Any], path: Path, *, from_one: bool = False) -> tuple[str, ...]:
    """Return the names of classes 0, 1, …, given as list or mapping.

    Args:
        from_one: Whether the keys of a mapping may be 1, 2, … as well.

    Raises:
        DataError: If there are none, or one has no name, or they are not as many as `nc`.
    """
    given, count = content.get("names"), content.get("nc")
    if given is None and count is not None:
        raise DataError(f"{path}: nc is there, but no names: add them, such as names: [cat, dog]")
    if isinstance(given, dict) and given:
        given = _by_number(given, path, from_one=from_one)
    if not isinstance(given, list) or not given:
        raise DataError(f"{path}: names: expected a list of class names, or a mapping from 0, 1, … to them")
    for number, name in enumerate(given):
        # YAML reads a class named 7 as a number, which is fine, and one named null as none, whose spelling is lost.
        if name is None:
            raise DataError(f'{path}: names: class {number} has no name; write one called null in quotes ("null")')
        if not isinstance(name, str | int):
            raise DataError(
                f"{path}: names: expected a list of class names, or a mapping from 0, 1, … to them; class {number} is "
                f"a {type(name).__name__}: write it as text, in quotes"
            )
    if isinstance(count, str | int) and str(count) != str(len(given)):
        raise DataError(f"{path}: nc is {str(count)[:20]}, but names has {len(given)}; correct one of the two")
    return tuple(map(str, given))


def _by_number(names: dict[Any, Any], path: Path, *, from_one: bool) -> list[Any]:
    numbered: dict[int, Any] = {}
    for key, name in names.items():
        # JSON has no other keys than text.
        whole = isinstance(key, int) and not isinstance(key, bool)
        if not whole and not (isinstance(key, str) and is_count(key.strip())):
            raise DataError(f"{path}: names: expected a list of class names, or a mapping from 0, 1, … to them")
        if int(key) in numbered:
            raise DataError(f"{path}: names: class {int(key)} is there twice")
        numbered[int(key)] = name
    first = 1 if from_one and 0 not in numbered else 0
    wanted = range(first, first + len(numbered))
    if missing := [number for number in wanted if number not in numbered]:
        known = ", ".join(map(str, sorted(numbered)[:8]))
        raise DataError(
            f"{path}: names: class {missing[0]} is missing (there are {known}): number classes from {first} without a "
            "gap; a class that no object has needs a name too"
        )
    return [numbered[number] for number in wanted]


def yaml_keypoints(content: dict[Any, Any], path: Path) -> tuple[int, int] | None:
    """Return how many keypoints an object has, and how many numbers (2 or 3) each; None if there are none.

    Raises:
        DataError: If `kpt_shape` is something else.
    """
    shape = content.get("kpt_shape")
    if shape is None:
        return None
    if (
        not isinstance(shape, list)
        or [type(number) for number in shape] != [int, int]
        or not 1 <= shape[0] <= _MOST_KEYPOINTS
        or shape[1] not in (2, 3)
    ):
        raise DataError(f"{path}: kpt_shape: expected the number of keypoints, and 2 or 3 numbers each, as [17, 3]")
    return shape[0], shape[1]


def yaml_keypoint_names(content: dict[Any, Any], path: Path, number: int, count: int) -> tuple[str, ...]:
    """Return the names of a class's keypoints in `kpt_names`; by default `point 1`, `point 2`, ….

    Args:
        number: The class, from 0.
        count: How many keypoints an object has.

    Raises:
        DataError: If names are given, but not as many as keypoints.
    """
    given = content.get("kpt_names")
    names = given.get(number) if isinstance(given, dict) else given
    if names is None:
        return tuple(f"point {place + 1}" for place in range(count))
    if not isinstance(names, list) or len(names) != count or not all(isinstance(name, str) for name in names):
        raise DataError(f"{path}: kpt_names: expected {count} names for class {number}")
    return tuple(names)


def yaml_lists(content: dict[Any, Any], key: str, path: Path) -> tuple[str, ...]:
    """Return the folders and lists of a split, relative to the file's folder; none if the file has no such split.

    Raises:
        DataError: If they are not text.
    """
    value, root = content.get(key), content.get("path") or ""
    items = value if isinstance(value, list) else [] if value in (None, "") else [value]
    if not all(isinstance(item, str) for item in items) or not isinstance(root, str):
        name = key if isinstance(root, str) else "path"
        raise DataError(f"{path}: {name}: expected the name of a folder or a list of images")
    return tuple(item if not root or _is_absolute(item) else f"{root}/{item}" for item in items)


def _is_absolute(name: str) -> bool:
    return name.startswith(("/", "\\")) or name[1:2] == ":" or "://" in name
