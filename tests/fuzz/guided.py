"""Coverage-guided fuzzing by Atheris: `python -m tests.fuzz.guided --seconds 60 coco voc`, by default every target.

Inputs that reach new lines of Boxwright are kept and changed further, which takes them behind checks that `run` passes by
chance alone. A target is a process: what ends it is a finding, whose input lies in `findings/`.
"""

from __future__ import annotations

import argparse
import asyncio
import importlib
import re
import shutil
import subprocess
import sys
import tempfile
import warnings
from collections.abc import Callable
from pathlib import Path

# Read, refused, or a finding; of each target a kind of file, or the head of a request.
TARGETS = (
    *("config_text", "config_yaml", "config_json", "overrides", "label_map", "coco", "voc", "cvat", "csv", "data_yaml"),
    *("labelme", "via", "createml", "vott", "datumaro", "supervisely", "imagefolder", "label_studio", "fiftyone"),
    *("records", "example", "image", "checkpoint", "safetensors", "bundle", "table", "archive", "http_head"),
)
SECONDS_FOR_ONE, MEMORY_MIB = 60, 4096
_HEADS = [
    b"GET /healthz HTTP/1.1\r\nHost: localhost:8501\r\nAuthorization: Bearer key\r\n\r\n",
    b"POST /detect?min_score=0.5 HTTP/1.1\r\nHost: [::1]\r\nOrigin: http://a.example\r\nContent-Length: 3\r\n\r\nabc",
    b"POST /v2/models/d/infer HTTP/1.0\r\nHost: a\r\nTransfer-Encoding: chunked\r\nSec-Fetch-Site: none\r\n\r\n0\r\n\r\n",
]


def answer_head(data: bytes, folder: Path) -> None:
    """Take a request's head as the server does: parsed by h11, then past the guard."""
    import h11
    from fastapi.responses import PlainTextResponse

    from boxwright.inference.serving.guard import Browsers, Counters, Guard

    connection = h11.Connection(h11.SERVER)
    connection.receive_data(data)
    try:
        event = connection.next_event()
    except h11.RemoteProtocolError:
        return
    if not isinstance(event, h11.Request):
        return
    path, _, query = event.target.partition(b"?")
    scope = {
        "type": "http", "method": event.method.decode(), "path": path.decode("latin-1"), "raw_path": path,
        "query_string": query, "headers": list(event.headers),
    }  # fmt: skip
    statuses: list[int] = []

    async def send(message: dict[str, object]) -> None:
        if message["type"] == "http.response.start":
            statuses.append(int(str(message["status"])))

    async def receive() -> dict[str, object]:
        return {"type": "http.request", "body": b"", "more_body": False}

    guard = Guard(PlainTextResponse("here"), Counters(), Browsers("127.0.0.1"), "key")  # type: ignore[arg-type]
    asyncio.run(guard(scope, receive, send))  # type: ignore[arg-type]
    if statuses not in ([200], [400], [401], [403], [431]):
        raise AssertionError(f"answered with {statuses}")


def _target(name: str) -> tuple[list[bytes], Callable[[bytes, Path], None]]:
    if name == "http_head":
        importlib.import_module("boxwright.inference.serving.guard")  # here, so that its lines are counted
        return _HEADS, answer_head
    from tests.fuzz.readers import READERS

    return READERS[name].seeds(), READERS[name].read


def fuzz_one(name: str, seconds: int, seed: int, findings: Path) -> None:
    """Fuzz a target in this process, which ends with it."""
    import atheris

    warnings.simplefilter("ignore")
    with atheris.instrument_imports(include=["boxwright", "h11"]):
        seeds, read = _target(name)

    from boxwright.base.errors import BoxwrightError

    corpus, folder = Path(tempfile.mkdtemp()), Path(tempfile.mkdtemp())
    for number, content in enumerate(seeds):
        (corpus / str(number)).write_bytes(content)

    def attempt(data: bytes) -> None:
        shutil.rmtree(folder)
        folder.mkdir()
        try:
            read(data, folder)
        except BoxwrightError as error:
            if "\n" in str(error) or len(str(error)) > 5000:
                raise

    options = [
        f"-max_total_time={seconds}",
        f"-seed={seed}",
        f"-timeout={SECONDS_FOR_ONE}",
        f"-rss_limit_mb={MEMORY_MIB}",
    ]
    atheris.Setup(
        [sys.argv[0], *options, f"-artifact_prefix={findings}/{name}-", "-max_len=65536", str(corpus)], attempt
    )
    atheris.Fuzz()


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("targets", nargs="*", help=f"of {', '.join(TARGETS)}; default: all")
    parser.add_argument("--seconds", type=int, default=60, help="for each target")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--findings", type=Path, default=Path("findings"))
    parser.add_argument("--here", action="store_true", help="fuzz the one target that is named in this process")
    given = parser.parse_args()
    given.findings.mkdir(parents=True, exist_ok=True)
    if given.here:
        fuzz_one(given.targets[0], given.seconds, given.seed, given.findings.absolute())
    failed = 0
    for name in given.targets or TARGETS:
        words = ["--seconds", given.seconds, "--seed", given.seed, "--findings", given.findings, "--here", name]
        command = [sys.executable, "-m", "tests.fuzz.guided", *map(str, words)]
        done = subprocess.run(
            command, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True, errors="replace", check=False
        )
        runs = re.findall(r"^Done (\d+) runs", done.stderr, re.MULTILINE) or re.findall(
            r"^#(\d+)", done.stderr, re.MULTILINE
        )
        covered = re.findall(r"\bcov: (\d+)", done.stderr) or ["0"]
        problem = "" if done.returncode == 0 else f"FINDING ({done.returncode})"
        print(
            f"{name:<14}{runs[-1] if runs else 0:>9} inputs  {covered[0]:>6} to {covered[-1]} branches  {problem}",
            flush=True,
        )
        if problem:
            failed += 1
            (given.findings / f"{name}.log").write_text(done.stderr[-20_000:])
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
