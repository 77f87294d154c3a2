"""Parsing untrusted requests in child processes, which can be killed: each request within its time and memory limits.

A process that exceeds a request's time is killed, one may crash on a picture, and one that has grown exits by itself;
each is replaced. Pictures come back through a file in memory.

Dimensions: H W picture.
"""

from __future__ import annotations

import asyncio
import json
import logging
import os
import signal
import socket
import subprocess
import tempfile
import time
from collections import deque
from collections.abc import Callable, Coroutine
from contextlib import suppress
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np
import orjson
from numpy.typing import NDArray

from boxwright.base.threads import usable_cpus
from boxwright.base.worker_pools import child_environment, module_command
from boxwright.inference.serving.decoder_child import LENGTH, write_all
from boxwright.inference.serving.requests import BadRequest
from boxwright.inference.serving.settings import ServerSettings

_LOG = logging.getLogger("boxwright.inference.serving")
_FEWEST, _MOST = 2, 4
# A request close to its deadline still gets _LEAST_WORK_S: replacing the process costs more than waiting.
_LEAST_WORK_S, _MOST_WORK_S = 2.0, 86400.0
_START_S = 60.0
# After a failed start, so that retries do not keep a machine without memory busy.
_PAUSE_S = 1.0
# Copied in the event loop; larger data in a thread.
_QUICK_BYTES = 8 * 2**20
# A process keeps a file of this size for the next picture; a larger one is truncated at once.
_KEPT_BYTES = 48 * 2**20


@dataclass(frozen=True)
class DecodedRequest:
    """A decoded request.

    Attributes:
        images: uint8 [H, W, 3] each.
    """

    images: list[NDArray[np.uint8]]
    fields: dict[str, Any]


@dataclass(frozen=True)
class DecodeRequest:
    """A request, as it is sent to a process.

    Attributes:
        kind: Which protocol, as named in `boxwright.inference.serving.decoder_child`.
        head: The protocol's header, if it has one.
        white_level: What is white in pictures of more than 8 bits; 0 for that of 16 bits.
        hold: Called with the pictures' bytes before they are copied; may raise to refuse them.
    """

    kind: str
    head: str | None
    body: bytes
    white_level: float
    hold: Callable[[int], None]

    def message(self, seconds: float) -> bytes:
        """Return the bytes to send; the body is in the file."""
        about = {"kind": self.kind, "head": self.head, "white_level": self.white_level}
        return orjson.dumps({**about, "size": len(self.body), "seconds": seconds})


@dataclass(eq=False)
class _DecoderProcess:
    """A process, the socket to it and the shared file."""

    process: subprocess.Popen[bytes]
    connection: socket.socket
    file: int
    last: bool = False

    def end(self) -> None:
        """Kill the process and close its descriptors."""
        self.connection.close()
        os.close(self.file)
        self.process.kill()


def decoder_count(settings: ServerSettings) -> int:
    """Return how many processes decode."""
    return settings.decoders or min(max(usable_cpus(), _FEWEST), _MOST)


class Decoders:
    """The decoding processes; requests wait for a free one in turn."""

    def __init__(self, settings: ServerSettings, replaced: Callable[[str], Any] = lambda why: None) -> None:
        """Initialize, without starting a process.

        Args:
            replaced: Called with the reason when a process is replaced: late, died, grown.
        """
        self._settings, self._replaced = settings, replaced
        self._count = decoder_count(settings)
        self._free: deque[_DecoderProcess] = deque()
        self._waiting: deque[asyncio.Future[_DecoderProcess]] = deque()
        self._children: set[_DecoderProcess] = set()
        self._tasks: set[asyncio.Task[None]] = set()
        self._starting, self._closed = 0, False

    def start(self) -> None:
        """Start the missing processes."""
        while not self._closed and len(self._children) + self._starting < self._count:
            self._starting += 1
            self._later(self._start_one())

    async def close(self) -> None:
        """Kill the processes."""
        self._closed = True
        for task in list(self._tasks):
            task.cancel()
        while self._tasks:
            await asyncio.gather(*self._tasks, return_exceptions=True)
        processes = [child.process for child in self._children]
        for child in list(self._children):
            child.end()
        self._children.clear()
        self._free.clear()
        await asyncio.gather(*(asyncio.to_thread(process.wait) for process in processes))

    @property
    def processes(self) -> list[int]:
        """The processes' ids."""
        return [child.process.pid for child in self._children]

    async def read(self, question: DecodeRequest, deadline: float) -> DecodedRequest:
        """Return a decoded request.

        Args:
            deadline: When it must be decoded, on the clock of `time.monotonic`.

        Raises:
            BadRequest: If the request is malformed, too large, or takes too long.
        """
        for again in (True, False):
            child = await self._take(deadline)
            working = asyncio.ensure_future(self._work(child, question, deadline))
            # If the time is up or the client is gone, the task still finishes and releases the process.
            self._keep(working)
            done, _ = await asyncio.wait({working}, timeout=max(deadline - time.monotonic(), 0))
            if not done:
                raise self._late()
            with suppress(ConnectionError):
                return working.result()
            status = await asyncio.to_thread(child.process.wait)
            # SIGKILL comes from outside (a user, the out-of-memory killer), not from the request: try once more.
            if not (again and status == -signal.SIGKILL):
                break
        raise BadRequest(400, "the request cannot be read: the process that decoded it crashed")

    async def _take(self, deadline: float) -> _DecoderProcess:
        self.start()
        if self._free:
            return self._free.pop()  # the most recently used: its memory is still in the CPU caches
        if len(self._waiting) >= max(self._settings.queue, self._count):
            raise BadRequest(503, "too many requests are queued; try again")
        turn: asyncio.Future[_DecoderProcess] = asyncio.get_running_loop().create_future()
        self._waiting.append(turn)
        try:
            async with asyncio.timeout(deadline - time.monotonic()):
                return await turn
        except (TimeoutError, asyncio.CancelledError) as error:
            if turn in self._waiting:
                self._waiting.remove(turn)
            elif not turn.cancelled():  # assigned at this very moment
                self._give(turn.result())
            if isinstance(error, TimeoutError):
                raise self._late() from None
            raise

    def _late(self) -> BadRequest:
        return BadRequest(504, f"not read within {self._settings.timeout_s:g} s")

    def _give(self, child: _DecoderProcess) -> None:
        """Give a process to the next waiting request."""
        while self._waiting:
            turn = self._waiting.popleft()
            if not turn.done():
                turn.set_result(child)
                return
        self._free.append(child)

    async def _work(self, child: _DecoderProcess, question: DecodeRequest, deadline: float) -> DecodedRequest:
        # Until an answer has arrived whole, the process is out of step with its requests, and only of use if replaced.
        why = "died"
        try:
            left = min(max(deadline - time.monotonic(), _LEAST_WORK_S), _MOST_WORK_S)
            answer = await self._answer(child, question, left)
            counts = [height * width * 3 for height, width in answer.get("sizes", [])]
            why = "grown" if child.last else ""
            question.hold(sum(counts))
            why = why or "died"  # the file may be truncated
            pixels = np.empty(sum(counts), np.uint8)
            await _copied(_fill, child.file, pixels.data)
            why = "grown" if child.last else ""
        except TimeoutError:
            why = "late"
            raise self._late() from None
        finally:
            if why:
                self._replace(child, why)
            else:
                if os.fstat(child.file).st_size > _KEPT_BYTES:  # free the memory of a large request
                    os.ftruncate(child.file, 0)
                self._give(child)
        if "status" in answer:
            raise _refused(answer)
        ends = np.cumsum(counts)
        return DecodedRequest(
            [
                pixels[end - count : end].reshape(height, width, 3)
                for (height, width), count, end in zip(answer["sizes"], counts, ends, strict=True)
            ],
            answer["fields"],
        )

    async def _answer(self, child: _DecoderProcess, question: DecodeRequest, seconds: float) -> dict[str, Any]:
        await _copied(write_all, child.file, memoryview(question.body))
        message = question.message(seconds)
        async with asyncio.timeout(seconds):
            loop = asyncio.get_running_loop()
            await loop.sock_sendall(child.connection, LENGTH.pack(len(message)) + message)
            answer: dict[str, Any] = orjson.loads(await _received(child))
        return answer

    def _replace(self, child: _DecoderProcess, why: str) -> None:
        if child in self._children:
            self._children.discard(child)
            self._replaced(why)
            child.end()
            self._later(asyncio.to_thread(child.process.wait))
            self.start()

    def _later(self, work: Coroutine[Any, Any, Any]) -> None:
        self._keep(asyncio.ensure_future(work))

    def _keep(self, task: asyncio.Task[Any]) -> None:
        self._tasks.add(task)
        task.add_done_callback(self._forget)

    def _forget(self, task: asyncio.Task[Any]) -> None:
        self._tasks.discard(task)
        if not task.cancelled():
            task.exception()  # marks it as retrieved: the waiting request has it already

    async def _start_one(self) -> None:
        child = None
        try:
            child = _started(self._settings)
            async with asyncio.timeout(_START_S):
                await _received(child)
        except BaseException as error:
            if child is not None:
                child.end()
                await asyncio.shield(asyncio.to_thread(child.process.wait))
            if not isinstance(error, Exception):
                raise
            _LOG.warning("a decoding process could not be started: %s", f"{type(error).__name__}: {error}")
            await asyncio.sleep(_PAUSE_S)
        else:
            self._children.add(child)
            self._give(child)
        finally:
            self._starting -= 1
        if self._waiting:
            self.start()


def _refused(answer: dict[str, Any]) -> Exception:
    if answer["status"] == 500:
        return RuntimeError(answer["reason"])
    return BadRequest(answer["status"], answer["reason"])


def _started(settings: ServerSettings) -> _DecoderProcess:
    file = _memory_file()
    ours, theirs = socket.socketpair()
    try:
        own = [str(theirs.fileno()), str(file), json.dumps(asdict(settings))]
        process = subprocess.Popen(
            module_command("boxwright.inference.serving.decoder_child", *own),
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            pass_fds=(theirs.fileno(), file),
            # Several processes decode side by side: more threads would only compete.
            env={**child_environment(), "OMP_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1"},
        )
    except OSError:
        ours.close()
        os.close(file)
        raise
    finally:
        # The child has its own copy; while this one is open, the socket would not show that the child has ended.
        theirs.close()
    ours.setblocking(False)
    return _DecoderProcess(process, ours, file)


def _memory_file() -> int:
    if hasattr(os, "memfd_create"):
        return os.memfd_create("boxwright-decoder")
    with tempfile.TemporaryFile() as file:
        return os.dup(file.fileno())


async def _received(child: _DecoderProcess) -> bytes:
    """Return a process's next message; raise ConnectionError if it has ended."""
    loop, parts, whole = asyncio.get_running_loop(), bytearray(), LENGTH.size + 1
    while len(parts) < whole:
        part = await loop.sock_recv(child.connection, 65536)
        if not part:
            raise ConnectionResetError
        parts += part
        if len(parts) >= LENGTH.size:
            whole = LENGTH.size + 1 + LENGTH.unpack_from(parts)[0]
    child.last = bool(parts[LENGTH.size])
    return bytes(parts[LENGTH.size + 1 :])


async def _copied(copy: Callable[[int, memoryview], None], file: int, data: memoryview) -> None:
    """Copy into or out of a process's file; small data without a thread."""
    if len(data) <= _QUICK_BYTES:
        copy(file, data)
        return

    def in_a_thread(duplicate: int) -> None:
        try:
            copy(duplicate, data)
        finally:
            os.close(duplicate)

    # With a duplicate descriptor, never cancelled: the file may be closed before the thread is done.
    await asyncio.shield(asyncio.to_thread(in_a_thread, os.dup(file)))


def _fill(file: int, data: memoryview) -> None:
    done = 0
    while done < len(data):
        count = os.preadv(file, [data[done:]], done)
        if not count:
            raise ConnectionResetError  # fewer bytes than announced
        done += count
