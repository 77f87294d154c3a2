"""The pictures of a list of annotations, found when the data are opened; a missing one is an error when it is read."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

from boxwright.base.errors import DataError
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
        self._folder, self._paths = files.folder, [_find(files, name, where, notices) for name, where in names]

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


def _find(files: PictureFiles, name: str, where: str, notices: Notices) -> Path | str:
    """Return a picture's path, or why there is none."""
    if not name:
        return f"{where}: the picture has no name"
    try:
        path, assumed = files.find(name, where)
    except DataError as error:
        return str(error)
    if assumed:
        notices.assumed.add(assumed, name)
    return path
