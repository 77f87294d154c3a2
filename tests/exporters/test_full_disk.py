"""A disk that fills while an export is written: an error with the file's name, and nothing half written."""

from __future__ import annotations

import resource
import signal
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from boxwright.base.errors import OutputError
from boxwright.exporters.export import FORMATS, _naming
from boxwright.exporters.onnx_file import onnx_model, openvino_model
from tests.exporters.test_litert import lite
from tests.exporters.tiny_exports import ABOUT, LITERT_ABOUT, Tiny, program_of

MADE: dict[str, Callable[[], Any]] = {
    "onnx": lambda: onnx_model(program_of(Tiny())),
    "openvino": lambda: openvino_model(onnx_model(program_of(Tiny())).SerializeToString()),
    "litert": lambda: lite()[0],
    "pt2": lambda: program_of(Tiny()),
}


@contextmanager
def limited(most: int) -> Iterator[None]:
    """Let no file become larger, so that writing fails as on a full disk; only here, as pytest's own log is a file too."""
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    before = signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    resource.setrlimit(resource.RLIMIT_FSIZE, (most, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
        signal.signal(signal.SIGXFSZ, before)


def test_every_format_is_here() -> None:
    assert set(MADE) == set(FORMATS)


@pytest.mark.slow_cases("onnx", "pt2")
@pytest.mark.parametrize("format", MADE)
def test_a_full_disk_is_an_error_with_the_files_name(format: str, tmp_path: Path) -> None:
    made, kind = MADE[format](), FORMATS[format]  # type: ignore[index]
    scratch, path = tmp_path / ".d", tmp_path / f"detector{kind.suffix}"
    scratch.mkdir()
    about = LITERT_ABOUT if format == "litert" else ABOUT
    for most in (0, 50, 1500):
        with pytest.raises(OutputError, match=f"detector{kind.suffix}: could not be written") as problem:  # noqa: SIM117
            with _naming(path, scratch), limited(most):
                kind.save(made, about, scratch / path.name)
        assert "\n" not in str(problem.value)
        assert ".d/" not in str(problem.value)
        assert not path.exists()
