"""The server for an hour of good and hostile clients: what is asked well is answered, memory and descriptors stay.

    python benchmarks/soak.py DETECTOR.onnx [--other OTHER.onnx] [--minutes 60] [--memory-mib 400] [--descriptors 60]

A server runs on the loopback address. Two clients ask it well, by every protocol in turn; others send pictures that
take minutes, forms within forms, lists that would be padded, shapes that are never multiplied out and pictures of 49
megapixels; hold connections without a word, with half a head or half a body; go away; and kill a process that decodes
now and then. Every good request must be answered (503 and 504 while a hostile picture is being read count as an
answer, but are few). With another detector the two take turns under the served file's name, and each reload is counted.
After a quarter of the time, memory (of the server and its processes), descriptors and threads may not grow by more than
is said. Written to `benchmarks/results/soak.json`.
"""

from __future__ import annotations

import argparse
import base64
import contextlib
import http.client
import io
import json
import os
import platform
import random
import shutil
import signal
import socket
import statistics
import struct
import sys
import tempfile
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

from PIL import Image

from boxwright.data.image_io import encode_jpeg, encode_png
from boxwright.data.shapes import ShapesDataset

sys.path.insert(0, str(Path(__file__).parent))
from serve_load import Server, serving

RESULTS = Path(__file__).parent / "results"
PREDICT, INFER = "/v1/models/detector:predict", "/v2/models/detector/infer"
SAMPLE_S = 5.0
RELOAD_S = 20.0
TIMEOUT_S = 120.0
Request = tuple[str, bytes, dict[str, str]]


def good_requests() -> list[Request]:
    """Return a request by each protocol: a path, a body and headers."""
    image = ShapesDataset(1, seed=1, size=(480, 640))[0].image
    jpeg, png = encode_jpeg(image), encode_png(image[:160, :160])
    encoded = base64.b64encode(jpeg).decode()
    tensor = {"name": "input_tensor", "shape": [1], "datatype": "BYTES"}
    tail = struct.pack("<I", len(jpeg)) + jpeg
    head = json.dumps({"inputs": [{**tensor, "parameters": {"binary_data_size": len(tail)}}]}).encode()
    form = b'--x\r\nContent-Disposition: form-data; name="image"; filename="a"\r\n\r\n' + png + b"\r\n--x--\r\n"
    return [
        ("/detect", jpeg, {"Content-Type": "image/jpeg"}),
        ("/detect?draw=1", png, {"Content-Type": "image/png"}),
        ("/detect", form, {"Content-Type": "multipart/form-data; boundary=x"}),
        (PREDICT, json.dumps({"instances": [{"b64": encoded}] * 2}).encode(), {}),
        (PREDICT, json.dumps({"inputs": [image[:64, :64].tolist()]}).encode(), {}),
        (INFER, json.dumps({"inputs": [{**tensor, "data": [encoded]}]}).encode(), {}),
        (INFER, head + tail, {"Inference-Header-Content-Length": str(len(head))}),
    ]


def hostile_requests() -> list[Request]:
    """Return requests that each froze the server, or filled its memory, once."""
    file = io.BytesIO()
    Image.new("L", (3000, 3000)).save(file, "JPEG", progressive=True)
    jpeg = file.getvalue()
    scan = jpeg[jpeg.rindex(b"\xff\xda") : -2]
    large = io.BytesIO()
    Image.new("1", (7000, 7000)).save(large, "PNG")
    nested = b"".join(b"--%d\r\nContent-Type: multipart/mixed; boundary=%d\r\n\r\n" % (n, n + 1) for n in range(90))
    kind = {"Content-Type": "multipart/form-data; boundary=0"}
    many = [{"b64": base64.b64encode(large.getvalue()).decode()}] * 32
    shape = [2**62] * 100_000
    tensor = {"name": "input_tensor", "shape": shape, "datatype": "UINT8", "data": [1]}
    return [
        ("/detect", jpeg[:-2] + scan * (1_000_000 // len(scan) + 200) + jpeg[-2:], {}),
        ("/detect", large.getvalue(), {}),
        ("/detect", nested + b"x" * 2**20, kind),
        ("/detect", b"--0\r\nContent-Disposition: form-data\r\n\r\n\r\n" * 100_000, kind),
        ("/detect", b"x" * 30 * 2**20, {}),
        (PREDICT, json.dumps({"instances": [["a" * 10_000, *[""] * 100_000]]}).encode(), {}),
        (PREDICT, json.dumps({"instances": many}).encode(), {}),
        (PREDICT, b'{"instances": ' + b"[" * 500_000, {}),
        (INFER, json.dumps({"inputs": [tensor]}).encode(), {}),
        (INFER, b"{}", {"Inference-Header-Content-Length": "9" * 5000}),
    ]


class Soak:
    """The clients, and what became of their requests."""

    def __init__(self, server: Server, seed: int) -> None:
        """Start with nothing asked.

        Args:
            server: What is asked.
            seed: Of what is chosen at random.
        """
        self.server, self.ended = server, threading.Event()
        self.address = ("127.0.0.1", int(server.url.rpartition(":")[2]))
        self.seed, self.codes, self.hostile = seed, Counter[str](), Counter[str]()
        self.failures: list[str] = []
        self.latencies: list[float] = []
        self.health: list[float] = []
        self.newest_version = 1

    def ask_well(self) -> None:
        """Ask by each protocol in turn, on a connection that is kept."""
        requests = good_requests()
        connection = http.client.HTTPConnection(*self.address, timeout=TIMEOUT_S)
        number = 0
        while not self.ended.is_set():
            path, body, headers = requests[number % len(requests)]
            number, began = number + 1, time.monotonic()
            try:
                connection.request("POST", path, body, headers)
                answer = connection.getresponse()
                answer.read()
            except (http.client.RemoteDisconnected, ConnectionResetError, BrokenPipeError):
                # An idle connection made room for another at this very moment: as any client does, ask anew.
                self.codes["asked anew"] += 1
                connection.close()
                continue
            except (OSError, http.client.HTTPException) as error:
                self.failures.append(f"{path}: {type(error).__name__}: {error}")
                connection.close()
                continue
            self.codes[str(answer.status)] += 1
            if answer.status == 200:
                self.latencies.append(time.monotonic() - began)
            elif answer.status not in (503, 504):
                self.failures.append(f"{path}: status {answer.status}")
            self.ended.wait(0.02)

    def ask_badly(self) -> None:
        """Send what is hostile, and now and then go away before the answer."""
        rng, requests = random.Random(self.seed), hostile_requests()
        while not self.ended.wait(rng.uniform(0, 2)):
            path, body, headers = rng.choice(requests)
            lines = "".join(f"{name}: {value}\r\n" for name, value in headers.items())
            head = f"POST {path} HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n{lines}"
            with contextlib.suppress(OSError), socket.create_connection(self.address, TIMEOUT_S) as connection:
                connection.sendall(f"{head}Content-Length: {len(body)}\r\n\r\n".encode() + body)
                if rng.random() < 0.3:
                    self.hostile["went away"] += 1
                    continue
                answer = connection.recv(4096)
                self.hostile[answer[9:12].decode() or "closed"] += 1

    def hold(self) -> None:
        """Hold connections without a word, with half a head, half a body, and an answer that is not read."""
        rng, held = random.Random(self.seed + 1), list[socket.socket]()
        get, half = (
            b"GET / HTTP/1.1\r\nHost: a\r\n\r\n",
            b"POST /detect HTTP/1.1\r\nHost: a\r\nContent-Length: 99\r\n\r\nhalf",
        )
        starts = (b"", b"POST /det", half, get * 50)
        while not self.ended.wait(0.05):
            with contextlib.suppress(OSError):
                held.append(socket.create_connection(self.address, TIMEOUT_S))
                held[-1].sendall(rng.choice(starts))
                self.hostile["held"] += 1
            while len(held) > 1200:
                held.pop(rng.randrange(len(held))).close()
        for one in held:
            one.close()

    def kill(self) -> None:
        """Kill a process that decodes, about every 20 seconds."""
        rng = random.Random(self.seed + 2)
        while not self.ended.wait(rng.uniform(10, 30)):
            if children := children_of(self.server.pid):
                with contextlib.suppress(ProcessLookupError):
                    os.kill(rng.choice(children), signal.SIGKILL)
                    self.hostile["killed a process"] += 1

    def replace_file(self, served: Path, files: Sequence[Path]) -> None:
        """Let the files take turns under the served one's name, and count the versions that the server names."""
        number = 0
        while not self.ended.wait(RELOAD_S):
            number += 1
            beside = served.with_name(f".{served.name}.next")
            shutil.copy(files[number % len(files)], beside)
            beside.replace(served)
            with contextlib.suppress(OSError, http.client.HTTPException):
                connection = http.client.HTTPConnection(*self.address, timeout=TIMEOUT_S)
                connection.request("GET", "/v1/models/detector")
                versions = json.loads(connection.getresponse().read())["model_version_status"]
                connection.close()
                self.newest_version = max(self.newest_version, *(int(one["version"]) for one in versions))

    def watch_health(self) -> None:
        """Ask for health each second: the server is never frozen."""
        while not self.ended.wait(1.0):
            began = time.monotonic()
            try:
                connection = http.client.HTTPConnection(*self.address, timeout=TIMEOUT_S)
                connection.request("GET", "/healthz")
                status = connection.getresponse().status
                connection.close()
            except (OSError, http.client.HTTPException) as error:
                self.failures.append(f"/healthz: {type(error).__name__}: {error}")
                continue
            self.health.append(time.monotonic() - began)
            if status != 200:
                self.failures.append(f"/healthz: status {status}")


def children_of(pid: int) -> list[int]:
    """Return the processes that a process started."""
    found = []
    with contextlib.suppress(OSError):
        for task in Path(f"/proc/{pid}/task").iterdir():
            found += [int(child) for child in (task / "children").read_text().split()]
    return found


def sample(server: Server, began: float) -> dict[str, float]:
    """Return the memory and the descriptors of the server and its processes."""
    memory = [0.0]
    for child in children_of(server.pid):
        with contextlib.suppress(OSError, IndexError):
            memory.append(Server("", child).memory_mib())
    return {
        "seconds": round(time.monotonic() - began, 1),
        "server_mib": round(server.memory_mib(), 1),
        "decoders_mib": round(sum(memory), 1),
        "descriptors": len(os.listdir(f"/proc/{server.pid}/fd")),
        "threads": len(os.listdir(f"/proc/{server.pid}/task")),
    }


@contextlib.contextmanager
def clients(soak: Soak, served: Path, files: Sequence[Path]) -> Iterator[None]:
    """Let all clients ask, until the end of the block; several files take turns under the served one's name."""
    kinds: list[Callable[[], None]] = [
        soak.ask_well, soak.ask_well, soak.ask_badly, soak.ask_badly, soak.hold, soak.kill, soak.watch_health
    ]  # fmt: skip
    threads = [threading.Thread(target=kind, name=kind.__name__) for kind in kinds]
    if len(files) > 1:
        threads.append(threading.Thread(target=soak.replace_file, args=(served, files)))
    for thread in threads:
        thread.start()
    try:
        yield
    finally:
        soak.ended.set()
        for thread in threads:
            thread.join(2 * TIMEOUT_S)


def grown(samples: list[dict[str, float]], names: tuple[str, ...]) -> float:
    """Return by how much the last quarter's median is above the second quarter's."""
    totals = [sum(one[name] for name in names) for one in samples]
    quarter = max(len(totals) // 4, 1)
    return statistics.median(totals[-quarter:]) - statistics.median(totals[quarter : 2 * quarter] or totals[:1])


def main() -> None:
    """Run, write, draw; end with an error where something failed or grew."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model", type=Path)
    parser.add_argument("--other", type=Path, help="a detector that takes turns with the first")
    parser.add_argument("--minutes", type=float, default=60)
    parser.add_argument("--memory-mib", type=float, default=400, help="by how much memory may grow")
    parser.add_argument("--descriptors", type=int, default=60, help="by how many descriptors may grow")
    parser.add_argument("--threads", type=int, default=10, help="by how many threads may grow")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--out", type=Path, default=RESULTS / "soak.json")
    given = parser.parse_args()
    samples: list[dict[str, float]] = []
    files = [path for path in (given.model, given.other) if path]
    with tempfile.TemporaryDirectory() as folder, contextlib.ExitStack() as stack:
        served = Path(shutil.copy(given.model, Path(folder, "detector.onnx")))
        server = stack.enter_context(serving(served, "--watch", "--max_connections", "400"))
        soak, began = Soak(server, given.seed), time.monotonic()
        with clients(soak, served, files):
            while time.monotonic() - began < 60 * given.minutes:
                time.sleep(SAMPLE_S)
                samples.append(sample(server, began))
                if len(samples) % 12 == 0:
                    print(f"{samples[-1]} {dict(soak.codes)} {len(soak.failures)} failures", flush=True)
    memory = grown(samples, ("server_mib", "decoders_mib"))
    descriptors, threads = grown(samples, ("descriptors",)), grown(samples, ("threads",))
    busy = soak.codes["503"] + soak.codes["504"]
    found: dict[str, Any] = {
        "machine": f"{platform.machine()}, {os.cpu_count()} cores, Python {platform.python_version()}",
        "model": given.model.name,
        "minutes": given.minutes,
        "good": dict(soak.codes),
        "hostile": dict(soak.hostile),
        "failures": soak.failures[:100],
        "p50_ms": round(1000 * statistics.median(soak.latencies or [0]), 1),
        "health_slowest_s": round(max(soak.health, default=0), 2),
        "memory_grown_mib": round(memory, 1),
        "descriptors_grown": descriptors,
        "threads_grown": threads,
        "reloads": soak.newest_version - 1,
        "samples": samples,
    }
    given.out.write_text(json.dumps(found, indent=1) + "\n")
    print({name: value for name, value in found.items() if name != "samples"})
    is_steady = memory <= given.memory_mib and descriptors <= given.descriptors and threads <= given.threads
    if soak.failures or not is_steady or busy > 0.2 * soak.codes["200"]:
        raise SystemExit("a good request failed or was refused too often, or memory, descriptors or threads grew")
    if given.other and soak.newest_version == 1:
        raise SystemExit("no new file was served")


if __name__ == "__main__":
    main()
