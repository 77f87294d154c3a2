"""The pictures of a list of annotations, found when the data are opened; a missing one is an error when it is read."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from pathlib import Path

from boxwright.base.errors import DataError
from boxwright.base.files import shown
from boxwright.data.notices import Notices
from boxwright.data.picture_files import PictureFiles


class LocatedPictures:
    """The picture of each sample of a data set, by index."""

    def __init__(
        self,
        files: PictureFiles | Path,
        names: Iterable[tuple[str, str]],
        notices: Notices,
        *,
        allow_outside: bool = False,
    ) -> None:
        """Find the pictures.

        Args:
            files: Those of the folder that names are relative to, or the folder.
            names: Each picture's name, and its annotation for errors.
            notices: Where to count what was assumed.
            allow_outside: Whether a name may lead outside a folder.
        """
        if isinstance(files, Path):
            files = PictureFiles(files, allow_outside=allow_outside)
        named = list(names)
        self._folder = files.folder
        self._paths = _assign_pictures([_find(files, name, where) for name, where in named], named, notices)

    def path(self, index: int) -> Path:
        """Return a picture's path.

        Raises:
            DataError: If there is no such picture.
        """
        path = self._paths[index]
        if isinstance(path, str):
            raise DataError(path)
        return path

    def paths(self) -> list[Path]:
        """Return the paths of the pictures that there are."""
        return [path for path in self._paths if isinstance(path, Path)]

    def name(self, index: int, given: str) -> str:
        """Return the name that an annotation gives; or, if the picture was found otherwise, its place in the folder."""
        path = self._paths[index]
        if isinstance(path, str) or path == self._folder / given:
            return given
        return path.relative_to(self._folder).as_posix()


def _find(files: PictureFiles, name: str, where: str) -> tuple[Path | str, str]:
    """Return a picture's path, or why there is none; and what was assumed."""
    if not name:
        return f"{where}: the picture has no name", ""
    try:
        return files.find(name, where)
    except DataError as error:
        return str(error), ""


def _assign_pictures(
    located: Sequence[tuple[Path | str, str]], named: Sequence[tuple[str, str]], notices: Notices
) -> list[Path | str]:
    """Return the pictures' paths; a picture that several names mean is that of the one which names it exactly.

    The others' pictures are missing: taken for the last part of their name alone, they would get another's.
    """
    users = Counter(path for path, _ in located if isinstance(path, Path))
    paths: list[Path | str] = []
    for (path, assumed), (name, where) in zip(located, named, strict=True):
        if isinstance(path, Path) and assumed and users[path] > 1:
            paths.append(f"{where}: no picture {shown(name)!r}; {shown(path)} is that of another annotation")
            continue
        if isinstance(path, Path) and users[path] > 1:
            notices.assumed.add("pictures that several annotations name", name)
        elif assumed:
            notices.assumed.add(assumed, name)
        paths.append(path)
    return paths
