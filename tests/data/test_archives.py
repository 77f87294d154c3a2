"""Archives of data, the hostile ones among them: nothing is written outside their folder."""

from __future__ import annotations

import io
import os
import stat
import tarfile
import zipfile
from pathlib import Path

import pytest

from boxwright.base.errors import DataError, OutputError
from boxwright.data.archives import is_archive, unpacked

FILES = {"set/images/a.txt": b"a", "set/b.txt": b"bb", "__MACOSX/set/._b.txt": b"x", "set/._b.txt": b"x"}
KEPT = {"set/images/a.txt": b"a", "set/b.txt": b"bb"}


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("BOXWRIGHT_CACHE", str(tmp_path / "cache"))
    return tmp_path / "cache"


def write_zip(path: Path, files: dict[str, bytes]) -> Path:
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive:
        for name, data in files.items():
            archive.writestr(name, data)
    return path


def write_tar(path: Path, *members: tuple[tarfile.TarInfo, bytes]) -> Path:
    mode = {".gz": "w:gz", ".tgz": "w:gz", ".xz": "w:xz", ".bz2": "w:bz2"}.get(path.suffix, "w")
    with tarfile.open(path, mode) as archive:  # type: ignore[call-overload]
        for member, data in members:
            archive.addfile(member, io.BytesIO(data))
    return path


def member(
    name: str, data: bytes = b"", kind: bytes = tarfile.REGTYPE, link: str = ""
) -> tuple[tarfile.TarInfo, bytes]:
    info = tarfile.TarInfo(name)
    info.size, info.type, info.linkname = len(data), kind, link
    return info, data


def content(folder: Path) -> dict[str, bytes]:
    return {path.relative_to(folder).as_posix(): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


def left_in(cache: Path) -> list[Path]:
    return [path for path in cache.rglob("*") if path.is_file() or path.name.endswith(".partial")]


@pytest.mark.parametrize("name", ["a.zip", "A.ZIP", "a.tar", "a.tar.gz", "a.tgz", "a.tar.xz", "a.tar.bz2"])
def test_archives_are_unpacked_once(name: str, tmp_path: Path, cache: Path) -> None:
    path = tmp_path / name
    if name.lower().endswith(".zip"):
        write_zip(path, FILES)
    else:
        folder = member("set", kind=tarfile.DIRTYPE)
        write_tar(path, folder, *(member(each, data) for each, data in FILES.items()))
    assert is_archive(path)
    folder = unpacked(path)
    assert content(folder) == KEPT
    assert folder.is_relative_to(cache)
    (folder / "set/b.txt").write_bytes(b"kept")
    assert content(unpacked(path))["set/b.txt"] == b"kept"
    os.utime(path, ns=(1, 1))
    assert content(unpacked(path)) == KEPT, "a changed archive is another"


def test_names_of_windows(tmp_path: Path) -> None:
    info = zipfile.ZipInfo("x")
    info.filename = "set\\images\\a.txt"
    with zipfile.ZipFile(tmp_path / "a.zip", "w") as archive:
        archive.writestr(info, b"a")
    assert content(unpacked(tmp_path / "a.zip")) == {"set/images/a.txt": b"a"}


@pytest.mark.parametrize("name", ["../evil", "a/../../evil", "/tmp/evil", "C:\\evil", "..\\evil", "a/..\\..\\evil"])
@pytest.mark.parametrize("ending", [".zip", ".tar"])
def test_names_that_leave_the_folder(name: str, ending: str, tmp_path: Path, cache: Path) -> None:
    path = tmp_path / f"a{ending}"
    if ending == ".zip":
        write_zip(path, {"fine.txt": b"1", name: b"2"})
    else:
        write_tar(path, member("fine.txt", b"1"), member(name, b"2"))
    with pytest.raises(DataError, match="would be unpacked outside its folder"):
        unpacked(path)
    assert not left_in(cache)
    assert not (tmp_path / "evil").exists()


@pytest.mark.parametrize(
    "links",
    [
        [("out", "/etc")],
        [("out", "..")],
        [("deep/out", "../../x")],
        [("a", "b/.."), ("b", "..")],
        [("dir", "."), ("dir/out", "..")],
        [("a", "b/../.."), ("b", "c")],
    ],
)
@pytest.mark.parametrize("ending", [".zip", ".tar"])
def test_links_that_leave_the_folder(links: list[tuple[str, str]], ending: str, tmp_path: Path, cache: Path) -> None:
    path = tmp_path / f"a{ending}"
    if ending == ".tar":
        write_tar(
            path, *(member(name, kind=tarfile.SYMTYPE, link=target) for name, target in links), member("c/d", b"1")
        )
    else:
        with zipfile.ZipFile(path, "w") as archive:
            for name, target in links:
                info = zipfile.ZipInfo(name)
                info.create_system, info.external_attr = 3, (stat.S_IFLNK | 0o777) << 16
                archive.writestr(info, target)
            archive.writestr("c/d", b"1")
    with pytest.raises(DataError, match="leads outside its folder"):
        unpacked(path)
    assert not left_in(cache)


def test_no_file_is_written_through_a_link(tmp_path: Path, cache: Path) -> None:
    (tmp_path / "target").mkdir()
    link = member("x", kind=tarfile.SYMTYPE, link=str(tmp_path / "target"))
    with pytest.raises(DataError):
        unpacked(write_tar(tmp_path / "a.tar", link, member("x/evil", b"1")))
    assert not list((tmp_path / "target").iterdir())
    assert not left_in(cache)


def test_links_inside_stay(tmp_path: Path) -> None:
    links = (
        member("train/images", kind=tarfile.SYMTYPE, link="../all"),
        member("b", kind=tarfile.LNKTYPE, link="all/a"),
    )
    folder = unpacked(write_tar(tmp_path / "a.tar", member("all/a", b"1"), *links))
    assert (folder / "train/images/a").read_bytes() == (folder / "b").read_bytes() == b"1"


@pytest.mark.parametrize("kind", [tarfile.FIFOTYPE, tarfile.CHRTYPE, tarfile.BLKTYPE])
def test_devices(kind: bytes, tmp_path: Path, cache: Path) -> None:
    with pytest.raises(DataError, match="'dev' is neither a file nor a folder nor a link"):
        unpacked(write_tar(tmp_path / "a.tar", member("fine", b"1"), member("dev", kind=kind)))
    assert not left_in(cache)


def test_hard_links_to_nothing(tmp_path: Path) -> None:
    with pytest.raises(DataError, match="'b' links to a file that is not in it"):
        unpacked(write_tar(tmp_path / "a.tar", member("b", kind=tarfile.LNKTYPE, link="../../etc/passwd")))


def test_links_in_a_circle(tmp_path: Path) -> None:
    circle = member("x", kind=tarfile.SYMTYPE, link="x"), member("y", kind=tarfile.LNKTYPE, link="x")
    with pytest.raises(DataError, match="a damaged archive"):
        unpacked(write_tar(tmp_path / "a.tar", *circle))


def test_a_header_of_any_size(tmp_path: Path) -> None:
    with pytest.raises(DataError, match="a damaged archive"):
        unpacked(write_tar(tmp_path / "a.tar.gz", member("h", bytes(1 << 25), tarfile.XHDTYPE), member("a", b"1")))


def test_limits(tmp_path: Path, cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    zipped = write_zip(tmp_path / "a.zip", {"zeros": bytes(1 << 20), "b": b""})
    tarred = write_tar(tmp_path / "a.tar.gz", member("zeros", bytes(1 << 20)), member("b"))
    monkeypatch.setenv("BOXWRIGHT_MAX_DATA_FILES", "1")
    for path in (zipped, tarred):
        with pytest.raises(DataError, match="BOXWRIGHT_MAX_DATA_FILES"):
            unpacked(path)
    monkeypatch.setenv("BOXWRIGHT_MAX_DATA_FILES", "2")
    monkeypatch.setenv("BOXWRIGHT_MAX_DATA_BYTES", "1000000")
    for path in (zipped, tarred):
        with pytest.raises(DataError, match="BOXWRIGHT_MAX_DATA_BYTES"):
            unpacked(path)
    assert not left_in(cache)


def test_a_file_that_is_a_folder_too(tmp_path: Path) -> None:
    with pytest.raises(DataError, match="a.tar: it has a file and a folder named 'a/b'"):
        unpacked(write_tar(tmp_path / "a.tar", member("a", b"1"), member("a/b", b"2")))


@pytest.mark.parametrize("name", ["a.zip", "a.tar", "a.tar.gz", "a.tar.xz"])
@pytest.mark.parametrize("share", [0.0, 0.5, 0.98])
def test_damaged_archives(name: str, share: float, tmp_path: Path, cache: Path) -> None:
    path = tmp_path / name
    files = {f"{number}.bin": os.urandom(3000) for number in range(5)}
    if name == "a.zip":
        write_zip(path, files)
    else:
        write_tar(path, *(member(each, data) for each, data in files.items()))
    whole = path.read_bytes()
    # A plain tar file ends in 10 kB of zeros.
    path.write_bytes(whole[: int((len(whole) if name != "a.tar" else 16000) * share)])
    with pytest.raises(DataError, match=f"{name}: a damaged archive"):
        unpacked(path)
    assert not left_in(cache)


def test_a_file_without_a_name(tmp_path: Path) -> None:
    path = tmp_path / "a.zip"
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr("a", b"1")
        archive.filelist[0].filename = ""  # what the list at the end says
    with pytest.raises(DataError, match="a damaged archive: a file without a name"):
        unpacked(path)


def test_a_length_that_no_number_holds(tmp_path: Path) -> None:
    path = tmp_path / "a.tar"
    with tarfile.open(path, "w", pax_headers={"x": "1" * 30}) as archive:
        archive.addfile(tarfile.TarInfo("a"))
    path.write_bytes(path.read_bytes().replace(b"36 x=" + b"1" * 30, b"9" * 20 + b" x=" + b"1" * 12))
    with pytest.raises(DataError, match="a damaged archive: Python int too large"):
        unpacked(path)


def test_bytes_that_changed(tmp_path: Path) -> None:
    path = write_zip(tmp_path / "a.zip", {"a": os.urandom(5000)})
    data = bytearray(path.read_bytes())
    data[2000] ^= 255
    path.write_bytes(data)
    with pytest.raises(DataError, match="a damaged archive"):
        unpacked(path)


def test_encrypted_archives(tmp_path: Path) -> None:
    path = write_zip(tmp_path / "a.zip", {"a": b"1"})
    data = bytearray(path.read_bytes())
    for start in (data.index(b"PK\x03\x04") + 6, data.index(b"PK\x01\x02") + 8):
        data[start] |= 1
    path.write_bytes(data)
    with pytest.raises(DataError, match="it is encrypted; unpack it with its password"):
        unpacked(path)


def test_a_full_disk(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = write_zip(tmp_path / "a.zip", {"a": b"1234"})
    monkeypatch.setattr("boxwright.data.archives.shutil.disk_usage", lambda _: type("Usage", (), {"free": 3}))
    with pytest.raises(OutputError, match="no room for 4 bytes of a.zip: 3 are free"):
        unpacked(path)


def test_a_cache_that_is_a_file(tmp_path: Path, cache: Path) -> None:
    path = write_zip(tmp_path / "a.zip", {"a": b"1234"})
    cache.write_text("")
    with pytest.raises(OutputError, match="cannot be created"):
        unpacked(path)


def test_what_is_no_archive(tmp_path: Path) -> None:
    assert not is_archive(tmp_path / "missing.zip")
    (tmp_path / "folder.zip").mkdir()
    assert not is_archive(tmp_path / "folder.zip")
    with pytest.raises(DataError, match=r"missing.zip: No such file"):
        unpacked(tmp_path / "missing.zip")
