"""Exported files under the fuzzer: none but the one that was written opens, and edited ones end in a line.

An edited file that opens may find anything; it may not crash, hang, or raise what is no error of ours.
"""

from __future__ import annotations

import zlib
from pathlib import Path

import numpy as np

from boxwright.base.errors import BoxwrightError
from boxwright.weights.exports import open_export
from tests.exporters.tiny_exports import tiny_export
from tests.fuzz.reader import AcceptedError, Reader

# Between the .xml and the .bin of one input.
_BESIDE = b"\n<!-- weights -->\n"
PICTURES = [np.full((20, 30, 3), 51, np.uint8), np.zeros((1, 1, 3), np.uint8)]


def _export(suffix: str, edited_one_of: int = 1) -> Reader:
    """Return the reader of a format.

    Args:
        suffix: Of its files.
        edited_one_of: Of so many inputs, how often one is opened as an edited file, which costs a process.
    """

    def seeds() -> list[bytes]:
        path = tiny_export(suffix)
        beside = path.with_suffix(".bin")
        return [path.read_bytes() + (_BESIDE + beside.read_bytes() if suffix == ".xml" else b"")]

    def read(data: bytes, folder: Path) -> None:
        path = folder / f"a{suffix}"
        first, _, second = data.partition(_BESIDE)
        path.write_bytes(first)
        if suffix == ".xml":
            path.with_suffix(".bin").write_bytes(second)
        try:
            open_export(path)
        except BoxwrightError:
            if zlib.crc32(data) % edited_one_of:
                raise
        else:
            if data not in seeds() and _meaning(path) != _meaning(tiny_export(suffix)):
                raise AcceptedError("a changed file was opened")
        open_export(path, allow_edited=True).detect(PICTURES)

    return Reader(seeds, read)


def _meaning(path: Path) -> object:
    """Return what is in a file: of an archive its members, as bytes between them mean nothing."""
    if path.suffix != ".pt2":
        return path.read_bytes()
    from boxwright.runtime.export_file import unpacked_members

    return unpacked_members(path.read_bytes(), "it")


EXPORT_READERS = {
    "onnx": _export(".onnx"),
    "openvino": _export(".xml", edited_one_of=10),
    "pt2": _export(".pt2"),
    "litert": _export(".tflite", edited_one_of=10),
}
