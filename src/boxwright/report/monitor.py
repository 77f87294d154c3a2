"""The page of `boxwright monitor`: a run's curves, speed and latest pictures, from the files that the run writes.

Nothing of the run is changed or locked: the log (`metrics.jsonl`) is read from where the page's last request ended, and
TensorBoard's files from where they were last read.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import lru_cache
from importlib.resources import files
from pathlib import Path
from typing import Any

import orjson
from fastapi import FastAPI, Request, Response
from fastapi.concurrency import run_in_threadpool

from boxwright.base.errors import BoxwrightError, CheckpointError
from boxwright.base.files import is_folder, shown
from boxwright.base.text import is_count
from boxwright.evaluation.events import EventFollower, LoggedPicture
from boxwright.inference.serving.app import add_files
from boxwright.inference.serving.guard import Browsers, Counters, Guard, error_response
from boxwright.inference.serving.settings import ServerSettings
from boxwright.pipeline.load import load_config
from boxwright.report.metric_words import readable_name
from boxwright.training.lock import LOCK, read_run_state
from boxwright.training.log import LINES, parse_line

_ASSETS = ("report.css", "charts.js", "monitor.css", "monitor.js")
_CONFIG = "pipeline.config"
# One of these is in a folder from a run's start on.
_OF_A_RUN = (LINES, _CONFIG, LOCK)
# Lines of training that one answer holds: more would not be seen in a curve.
_MOST_ROWS = 2000
_EVALUATED, _INPUTS = "eval_side_by_side_", "train_input_images/"


def require_run(folder: Path) -> None:
    """Raise a CheckpointError unless a folder holds a run, which may have just begun."""
    if not is_folder(folder):
        raise CheckpointError(f"{shown(folder)}: no such folder; name the run's, the --model_dir of boxwright train")
    if not any((folder / name).exists() for name in _OF_A_RUN):
        raise CheckpointError(
            f"{shown(folder)}: no run is in this folder (no {LINES}, no {_CONFIG}); name the --model_dir of "
            "boxwright train"
        )


@dataclass(frozen=True)
class LogPart:
    """New lines of a run's log.

    Attributes:
        file: Which file they are of: a run that resumes writes its log anew.
        stop: The byte at which the next part begins.
        rows: Numbers by name; `step` in each, `evaluation` in those of an evaluation.
        age: Seconds since the log was written to; None before its first line.
    """

    file: str
    stop: int
    rows: list[dict[str, object]]
    age: float | None


def read_log(folder: Path, file: str = "", start: int = 0) -> LogPart:
    """Return the complete lines of a run's log from a byte on; all of them if it is another file by now."""
    try:
        with (folder / LINES).open("rb") as lines:
            stat = (folder / LINES).stat()
            current = f"{stat.st_dev}-{stat.st_ino}"
            start = start if current == file and start <= stat.st_size else 0
            lines.seek(start)
            text = lines.read()
    except OSError:
        return LogPart("", 0, [], None)
    text = text[: text.rfind(b"\n") + 1]
    rows = [parse_line(line) for line in text.decode(errors="replace").splitlines()]
    rows = [row for row in rows if isinstance(row.get("step"), int)]
    return LogPart(current, start + len(text), thin(rows), max(time.time() - stat.st_mtime, 0.0))


def thin(rows: Sequence[dict[str, object]], most: int = _MOST_ROWS) -> list[dict[str, object]]:
    """Return all evaluations, and of the lines of training at most so many, evenly spread, the last among them."""
    training = [number for number, row in enumerate(rows) if "evaluation" not in row]
    step = -(-len(training) // most) or 1
    kept = set(training[::-1][::step])
    return [row for number, row in enumerate(rows) if number in kept or "evaluation" in row]


class RunPictures:
    """The newest pictures of a run: of its evaluations, and of what the network is given in training."""

    def __init__(self, folder: Path) -> None:
        """Begin with none; `refresh` looks for them.

        Args:
            folder: The run's.
        """
        self._folder, self._followers = folder, dict[Path, EventFollower]()
        self._newest: dict[str, LoggedPicture] = {}
        # Requests are answered by several threads.
        self._lock = threading.Lock()

    def refresh(self) -> dict[str, LoggedPicture]:
        """Return the newest pictures by a name of their own: those of the last step that had some, folder by folder."""
        with self._lock:
            for path in self._event_files():
                follower = self._followers.setdefault(path, EventFollower(path, _EVALUATED, _INPUTS))
                group = path.parent.relative_to(self._folder).as_posix()
                for picture in _read(follower):
                    self._newest[f"{group}/{picture.tag}"] = picture
            last: dict[str, int] = {}
            for name, picture in self._newest.items():
                last[_group(name)] = max(picture.step, last.get(_group(name), 0))
            return {name: picture for name, picture in self._newest.items() if picture.step == last[_group(name)]}

    def _event_files(self) -> list[Path]:
        """Return the event files of evaluations, then of training, in the order in which they were begun."""
        evaluations = sorted((self._folder / "eval").rglob("events.out.tfevents.*"), key=lambda path: path.name)
        return [*evaluations, *sorted((self._folder / "train").glob("events.out.tfevents.*"))]


def _group(name: str) -> str:
    return name.rpartition("/")[0]


def _read(follower: EventFollower) -> Iterator[LoggedPicture]:
    """Yield the new pictures of a file; none where it vanished, as when a run's folder is cleaned up."""
    try:
        yield from follower.read()
    except OSError:
        return


@lru_cache(maxsize=1)
def _read_plan(path: Path, changed: int) -> dict[str, Any]:
    """Return the steps and the batch size of a configuration; nothing if it cannot be read.

    Args:
        path: The configuration.
        changed: When it was written: another value is another configuration.
    """
    del changed
    try:
        train = load_config(path).train_config
    except BoxwrightError:
        return {}
    return {"steps": train.num_steps, "batch_size": train.batch_size} if train is not None else {}


def _plan(folder: Path) -> dict[str, Any]:
    try:
        return _read_plan(folder / _CONFIG, (folder / _CONFIG).stat().st_mtime_ns)
    except OSError:
        return {}


def describe_run(folder: Path, pictures: RunPictures, file: str, start: int) -> dict[str, Any]:
    """Return what the page asks for: the run's state, its new lines from a byte of the log on, and its pictures.

    Args:
        folder: The run's.
        pictures: Its pictures, which are looked for again.
        file: The log that the page has read.
        start: The byte up to which it has read it.
    """
    part = read_log(folder, file, start)
    names = {name for row in part.rows if "evaluation" in row for name in row} - {"step", "evaluation"}
    return {
        "run": folder.resolve().name,
        "state": read_run_state(folder),
        **_plan(folder),
        "age": part.age,
        "file": part.file,
        "stop": part.stop,
        "again": part.file != file or start > part.stop,
        "rows": part.rows,
        "names": {name: readable_name(name) for name in sorted(names)},
        "pictures": [{"name": name, "step": picture.step} for name, picture in pictures.refresh().items()],
    }


def make_monitor(folder: Path, settings: ServerSettings, api_key: str = "") -> FastAPI:
    """Return the application that shows a run.

    Args:
        folder: The run's.
        settings: Of the server: its address, and the names that browsers may reach it by.
        api_key: What the page sends as `Authorization: Bearer …`; empty for no key.

    Raises:
        CheckpointError: If the folder holds no run.
    """
    require_run(folder)
    pictures = RunPictures(folder)
    app = FastAPI(docs_url=None, redoc_url=None, openapi_url=None)
    browsers = Browsers(settings.host, settings.allow_host)
    app.add_middleware(Guard, counters=Counters(), browsers=browsers, api_key=api_key)
    assets, icon = files("boxwright.report").joinpath("assets"), "icon.svg"
    pages = {name: assets.joinpath(name).read_bytes() for name in _ASSETS}
    pages["index.html"] = assets.joinpath("monitor.html").read_bytes()
    pages[icon] = files("boxwright.inference.serving").joinpath("page", icon).read_bytes()
    add_files(app, pages)

    @app.get("/run")
    async def run(request: Request) -> Response:
        query = request.query_params
        start = int(query["start"]) if is_count(query.get("start", "")) else 0
        content = await run_in_threadpool(describe_run, folder, pictures, query.get("file", ""), start)
        return Response(orjson.dumps(content), media_type="application/json")

    @app.get("/pictures/{name:path}")
    async def picture(name: str) -> Response:
        # By the names that were handed out alone: no request names a path.
        newest = (await run_in_threadpool(pictures.refresh)).get(name)
        if newest is None:
            return error_response(404, "no such picture, or no longer")
        kind = "image/png" if newest.encoded.startswith(b"\x89PNG") else "image/jpeg"
        return Response(newest.encoded, headers={"X-Content-Type-Options": "nosniff"}, media_type=kind)

    @app.exception_handler(404)
    async def unknown(_: Request, __: Exception) -> Response:
        return error_response(404, "no such address; see /")

    return app
