"""Pictures in folders: which files are pictures, and which of them an annotation means.

Annotations name pictures as the machine that wrote them did: with backslashes, drive letters, addresses, folders of
another machine, in another case or another Unicode form. A name means the file of that name if it exists, and otherwise
the one file in the folder that its last parts name.
"""

from __future__ import annotations

import os
import unicodedata
from collections import defaultdict
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from urllib.parse import unquote, urlsplit

from boxwright.base.errors import DataError
from boxwright.base.files import is_folder, open_regular, shown
from boxwright.data.reading import is_outside

# Files with these endings are decoded; those with others are recognized by their first bytes.
PICTURE_ENDINGS = frozenset(
    {".jpg", ".jpeg", ".jpe", ".jfif", ".mpo", ".png", ".bmp", ".dib", ".gif", ".tif", ".tiff"}
    | {".webp", ".avif", ".ppm", ".pgm", ".pbm", ".pnm"}
)
# Files with these endings lie beside pictures, and are never opened to see whether they are pictures themselves.
_OTHER_ENDINGS = frozenset(
    {".txt", ".xml", ".json", ".jsonl", ".csv", ".yaml", ".yml", ".pbtxt", ".config", ".names", ".data", ".md"}
    | {".html", ".py", ".record", ".tfrecord", ".parquet", ".zip", ".tar", ".gz", ".pt", ".pth", ".onnx"}
    | {".npy", ".npz", ".cache", ".db"}
)
_HEAD = 32
_SPLITS = frozenset({"train", "val", "valid", "validation", "test"})
_CONTAINERS = {b"avif": "AVIF", b"avis": "AVIF", b"heic": "HEIC", b"heix": "HEIC", b"mif1": "HEIC", b"msf1": "HEIC"}
_MAGIC = (
    (b"\xff\xd8\xff", "JPEG"),
    (b"\x89PNG\r\n\x1a\n", "PNG"),
    (b"GIF8", "GIF"),
    (b"BM", "BMP"),
    (b"II*\0", "TIFF"),
    (b"MM\0*", "TIFF"),
    (b"\0\0\0\x0cjP  ", "JPEG 2000"),
    (b"\xff\x0a", "JPEG XL"),
    (b"\0\0\0\x0cJXL ", "JPEG XL"),
)


def is_left_over(name: str) -> bool:
    """Return whether a file or folder is no data: `._a.jpg` and `__MACOSX` of macOS, hidden, or inspect's own sheet."""
    return name.startswith((".", "contact-sheet.")) or name == "__MACOSX"


def picture_format(head: bytes) -> str:
    """Return the format of a picture by its first 32 bytes, such as "JPEG"; empty if they are of no known one."""
    if head[4:8] == b"ftyp":
        return _CONTAINERS.get(head[8:12], "")
    if head[:4] == b"RIFF" and head[8:12] == b"WEBP":
        return "WEBP"
    if len(head) > 2 and head[:1] == b"P" and head[1:2] in b"123456" and head[2:3].isspace():
        return "PPM"
    return next((name for start, name in _MAGIC if head.startswith(start)), "")


def count_webp_pixels(head: bytes) -> int:
    """Return the pixels that a WebP states in its first 32 bytes; 0 for other files and kinds of WebP."""
    if picture_format(head) != "WEBP" or len(head) < _HEAD:
        return 0
    if head[12:16] == b"VP8X":  # with alpha, frames or metadata
        return (int.from_bytes(head[24:27], "little") + 1) * (int.from_bytes(head[27:30], "little") + 1)
    if head[12:16] == b"VP8L":  # lossless
        sides = int.from_bytes(head[21:25], "little")
        return (sides % 2**14 + 1) * ((sides >> 14) % 2**14 + 1)
    if head[12:16] == b"VP8 ":
        return int.from_bytes(head[26:28], "little") % 2**14 * (int.from_bytes(head[28:30], "little") % 2**14)
    return 0


def is_picture(path: Path) -> bool:
    """Return whether a file is a picture, by its ending or, with an unknown one, by its first bytes."""
    ending = path.suffix.lower()
    if ending in PICTURE_ENDINGS:
        return True
    if ending in _OTHER_ENDINGS:
        return False
    try:
        with open_regular(path) as file:
            return bool(picture_format(file.read(_HEAD)))
    except OSError:
        return False


def pictures_in(folder: Path) -> list[Path]:
    """Return the pictures in a folder and below it, sorted; links are followed, systems' left-overs are not listed."""
    return sorted(path for path in files_below(folder) if is_picture(path))


def files_below(folder: Path) -> Iterator[Path]:
    """Yield the files in a folder and below it; links are followed, systems' left-overs are not listed."""
    seen = set()
    for parent, folders, names in os.walk(folder, followlinks=True):
        # A link to a folder above would be walked forever.
        real = os.path.realpath(parent)
        folders[:] = [] if real in seen else sorted(name for name in folders if not is_left_over(name))
        if real not in seen:
            # Sorted here as texts: paths take ten times as long.
            yield from (Path(parent, name) for name in sorted(names) if not is_left_over(name))
        seen.add(real)


def parts_of_name(name: str) -> tuple[str, ...]:
    r"""Return the folders and the file that an annotation's name has on any system, or as an address.

    `C:\Users\x\p1.png`, `..\images\p1.png` and `https://host/a%20b/p1.png?token=1` give their parts without drive,
    `..` and query.
    """
    if "://" in name:
        with suppress(ValueError):  # what only looks like an address
            name = unquote(urlsplit(name).path)
    plain = name.replace("\\", "/")
    if plain[1:2] == ":":
        plain = plain[2:]
    return tuple(part for part in plain.split("/") if part not in ("", ".", ".."))


def fold_name(text: str) -> str:
    """Return a name as systems compare it that ignore case and Unicode forms."""
    return unicodedata.normalize("NFC", text).casefold()


def _is_in_another_split(dropped: tuple[str, ...], path: Path) -> bool:
    """Return whether a name's folders say another split than a file's: val/4.png is not train/4.png."""
    stated = _SPLITS.intersection(dropped)
    actual = _SPLITS.intersection(path.parts[-4:])
    return bool(stated and actual and not stated & actual)


class PictureFiles:
    """The pictures in a folder by the names that annotations give them; folders are listed once, when first needed."""

    def __init__(self, folder: Path, *, allow_outside: bool = False) -> None:
        """Keep the folder.

        Args:
            folder: What names are relative to.
            allow_outside: Whether a name may lead outside the folder.
        """
        self.folder, self._allow_outside = folder, allow_outside
        self._listed: dict[str, frozenset[str]] = {}
        self._by_name: dict[str, list[Path]] | None = None
        self._by_stem: dict[str, list[Path]] | None = None
        self._pictures: list[Path] | None = None

    def pictures(self) -> list[Path]:
        """Return the pictures in the folder and below it, sorted."""
        if self._pictures is None:
            self._pictures = pictures_in(self.folder) if is_folder(self.folder) else []
        return self._pictures

    def find(self, name: str, where: str) -> tuple[Path, str]:
        """Return the picture that a name means, and what was assumed to find it; empty if it is named exactly.

        Args:
            name: As the annotation has it.
            where: The annotation, for errors.

        Raises:
            DataError: If no picture has this name, several may be meant, or it lies outside the folder.
        """
        if "\0" in name:
            raise DataError(f"{where}: {shown(name)!r} is not a file name: it has a null byte")
        path = self.folder / name
        # Most names lead down, which needs no look at the whole path.
        outside = (".." in name or os.path.isabs(name)) and is_outside(path, self.folder)
        if name and (self._allow_outside or not outside) and self._exists(path):
            return path, ""
        parts = parts_of_name(name)
        for start in range(len(parts)):
            candidates = [
                path for path in self._named("/".join(parts[start:])) if not _is_in_another_split(parts[:start], path)
            ]
            if len(candidates) > 1:
                names = " or ".join(shown(candidate.relative_to(self.folder)) for candidate in candidates[:2])
                raise DataError(f"{where}: {shown(name)!r} may be {names} in {shown(self.folder)}; rename one of them")
            if candidates:
                return candidates[0], self._assumption(name, candidates[0])
        if outside and not self._allow_outside and os.path.lexists(path):
            raise DataError(
                f"{where}: {shown(name)!r} lies outside {shown(self.folder)}; if that is intended, set "
                "allow_paths_outside in the reader, or pass it when opening the data"
            )
        raise DataError(f"{where}: no picture {shown(name)!r} in {shown(self.folder)}")

    def with_stem(self, stem: str) -> list[Path]:
        """Return the pictures whose name without ending, or with their folder below this one, is a text.

        Only if there is none, those of another case or Unicode form.
        """
        if self._by_stem is None:
            self._by_stem = defaultdict(list)
            for path in self.pictures():
                self._by_stem[fold_name(path.stem)].append(path)
        parts = parts_of_name(stem)
        same_stem = self._by_stem.get(fold_name(parts[-1]), []) if parts else []
        named = [path for path in same_stem if path.stem == parts[-1]] or same_stem
        if len(parts) > 1 or len(named) > 1:
            wanted = fold_name("/".join(parts))
            exact = [
                path for path in named if fold_name(path.relative_to(self.folder).with_suffix("").as_posix()) == wanted
            ]
            return exact or ([] if len(parts) > 1 else named)
        return named

    def _exists(self, path: Path) -> bool:
        folder, name = os.path.split(path)
        if folder not in self._listed:
            try:
                self._listed[folder] = frozenset(os.listdir(folder or "."))
            except (OSError, ValueError):
                self._listed[folder] = frozenset()
        return name in self._listed[folder]

    def _named(self, name: str) -> list[Path]:
        """Return the files below the folder whose last parts are a name in any case and Unicode form."""
        if self._by_name is None:
            self._by_name = defaultdict(list)
            for path in files_below(self.folder) if is_folder(self.folder) else ():
                self._by_name[fold_name(path.name)].append(path)
        wanted = tuple(fold_name(part) for part in name.split("/"))
        named = []
        for path in self._by_name.get(wanted[-1], ()):
            own = tuple(fold_name(part) for part in path.relative_to(self.folder).parts)
            if own[-len(wanted) :] == wanted:
                named.append(path)
        # a.JPG and a.jpg are two files where case counts; the name decides then.
        exact = [path for path in named if path.name == name.rsplit("/", 1)[-1]]
        return exact or named

    def _assumption(self, name: str, path: Path) -> str:
        if "://" in name:
            return "pictures named by an address, read from the folder"
        plain = name.replace("\\", "/")
        if plain.startswith("/") or plain[1:2] == ":":
            return "pictures named by another machine's path, read from the folder"
        own = path.relative_to(self.folder).as_posix()
        if own == "/".join(parts_of_name(name)):
            return "pictures named with backslashes, or by .."
        if fold_name(own) == fold_name("/".join(parts_of_name(name))):
            return "pictures whose name differs in upper and lower case or Unicode's form"
        return "pictures that lie in another folder than their annotation says"
