"""What a file is that was fetched in place of another: downloads go wrong in a few ways, each with a name."""

from __future__ import annotations

from pathlib import Path

_HEAD = 512
_MARKS = (
    (
        b"version https://git-lfs.github.com/spec/",
        "a pointer of Git LFS, not the file itself; fetch that by `git lfs pull`",
    ),
    (b"<!doctype html", "a web page, not the file that its name says; fetch that again"),
    (b"<html", "a web page, not the file that its name says; fetch that again"),
    (b"<?xml", "an XML text, such as a server's error, not the file that its name says; fetch that again"),
)


def what_it_is_instead(file: str | Path | bytes) -> str:
    """Say what a file is that cannot be read as what it should be; empty where that does not show.

    Args:
        file: The path, or the file's bytes.
    """
    if isinstance(file, bytes):
        head = file[:_HEAD]
    else:
        try:
            with Path(file).open("rb") as opened:
                head = opened.read(_HEAD)
        except (OSError, ValueError):
            return ""
    if not head:
        return "empty: nothing was written to it, or nothing arrived"
    start = head.lstrip(b"\xef\xbb\xbf \t\r\n").lower()
    return next((name for mark, name in _MARKS if start.startswith(mark)), "")
