"""C sources compiled where they run: whole or not at all, once, and a reason where that fails."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from boxwright.base.c_compiler import CompilerError, compiled_library

TWICE = "int twice(int value) { return 2 * value; }\n"


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("BOXWRIGHT_CACHE", str(tmp_path / "cache"))
    return tmp_path / "cache" / "native"


@pytest.fixture
def source(tmp_path: Path) -> Path:
    path = tmp_path / "twice.c"
    path.write_text(TWICE)
    return path


def test_a_source_is_compiled_once(source: Path, cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert compiled_library(source).twice(21) == 42
    (first,) = cache.iterdir()
    written = first.stat().st_mtime_ns
    monkeypatch.setattr(subprocess, "run", None)  # nothing is run for what is there
    assert compiled_library(source).twice(4) == 8
    assert first.stat().st_mtime_ns == written


def test_another_source_is_another_library(source: Path, cache: Path) -> None:
    compiled_library(source)
    source.write_text(TWICE.replace("2 *", "3 *"))
    assert compiled_library(source).twice(21) == 63
    assert len(list(cache.iterdir())) == 2


def test_several_at_once(source: Path, cache: Path) -> None:
    with ThreadPoolExecutor(4) as pool:
        assert [library.twice(2) for library in pool.map(lambda _: compiled_library(source), range(4))] == [4] * 4
    assert len(list(cache.iterdir())) == 1  # and no folder of an attempt


def test_without_a_compiler(source: Path, cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CC", "no-such-compiler")
    with pytest.raises(CompilerError, match="^no C compiler: no-such-compiler is not found$"):
        compiled_library(source)
    assert not cache.exists()


def test_what_does_not_compile_leaves_nothing(source: Path, cache: Path) -> None:
    source.write_text("int twice(")
    with pytest.raises(CompilerError, match="twice.c") as caught:
        compiled_library(source)
    assert len(str(caught.value).splitlines()) == 1
    assert not list(cache.iterdir())


def test_what_others_may_write_is_not_loaded(source: Path, cache: Path) -> None:
    compiled_library(source)
    (library,) = cache.iterdir()
    library.chmod(0o777)
    with pytest.raises(CompilerError, match="writable for others"):
        compiled_library(source)


@pytest.mark.parametrize("damage", [lambda whole: whole[:1000], lambda whole: b"", lambda whole: bytes(len(whole))])
def test_a_damaged_library_is_compiled_again(
    damage: Callable[[bytes], bytes], source: Path, cache: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    compiled_library(source)
    (library,) = cache.iterdir()
    # In another folder: the system loads a library once for each path.
    monkeypatch.setenv("BOXWRIGHT_CACHE", str(tmp_path / "other"))
    damaged = tmp_path / "other" / "native" / library.name
    damaged.parent.mkdir(parents=True)
    damaged.write_bytes(damage(library.read_bytes()))
    assert compiled_library(source).twice(21) == 42
    assert damaged.read_bytes() == library.read_bytes()


def test_a_cache_that_cannot_be_written(source: Path, tmp_path: Path) -> None:
    (tmp_path / "cache").write_text("a file in the folder's place")
    with pytest.raises(CompilerError, match="twice.c"):
        compiled_library(source)


@pytest.mark.slow
def test_the_kernels_find_the_openmp_of_pytorch() -> None:
    """Loaded into a process that has imported PyTorch alone, they have no threads of a second OpenMP."""
    script = (
        "import torch, ctypes\n"
        "from boxwright.nn.ops.norm_act import kernels\n"
        "assert isinstance(kernels(), ctypes.CDLL), kernels()\n"
        "maps = open('/proc/self/maps').read().split()\n"
        "print(len({name for name in maps if 'libgomp' in name or 'libomp' in name or 'libiomp' in name}))\n"
    )
    if sys.platform != "linux":
        pytest.skip("/proc lists what a process has loaded on Linux alone")
    ran = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=False)
    assert (ran.returncode, ran.stdout.strip()) == (0, "1"), ran.stderr
