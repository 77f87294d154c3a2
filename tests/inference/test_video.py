"""Videos: written, read, turned, damaged."""

from __future__ import annotations

import struct
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from functools import partial
from http.server import SimpleHTTPRequestHandler
from pathlib import Path

import av
import numpy as np
import pytest
from numpy.typing import NDArray

from boxwright.base.errors import DataError, OutputError
from boxwright.inference.files import VIDEOS
from boxwright.inference.video import frame_count, open_video_for_writing, read_video
from tests.http_servers import running_server
from tests.inference.blobs import picture_of


def shots(count: int, height: int = 48, width: int = 64) -> list[NDArray[np.uint8]]:
    return [picture_of([(4 + number, 8, 20 + number, 24)], height, width) for number in range(count)]


def write(path: Path, pictures: list[NDArray[np.uint8]], step: float = 1 / 25) -> Path:
    with open_video_for_writing(path) as video:
        for number, picture in enumerate(pictures):
            video.write(picture, number * step)
    return path


def test_a_video_comes_back_with_its_times(tmp_path: Path) -> None:
    """H.264 loses a little: the mean difference of black and white pictures stays under 3 of 255."""
    path = write(tmp_path / "a.mp4", shots(12))
    read = list(read_video(str(path)))
    assert frame_count(str(path)) == len(read) == 12
    for number, ((image, seconds), picture) in enumerate(zip(read, shots(12), strict=True)):
        assert image.shape == (48, 64, 3)
        assert np.abs(image.astype(int) - picture).mean() < 3
        assert seconds == pytest.approx(number / 25, abs=1e-3)


def test_uneven_times_are_kept(tmp_path: Path) -> None:
    times = [0.0, 0.1, 0.15, 1.0, 4.0]
    with open_video_for_writing(tmp_path / "a.mp4") as video:
        for picture, seconds in zip(shots(5), times, strict=True):
            video.write(picture, seconds)
    assert [seconds for _, seconds in read_video(str(tmp_path / "a.mp4"))] == pytest.approx(times, abs=1e-3)


def test_odd_sides_and_equal_times(tmp_path: Path) -> None:
    write(tmp_path / "a.mp4", shots(3, 47, 63), step=0.0)
    assert [image.shape for image, _ in read_video(str(tmp_path / "a.mp4"))] == [(48, 64, 3)] * 3


def test_pictures_of_another_size_are_refused_and_nothing_is_left(tmp_path: Path) -> None:
    with pytest.raises(OutputError, match="change their size"):
        write(tmp_path / "a.mp4", [*shots(2), *shots(1, 64, 64)])
    assert list(tmp_path.iterdir()) == []


def turned(video: bytes, matrix: tuple[int, ...]) -> bytes:
    """Write a turn into the header of a video's track (ISO 14496-12, 8.3.2), as telephones do."""
    start = video.index(b"tkhd") + 4
    place = start + 40  # version and flags, times, id, duration, reserved, layer, group, volume
    assert video[start] == 0
    return video[:place] + struct.pack(">9i", *matrix) + video[place + 36 :]


@pytest.mark.parametrize(
    ("matrix", "turns"),
    [((0, 65536, 0, -65536, 0, 0, 0, 0, 1 << 30), -1), ((-65536, 0, 0, 0, -65536, 0, 0, 0, 1 << 30), 2)],
)
def test_a_video_of_a_turned_telephone_is_upright(tmp_path: Path, matrix: tuple[int, ...], turns: int) -> None:
    """The first matrix says: show it turned clockwise by 90°; the second, upside down."""
    path = write(tmp_path / "a.mp4", shots(2))
    plain = [image for image, _ in read_video(str(path))]
    path.write_bytes(turned(path.read_bytes(), matrix))
    for image, before in zip((image for image, _ in read_video(str(path))), plain, strict=True):
        np.testing.assert_array_equal(image, np.rot90(before, turns))


def test_what_is_no_video(tmp_path: Path) -> None:
    (tmp_path / "a.mp4").write_bytes(b"rubbish" * 100)
    (tmp_path / "b.mp4").write_bytes(b"")
    for name in ("a.mp4", "b.mp4"):
        with pytest.raises(DataError, match=f"{name}: cannot be opened as a video"):
            list(read_video(str(tmp_path / name)))
    with pytest.raises(DataError, match="no such file"):
        list(read_video(str(tmp_path / "none.mp4")))


KINDS = {
    ".mp4": ("mp4", "libx264"), ".mov": ("mov", "libx264"), ".avi": ("avi", "mpeg4"), ".mkv": ("matroska", "libx264"),
    ".webm": ("webm", "libvpx"), ".m4v": ("ipod", "libx264"), ".mpg": ("mpeg", "mpeg2video"),
    ".mpeg": ("mpeg2video", "mpeg2video"), ".ts": ("mpegts", "libx264"), ".wmv": ("asf", "wmv2"), ".flv": ("flv", "flv"),
    ".3gp": ("3gp", "libx264"),
}  # fmt: skip


def write_as(path: Path, form: str, codec: str, height: int = 48, width: int = 64, count: int = 8) -> Path:
    with av.open(str(path), "w", format=form) as container:
        stream = container.add_stream(codec, rate=25)
        stream.width, stream.height, stream.pix_fmt = width, height, "yuv420p"
        for picture in shots(count, height, width):
            container.mux(stream.encode(av.VideoFrame.from_ndarray(picture, format="rgb24")))
        container.mux(stream.encode())
    return path


@pytest.mark.parametrize("suffix", sorted(VIDEOS))
def test_every_kind_of_video_is_read(tmp_path: Path, suffix: str) -> None:
    path = write_as(tmp_path / f"a:%d{suffix}", *KINDS[suffix])
    assert {image.shape for image, _ in read_video(str(path))} == {(48, 64, 3)}


@pytest.mark.parametrize("text", [
    "ffconcat version 1.0\nfile real.mp4\n",
    "ffconcat version 1.0\nfile 'FOLDER/real.mp4'\n",
    "#EXTM3U\n#EXT-X-TARGETDURATION:9\n#EXTINF:9,\nreal.ts\n#EXT-X-ENDLIST\n",
    "#EXTM3U\n#EXT-X-TARGETDURATION:9\n#EXTINF:9,\nfile://FOLDER/real.ts\n#EXT-X-ENDLIST\n",
    "v=0\no=- 0 0 IN IP4 127.0.0.1\ns=x\nc=IN IP4 127.0.0.1\nt=0 0\nm=video 5004 RTP/AVP 96\na=rtpmap:96 H264/90000\n",
    "[playlist]\nFile1=real.mp4\n",
])  # fmt: skip
@pytest.mark.parametrize("name", ["list.mp4", "list.mkv", "list.ts"])
def test_a_list_of_other_files_is_no_video(
    tmp_path: Path, text: str, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """FFmpeg by itself would go on to the files that a text names, whatever the text's own name."""
    monkeypatch.chdir(tmp_path)
    write_as(tmp_path / "real.mp4", "mp4", "libx264")
    write_as(tmp_path / "real.ts", "mpegts", "libx264")
    Path(name).write_text(text.replace("FOLDER", str(tmp_path)))
    for path in (name, str(tmp_path / name)):
        with pytest.raises(DataError, match=rf"{name}: (cannot be opened as a video|has no video stream)") as refused:
            list(read_video(path))
        assert "\n" not in str(refused.value)


def test_a_name_is_no_address_and_no_pattern(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    write_as(Path("real.mp4"), "mp4", "libx264", count=8)
    write_as(Path("short.mp4"), "mp4", "libx264", count=3).rename("concat:real.mp4")
    assert len(list(read_video("concat:real.mp4"))) == 3


@contextmanager
def served(folder: Path) -> Iterator[str]:
    handler = partial(QuietHandler, directory=str(folder))
    with running_server(handler) as address:
        yield address


class QuietHandler(SimpleHTTPRequestHandler):
    def log_message(self, format: str, *arguments: object) -> None:
        pass


def test_a_playlist_of_a_web_server_stays_on_the_web(tmp_path: Path) -> None:
    """HLS is how servers send video; a server's list of this machine's files is not."""
    write_as(tmp_path / "real.ts", "mpegts", "libx264")
    secret = write_as(tmp_path / "secret.ts", "mpegts", "libx264")
    head = "#EXTM3U\n#EXT-X-TARGETDURATION:9\n#EXTINF:9,\n"
    (tmp_path / "good.m3u8").write_text(f"{head}real.ts\n#EXT-X-ENDLIST\n")
    (tmp_path / "bad.m3u8").write_text(f"{head}file://{secret}\n#EXT-X-ENDLIST\n")
    (tmp_path / "list.m3u8").write_text("ffconcat version 1.0\nfile real.ts\n")
    with served(tmp_path) as address:
        assert len(list(read_video(f"{address}/good.m3u8"))) == 8
        assert len(list(read_video(f"{address}/real.ts"))) == 8
        for name in ("bad.m3u8", "list.m3u8"):
            with pytest.raises(DataError, match=name):
                list(read_video(f"{address}/{name}"))


@pytest.mark.slow_cases(".webm")
@pytest.mark.parametrize("suffix", sorted(VIDEOS))
def test_the_pixels_of_a_video_are_limited(tmp_path: Path, suffix: str, monkeypatch: pytest.MonkeyPatch) -> None:
    path = write_as(tmp_path / f"a{suffix}", *KINDS[suffix], height=96, width=128)
    monkeypatch.setenv("BOXWRIGHT_MAX_IMAGE_PIXELS", str(96 * 128 - 1))
    with pytest.raises(DataError, match=rf"a{suffix}: .*12,287 .*allowed \(BOXWRIGHT_MAX_IMAGE_PIXELS raises that\)"):
        list(read_video(str(path)))
    with suppress(DataError):
        frame_count(str(path))
    monkeypatch.setenv("BOXWRIGHT_MAX_IMAGE_PIXELS", str(96 * 128))
    assert len(list(read_video(str(path)))) >= 7


@pytest.mark.slow_cases("libx264", "mpeg4")
@pytest.mark.parametrize("codec", ["libx264", "mpeg4", "mpeg2video"])
def test_a_video_that_grows_is_limited_too(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, codec: str) -> None:
    """In MPEG-TS any picture may say that from it on the size is another."""
    small = write_as(tmp_path / "small.ts", "mpegts", codec, count=20).read_bytes()
    large = write_as(tmp_path / "large.ts", "mpegts", codec, 480, 640).read_bytes()
    (tmp_path / "a.ts").write_bytes(small * 10 + large)
    sizes = {image.shape for image, _ in read_video(str(tmp_path / "a.ts"))}
    assert (480, 640, 3) in sizes
    monkeypatch.setenv("BOXWRIGHT_MAX_IMAGE_PIXELS", "100000")
    with pytest.raises(DataError, match="BOXWRIGHT_MAX_IMAGE_PIXELS"):
        for image, _ in read_video(str(tmp_path / "a.ts")):
            assert image.shape == (48, 64, 3)


def test_a_video_that_declares_a_smaller_size_is_limited_too(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The sizes in a film's header (ISO 14496-12, 8.5.2) need not be those of its pictures."""
    path = write_as(tmp_path / "a.mp4", "mp4", "libx264", 480, 640)
    data, place = path.read_bytes(), path.read_bytes().index(b"avc1", path.read_bytes().index(b"stsd")) + 4 + 24
    assert data[place : place + 4] == struct.pack(">HH", 640, 480)
    path.write_bytes(data[:place] + struct.pack(">HH", 64, 48) + data[place + 4 :])
    monkeypatch.setenv("BOXWRIGHT_MAX_IMAGE_PIXELS", "100000")
    with pytest.raises(DataError, match="BOXWRIGHT_MAX_IMAGE_PIXELS"):
        list(read_video(str(path)))


def test_a_video_without_pictures(tmp_path: Path) -> None:
    with av.open(str(tmp_path / "a.mp4"), "w") as container:
        sound = container.add_stream("aac", rate=8000)
        frame = av.AudioFrame.from_ndarray(np.zeros((1, 1024), np.float32), format="fltp", layout="mono")
        frame.sample_rate = 8000
        container.mux(sound.encode(frame))
        container.mux(sound.encode())
    with pytest.raises(DataError, match="has no video stream"):
        list(read_video(str(tmp_path / "a.mp4")))


@pytest.mark.slow
def test_a_video_that_is_cut_off_or_damaged_gives_what_it_has(tmp_path: Path) -> None:
    """In MPEG-TS pictures stand one after the other: half a file is half a video, noise loses some pictures."""
    path = tmp_path / "a.ts"
    with av.open(str(path), "w", format="mpegts") as container:
        stream = container.add_stream("mpeg4", rate=25)
        stream.width, stream.height, stream.pix_fmt = 64, 48, "yuv420p"
        for picture in shots(40):
            container.mux(stream.encode(av.VideoFrame.from_ndarray(picture, format="rgb24")))
        container.mux(stream.encode())
    whole = path.read_bytes()
    assert len(list(read_video(str(path)))) == 40
    path.write_bytes(whole[: len(whole) // 2])
    assert 5 < len(list(read_video(str(path)))) < 40
    rng = np.random.default_rng(0)
    for _ in range(30):
        damaged = bytearray(whole)
        for place in rng.integers(0, len(whole), 60):
            damaged[place] = rng.integers(0, 256)
        path.write_bytes(bytes(damaged))
        try:
            count = len(list(read_video(str(path))))
        except DataError:
            continue
        assert count > 0


def test_a_full_disk_leaves_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    import boxwright.base.files

    def full(_: int) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(boxwright.base.files.os, "fsync", full)
    with pytest.raises(OutputError, match="No space left on device"):
        write(tmp_path / "a.mp4", shots(2))
    assert list(tmp_path.iterdir()) == []
