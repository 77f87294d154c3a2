"""The server under load: requests a second and latencies by clients, with and without batches; and under overload.

    python benchmarks/serve_load.py DETECTOR.onnx [IMAGE.jpg] [--clients 1 8 64] [--rounds 3] [--seconds 5]
        [--overload-minutes 10]

Two servers run side by side on the loopback address, one with batches of up to 8 and one without; `hey` (apt install
hey) posts the image to them in turn. The overload is 256 clients, four times what may wait: every request must be
answered, with 200 or 503, and the server's memory must stay flat. Written to
`benchmarks/results/serve-load-cpu.json`.
"""

from __future__ import annotations

import argparse
import contextlib
import csv
import io
import json
import os
import platform
import re
import statistics
import subprocess
import sys
import tempfile
import time
import urllib.request
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from boxwright.data.image_io import encode_jpeg
from boxwright.data.shapes import ShapesDataset

RESULTS = Path(__file__).parent / "results" / "serve-load-cpu.json"
OVERLOAD_CLIENTS = 256
BURST = 4096  # requests of one call of the generator


@dataclass(frozen=True)
class Server:
    """A running server."""

    url: str
    pid: int

    def memory_mib(self) -> float:
        """Return the memory that it holds."""
        pages = int(Path(f"/proc/{self.pid}/statm").read_text().split()[1])
        return pages * os.sysconf("SC_PAGE_SIZE") / 2**20


@contextlib.contextmanager
def serving(model: Path, *options: str) -> Iterator[Server]:
    """Start a server on a free port, and end it."""
    words = [sys.executable, "-m", "boxwright", "serve", str(model), "--port", "0", *options]
    environment = {**os.environ, "COLUMNS": "200"}
    with subprocess.Popen(
        words, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, env=environment
    ) as process:
        first = process.stdout.readline() if process.stdout else ""
        address = re.search(r"http://127\.0\.0\.1:\d+", first)
        if address is None:
            raise SystemExit(first)
        while not ready(address[0]):
            time.sleep(0.2)
        try:
            yield Server(address[0], process.pid)
        finally:
            process.terminate()


def ready(url: str) -> bool:
    """Tell whether a server answers."""
    try:
        with urllib.request.urlopen(f"{url}/readyz", timeout=5) as answer:
            return bool(answer.status == 200)
    except OSError:
        return False


def hey(server: Server, image: Path, clients: int, *more: str) -> list[dict[str, str]]:
    """Post an image again and again; a row a request that was answered."""
    words = ["hey", "-c", str(clients), "-t", "60", "-m", "POST", "-T", "image/jpeg", "-D", str(image), "-o", "csv"]
    done = subprocess.run([*words, *more, f"{server.url}/detect"], capture_output=True, text=True, check=True)
    return list(csv.DictReader(io.StringIO(done.stdout)))


def measured(rows: list[dict[str, str]]) -> dict[str, Any]:
    """Return what one burst showed."""
    times = sorted(float(row["response-time"]) for row in rows)
    end = max(float(row["offset"]) + float(row["response-time"]) for row in rows)
    return {
        "requests_per_s": len(rows) / end,
        "p50_ms": 1000 * times[len(times) // 2],
        "p99_ms": 1000 * times[min(int(0.99 * len(times)), len(times) - 1)],
        "codes": dict(Counter(row["status-code"] for row in rows)),
    }


def compare(model: Path, image: Path, clients: list[int], rounds: int, seconds: float) -> list[dict[str, Any]]:
    """Measure both servers in turn."""
    measurements = []
    with serving(model, "--max_batch", "8") as batched, serving(model, "--max_batch", "1") as single:
        for server in (batched, single):
            hey(server, image, 2, "-n", "40")
        for count in clients:
            pairs = [
                [measured(hey(server, image, count, "-z", f"{seconds:g}s")) for server in (batched, single)]
                for _ in range(rounds)
            ]
            ratios = [pair[0]["requests_per_s"] / pair[1]["requests_per_s"] for pair in pairs]
            ratio, least = statistics.median(ratios), min(ratios)
            measurements.append({"clients": count, "rounds": pairs, "ratio_median": ratio, "ratio_least": least})
            best = [max(pair[side]["requests_per_s"] for pair in pairs) for side in (0, 1)]
            middle = [statistics.median(pair[0][name] for pair in pairs) for name in ("p50_ms", "p99_ms")]
            print(
                f"{count:3} clients: {best[0]:6.1f} requests/s batched, {best[1]:6.1f} one by one, ratio {ratio:.2f} "
                f"(least {least:.2f}); p50 {middle[0]:.0f} ms, p99 {middle[1]:.0f} ms",
                flush=True,
            )
    return measurements


def overload(model: Path, image: Path, minutes: float) -> dict[str, Any]:
    """Ask for more than can be answered, for some minutes."""
    codes: Counter[str] = Counter()
    memory, asked, answered = [], 0, 0
    with serving(model) as server:
        hey(server, image, 8, "-n", "80")
        until = time.monotonic() + 60 * minutes
        while time.monotonic() < until:
            rows = hey(server, image, OVERLOAD_CLIENTS, "-n", str(BURST))
            asked, answered = asked + BURST, answered + len(rows)
            codes.update(row["status-code"] for row in rows)
            memory.append(round(server.memory_mib(), 1))
        alive = measured(hey(server, image, 1, "-n", "10"))["codes"]
    half = memory[len(memory) // 2 :] or [0.0]
    print(f"overload: {answered} of {asked} requests answered, {dict(codes)}; memory {memory[0]} MiB after the first "
          f"burst, at most {max(half)} MiB in the second half; afterwards {alive}")  # fmt: skip
    return {"minutes": minutes, "asked": asked, "answered": answered, "codes": dict(codes), "memory_mib": memory}


def main() -> None:
    """Measure, print and write."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model", type=Path)
    parser.add_argument("image", type=Path, nargs="?")
    parser.add_argument("--clients", type=int, nargs="+", default=[1, 8, 64])
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--seconds", type=float, default=5)
    parser.add_argument("--overload-minutes", type=float, default=10)
    given = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        image = given.image or Path(folder) / "image.jpg"
        if given.image is None:
            image.write_bytes(encode_jpeg(ShapesDataset(1, seed=1, size=(480, 640))[0].image))
        before = os.getloadavg()[0]
        machine = f"{platform.machine()}, {os.cpu_count()} cores, Python {platform.python_version()}"
        results = {
            "machine": machine,
            "model": given.model.name,
            "load before": before,
            "by clients": compare(given.model, image, given.clients, given.rounds, given.seconds),
            "overload": overload(given.model, image, given.overload_minutes) if given.overload_minutes else None,
        }
    RESULTS.write_text(json.dumps(results, indent=1) + "\n")


if __name__ == "__main__":
    main()
