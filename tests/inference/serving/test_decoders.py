"""The processes that read requests: ended when late, replaced when dead or grown, gone with the server."""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import sys
import time
import tracemalloc
from collections.abc import Awaitable, Callable
from pathlib import Path

import numpy as np
import pytest

from boxwright.inference.serving.decoders import DecodeRequest, Decoders, decoder_count
from boxwright.inference.serving.requests import BadRequest
from boxwright.inference.serving.settings import ServerSettings
from tests.exporters.small_detectors import pictures
from tests.inference.serving.running import served_by_command
from tests.inference.serving.test_server import png

PICTURE = pictures()[0]


def hold_nothing(_: int) -> None:
    """Let a request hold what it likes."""


def ask(decoders: Decoders, body: bytes, seconds: float = 120) -> Awaitable[object]:
    return decoders.read(DecodeRequest("upload", "image/png", body, 0, hold_nothing), time.monotonic() + seconds)


def with_decoders(do: Callable[[Decoders], Awaitable[None]], **settings: float) -> list[str]:
    """Do something with decoders that are ended after it; return why processes were replaced."""
    replaced: list[str] = []

    async def run() -> None:
        decoders = Decoders(ServerSettings(**{"decoders": 1, **settings}), replaced.append)  # type: ignore[arg-type]
        try:
            await do(decoders)
        finally:
            pids = decoders.processes
            await decoders.close()
            assert not [pid for pid in pids if Path(f"/proc/{pid}").exists()]

    asyncio.run(run())
    return replaced


async def process_of(decoders: Decoders) -> int:
    decoders.start()
    while not decoders.processes:
        await asyncio.sleep(0.01)
    return decoders.processes[0]


def slow_jpeg() -> bytes:
    """A progressive JPEG of 16 megapixels whose last scan comes again and again: minutes of work in a megabyte."""
    import io

    from PIL import Image

    file = io.BytesIO()
    Image.new("L", (4000, 4000)).save(file, "JPEG", progressive=True)
    data = file.getvalue()
    last = data.rindex(b"\xff\xda")
    return data[:last] + data[last:-2] * (1_000_000 // len(data[last:-2]) + 200) + data[-2:]


def test_pictures_come_back_as_they_are() -> None:
    """Those of more than 8 bits by what is white in them, or else by their upper 8."""

    async def do(decoders: Decoders) -> None:
        for picture in [PICTURE, np.zeros((1, 1, 3), np.uint8), np.full((2500, 3000, 3), 7, np.uint8)]:
            request = DecodeRequest("upload", None, png(picture), 0, hold_nothing)
            found = await decoders.read(request, time.monotonic() + 120)
            (image,) = found.images
            np.testing.assert_array_equal(image, picture)

        deep = png(PICTURE[..., 0].astype(np.uint16) * 16)
        for white_level, expected in ((255 * 16, PICTURE[..., 0]), (0, PICTURE[..., 0] // 16)):
            request = DecodeRequest("upload", None, deep, white_level, hold_nothing)
            (image,) = (await decoders.read(request, time.monotonic() + 120)).images
            np.testing.assert_array_equal(image, np.repeat(expected[..., None], 3, 2))

    assert set(with_decoders(do)) <= {"grown"}


@pytest.mark.slow
def test_what_takes_too_long_is_ended_and_the_next_is_answered() -> None:
    async def do(decoders: Decoders) -> None:
        first = await process_of(decoders)
        with pytest.raises(BadRequest, match="not read within") as refused:
            await ask(decoders, slow_jpeg(), 0.5)
        assert refused.value.status == 504
        await ask(decoders, png(PICTURE))
        assert first not in decoders.processes

    assert with_decoders(do) == ["late"]


@pytest.mark.slow
def test_one_that_is_killed_is_replaced_and_nobody_notices() -> None:
    async def do(decoders: Decoders) -> None:
        for _ in range(3):
            os.kill(await process_of(decoders), signal.SIGKILL)
            await ask(decoders, png(PICTURE))

    assert with_decoders(do) == ["died"] * 3


def test_one_that_a_picture_crashes_is_replaced_and_the_request_is_refused() -> None:
    async def do(decoders: Decoders) -> None:
        pid = await process_of(decoders)
        os.kill(pid, signal.SIGSTOP)
        asking = asyncio.ensure_future(ask(decoders, png(PICTURE)))
        await asyncio.sleep(0.1)
        os.kill(pid, signal.SIGSEGV)
        os.kill(pid, signal.SIGCONT)
        with pytest.raises(BadRequest, match="the process that decoded it crashed") as refused:
            await asking
        assert refused.value.status == 400
        await ask(decoders, png(PICTURE))

    assert with_decoders(do) == ["died"]


@pytest.mark.slow
def test_too_much_memory_is_refused() -> None:
    async def do(decoders: Decoders) -> None:
        with pytest.raises(BadRequest) as refused:
            await ask(decoders, png(np.zeros((9000, 9000, 3), np.uint8)))
        assert refused.value.status in (400, 413)
        await ask(decoders, png(PICTURE))

    assert set(with_decoders(do, decoder_mib=200, max_pixels=100_000_000)) <= {"died", "grown"}


def resident_mib(pid: int) -> float:
    return int(Path(f"/proc/{pid}/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE") / 2**20


def test_memory_of_a_large_request_is_given_back() -> None:
    large = png(np.zeros((4000, 6000, 3), np.uint8))

    async def do(decoders: Decoders) -> None:
        await ask(decoders, png(PICTURE))
        before, _ = tracemalloc.get_traced_memory()
        for _ in range(3):
            await ask(decoders, large)
        await ask(decoders, png(PICTURE))
        # The thread that copied the last picture holds it until it runs again: seconds later on a loaded machine.
        async with asyncio.timeout(120):
            while tracemalloc.get_traced_memory()[0] - before >= 60 * 2**20:
                await asyncio.sleep(0.01)
        assert tracemalloc.get_traced_memory()[1] - before > 60 * 2**20
        assert all(resident_mib(pid) < 300 for pid in decoders.processes)

    # Not this process's resident memory: after a test that trains, the allocator keeps what is freed.
    tracemalloc.start()
    try:
        with_decoders(do)
    finally:
        tracemalloc.stop()


def test_those_that_wait_too_long_for_a_free_one_or_are_too_many_are_refused() -> None:
    async def do(decoders: Decoders) -> None:
        pid = await process_of(decoders)
        os.kill(pid, signal.SIGSTOP)
        held = asyncio.ensure_future(ask(decoders, png(PICTURE)))
        waits = asyncio.ensure_future(ask(decoders, png(PICTURE), 60))
        await asyncio.sleep(0)
        refused = await asyncio.gather(*(ask(decoders, png(PICTURE), 0.1) for _ in range(2)), return_exceptions=True)
        assert [one.status for one in refused if isinstance(one, BadRequest)] == [504, 503]
        os.kill(pid, signal.SIGCONT)
        await held
        await waits

    assert with_decoders(do, queue=2) == []


def test_one_cpu_has_two_and_many_have_four(monkeypatch: pytest.MonkeyPatch) -> None:
    found = []
    for cpus in (1, 3, 64):
        monkeypatch.setattr("boxwright.inference.serving.decoders.usable_cpus", lambda cpus=cpus: cpus)
        found.append(decoder_count(ServerSettings()))
    assert found == [2, 3, 4]
    assert decoder_count(ServerSettings(decoders=7)) == 7


def children_of(pid: int) -> list[int]:
    return [int(one) for task in Path(f"/proc/{pid}/task").iterdir() for one in (task / "children").read_text().split()]


def gone(pids: list[int]) -> bool:
    return not any(Path(f"/proc/{pid}").exists() and "Z" not in _state(pid) for pid in pids)


def _state(pid: int) -> str:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except OSError:
        return "Z"


@pytest.mark.slow
@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGKILL])
def test_they_end_with_the_server(number: signal.Signals) -> None:
    with served_by_command("--decoders", "2") as (process, _):
        while len(children := children_of(process.pid)) < 2:
            time.sleep(0.05)
        process.send_signal(number)
        process.wait(120)
        while not gone(children):
            time.sleep(0.05)


def test_they_import_neither_torch_nor_a_web_framework() -> None:
    code = "import sys, boxwright.inference.serving.decoder_child; print([m for m in ('torch', 'fastapi', 'uvicorn', 'onnxruntime') if m in sys.modules])"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"
