"""Diagnosing a file that is not what its name says, by the few ways in which downloads go wrong."""

from __future__ import annotations

from pathlib import Path

_HEAD = 512
_MARKS = (
    (
        b"version https://git-lfs.github.com/spec/",
        "a Git LFS pointer, not the file itself; fetch the file with `git lfs pull`",
    ),
    (b"<!doctype html", "a web page, not the file that its name says; download it again"),
    (b"<html", "a web page, not the file that its name says; download it again"),
    (b"<?xml", "an XML text, such as a server's error, not the file that its name says; download it again"),
)


def diagnose_wrong_file(file: str | Path | bytes) -> str:
    """Return what a file (a path, or its bytes) is instead of the expected kind; empty if unknown."""
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
