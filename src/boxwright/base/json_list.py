"""Reading a JSON list that may not fit in memory, item by item."""

from __future__ import annotations

import codecs
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from boxwright.base.errors import DataError
from boxwright.base.files import cause, shown

_CHUNK = 1 << 20
_SPACE = " \t\n\r"


def read_json_list(path: str | Path) -> Iterator[dict[str, Any]]:
    """Yield the objects of a file that is a list of them; memory holds a megabyte of it, or one object if that is more.

    Raises:
        DataError: If the file cannot be read or is not JSON, or anything else; objects before the mistake have been
            yielded by then.
    """
    text = _StreamedText(path)
    if text.after_space() != "[":
        raise text.error("expected [")
    text.skip()
    if text.after_space() != "]":
        yield text.item()
        while text.after_space() == ",":
            text.skip()
            yield text.item()
    if text.after_space() != "]":
        raise text.error("expected , or ]")
    text.skip()
    if text.after_space():
        raise text.error("expected nothing after the list")


class _StreamedText:
    """The text of a file from a place on, read as far as it is needed."""

    def __init__(self, path: str | Path) -> None:
        self._path, self._buffer, self._place, self._done = path, "", 0, False
        self._decoder, self._passed = json.JSONDecoder(), 0
        self._pieces = self._read()

    def _read(self) -> Iterator[str]:
        try:
            with Path(self._path).open("rb") as file:
                decoder = codecs.getincrementaldecoder("utf-8")()
                while chunk := file.read(_CHUNK):
                    yield decoder.decode(chunk)
                yield decoder.decode(b"", final=True)
        except UnicodeDecodeError as error:
            raise DataError(f"{shown(self._path)}: not JSON: {error}") from None
        except (OSError, ValueError) as error:  # ValueError: a name with a null byte
            raise DataError(f"{shown(self._path)}: {cause(error)}") from None

    def _read_more(self) -> bool:
        piece = next(self._pieces, None)
        if piece is None:
            return False
        self._passed += self._place
        self._buffer, self._place = self._buffer[self._place :] + piece, 0
        return True

    def after_space(self) -> str:
        """Return the next character that is no space, and stay before it; nothing at the end."""
        while True:
            while self._place < len(self._buffer):
                if self._buffer[self._place] not in _SPACE:
                    return self._buffer[self._place]
                self._place += 1
            if not self._read_more():
                return ""

    def skip(self) -> None:
        """Pass a character."""
        self._place += 1

    def rest(self) -> str:
        """Return what of the text has been read."""
        return self._buffer[self._place :]

    def item(self) -> dict[str, Any]:
        """Pass an object and return it."""
        if self.after_space() != "{":
            raise self.error("expected an object")
        while True:
            item: dict[str, Any]
            try:
                item, self._place = self._decoder.raw_decode(self._buffer, self._place)
            except (ValueError, RecursionError) as error:
                if isinstance(error, RecursionError) or not self._read_more():
                    raise self.error(getattr(error, "msg", str(error))) from None
            else:
                return item

    def error(self, problem: str) -> DataError:
        """Return the error of a mistake at this place."""
        rest = repr(self.rest()[:20]) if self.rest() else "the end"
        where = f"character {self._passed + self._place}"
        return DataError(f"{shown(self._path)}: not JSON that is a list of objects: {problem[:200]}, {where}: {rest}")
