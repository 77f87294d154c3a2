"""Files that are none: pipes, devices and sockets under the names of what people bring."""

from __future__ import annotations

import os
import re
import socket
from collections.abc import Callable
from pathlib import Path

import pytest

import boxwright
from boxwright.base.errors import DataError
from boxwright.base.files import diagnose_wrong_file, open_regular, read_bytes, read_file, reading_file

# Where files are opened otherwise: those of the installation and the system, those that this program has written, files
# after a look at what they are, and a server's key, which may come through a pipe.
OPENED_OTHERWISE = {
    "api/pictures.py",
    "base/paths.py",
    "base/threads.py",
    "cli/benchmarking/preset_costs.py",
    "cli/compare.py",
    "cli/demo_cells.py",
    "cli/evaluate.py",
    "cli/predict.py",
    "cli/serve.py",
    "config/preset.py",
    "exporters/export.py",
    "exporters/int8.py",
    "exporters/litert_file.py",
    "exporters/onnx_file.py",
    "inference/context_memory.py",
    "inference/serving/app.py",
    "inference/serving/decoder_child.py",
    "report/monitor.py",
    "report/page.py",
    "report/tables.py",
    "training/autoconfig/start.py",
    "training/lock.py",
    "training/log.py",
    "training/rehearsal.py",
    "weights/download.py",
    "weights/known_answers.py",
    "weights/published.py",
}


def pipe(path: Path) -> None:
    os.mkfifo(path)


def endless(path: Path) -> None:
    path.symlink_to("/dev/zero")


def listening(path: Path) -> None:
    with socket.socket(socket.AF_UNIX) as server:
        server.bind(str(path))


@pytest.mark.parametrize(
    ("make", "reason"),
    [
        (pipe, "expected a file, found a pipe"),
        (endless, "expected a file, found a device"),
        (listening, "No such device or address"),  # the system opens no socket
        (Path.mkdir, "Is a directory"),
    ],
)
def test_what_is_no_file_is_refused_at_once(
    make: Callable[[Path], None], reason: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Reading a pipe would wait for a writer, and a device may have no end."""
    monkeypatch.chdir(tmp_path)  # the name of a socket has to be short
    path = Path("x.png")
    make(path)
    before = len(os.listdir("/proc/self/fd"))
    with pytest.raises(DataError, match=f"^x.png: {reason}$"):
        read_file(path)
    with pytest.raises(DataError, match=f"^x.png: {reason}$"), reading_file(path):
        pass
    assert diagnose_wrong_file(path) == ""
    assert len(os.listdir("/proc/self/fd")) == before


def test_links_to_files_are_followed(tmp_path: Path) -> None:
    """Caches and mounts consist of them."""
    (tmp_path / "file").write_bytes(b"content")
    (tmp_path / "link").symlink_to("file")
    assert read_bytes(tmp_path / "link") == b"content"
    with open_regular(tmp_path / "link") as file:
        assert file.read() == b"content"
        assert not os.get_inheritable(file.fileno())


def test_a_file_that_is_too_large_is_not_read(tmp_path: Path) -> None:
    with (tmp_path / "sparse").open("wb") as file:
        file.truncate(10**13)
    with pytest.raises(DataError, match="20,000,000,000 allowed .BOXWRIGHT_MAX_FILE_BYTES raises that"):
        read_file(tmp_path / "sparse")


def test_everything_is_opened_by_one_function() -> None:
    """A new reader that opens files by itself is found here."""
    opening = re.compile(r"\.open\(\"rb|\.read_bytes\(\)|\bopen\([^)]*\"rb\"|\.read_text\(|gzip\.open\(|np\.load\([^i]")
    root = Path(boxwright.__file__).parent
    files = {path.relative_to(root).as_posix(): path.read_text("utf-8") for path in root.rglob("*.py")}
    found = {name for name, text in files.items() if opening.search(text)}
    assert found - {"base/files.py"} == OPENED_OTHERWISE
