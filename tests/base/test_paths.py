"""Paths: addresses, empty texts, sources as targets, and foreign pages."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from boxwright.base.errors import ConfigError, OutputError
from boxwright.base.files import make_folder, write_whole
from boxwright.base.paths import refuse_foreign_page, refuse_source, require_path


@pytest.mark.parametrize("path", ["s3://bucket/run", "gs://b", "file:///tmp/a", "HTTPS://host/a", "s3:/bucket/run"])
def test_an_address_is_no_path(path: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Also where it came through `Path`, which makes one slash of two, and to functions that are called from Python."""
    monkeypatch.chdir(tmp_path)
    with pytest.raises(ConfigError, match="^--out: expected a path, found the address"):
        require_path(path, "--out")
    with pytest.raises(OutputError, match="found the address"):
        make_folder(Path(path))
    with pytest.raises(OutputError, match="found the address"):
        write_whole(Path(path), b"")
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("path", ["a", ".", "C:\\data", "c:/data", "a b/://", "./s3:/x", "data@10", "preset:a", "/a:b"])
def test_paths_are_kept(path: str) -> None:
    assert require_path(path) == Path(path)


def test_an_empty_text_is_no_path() -> None:
    with pytest.raises(ConfigError, match=r"^--out: expected a path, found an empty text; the current folder is \."):
        require_path("", "--out")


def test_a_target_that_is_the_source(tmp_path: Path) -> None:
    """By what the system opens, not by its name."""
    source, folder = tmp_path / "a.json", tmp_path / "folder"
    source.write_text("{}")
    folder.mkdir()
    os.link(source, tmp_path / "hard.json")
    (tmp_path / "soft.json").symlink_to(source)
    for target in (source, folder / ".." / "a.json", tmp_path / "hard.json", tmp_path / "soft.json"):
        with pytest.raises(OutputError, match="this is the source .*a.json itself"):
            refuse_source(target, [tmp_path / "other", source])
    with pytest.raises(OutputError, match="this is the source"):
        refuse_source(tmp_path / "folder", [folder])
    refuse_source(tmp_path / "b.json", [source])
    refuse_source(source, [tmp_path / "b.json", "a\0"])


def test_a_page_of_others_stays(tmp_path: Path) -> None:
    refuse_foreign_page(tmp_path)
    (tmp_path / "index.html").write_text("<title>Data – Boxwright</title>", encoding="utf-8")
    refuse_foreign_page(tmp_path)
    (tmp_path / "index.html").write_text("<title>My site</title>")
    with pytest.raises(OutputError, match=r"index\.html: this page is not from Boxwright"):
        refuse_foreign_page(tmp_path)
