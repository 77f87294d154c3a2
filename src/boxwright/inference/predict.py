"""Detecting objects in images, videos and streams: drawn pictures and videos, and result files."""

from __future__ import annotations

import itertools
import signal
import threading
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import closing, contextmanager
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from boxwright.base.errors import DataError
from boxwright.base.files import MARKER, unfinished, unique_stem, write_whole
from boxwright.data.image_io import encode_picture
from boxwright.evaluation.pictures import draw_detections
from boxwright.inference.finders import finder_with
from boxwright.inference.result_files import RESULT_FILES, ResultFiles
from boxwright.inference.settings import PredictionSettings
from boxwright.inference.sources import Frame, Source
from boxwright.inference.stages import Stage, Stages, StageTimes
from boxwright.inference.tracking import Tracker
from boxwright.inference.video import open_video_for_writing
from boxwright.types import Finder, FoundObjects

_DEFAULTS = PredictionSettings()
_DRAWN_AT_ONCE = 4  # pictures; they mostly wait for the disk


@dataclass(frozen=True)
class PredictionCounts:
    """Counts of a prediction."""

    pictures: int
    objects: int
    times: StageTimes


@dataclass(frozen=True, eq=False)
class _ProcessedPicture:
    """A processed picture; with the drawn one, for a video."""

    source: Source
    frame: Frame
    found: FoundObjects
    drawn: NDArray[np.uint8] | None = None


def _nothing(_: Frame) -> None:
    pass


def predict(
    detect: Finder,
    sources: Sequence[Source],
    out: str | Path,
    settings: PredictionSettings = _DEFAULTS,
    seen: Callable[[Frame], None] = _nothing,
) -> PredictionCounts:
    """Detect objects; draw pictures for image files and videos for videos, and write result files.

    Reading, the network, drawing and writing run in separate threads, on different pictures at a time. Live sources
    (cameras, streams) skip to their newest picture, and Ctrl-C ends them like their own end.

    Args:
        out: The folder for results; it is created.
        seen: Called with each picture when it is done, for progress.

    Raises:
        ConfigError: For an unknown `merge`.
        DataError: If an image or a video cannot be read; results up to it are written, and the folder stays marked as
            unfinished, as after any other error.
        OutputError: If the disk is full or the folder cannot be written.
    """
    look = finder_with(detect, settings)
    names = _names(sources, Path(out), settings)
    with unfinished(out, "predictions") as folder, Stages() as stages:
        pairs = ((source, frame) for source in sources for frame in source.frames())
        # With a file among the sources, no picture may be skipped.
        live = all(source.live for source in sources)
        reading = (stages.newest if live else stages.ahead)("read", itertools.islice(pairs, settings.frames or None))
        found = stages.ahead("network", _detected(reading, look, settings))
        draw = partial(_drawn, names=names, folder=folder, settings=settings)
        # With several threads, a live picture would wait until as many more have arrived.
        drawn = stages.spread("draw", draw, found, 1 if live else _DRAWN_AT_ONCE)
        written = stages.ahead("write", _written(drawn, names, folder))
        pictures, objects = 0, 0
        with closing(ResultFiles(folder, _result_names(settings))) as results, _interrupt_ends(reading, live=live):
            for item in written:
                results.add(item.frame, item.found)
                pictures, objects = pictures + 1, objects + len(item.found)
                seen(item.frame)
        times = stages.times("tables")
    return PredictionCounts(pictures, objects, times)


def _detected(
    pairs: Iterable[tuple[Source, Frame]], look: Finder, settings: PredictionSettings
) -> Iterator[_ProcessedPicture]:
    tracked: Source | None = None
    tracker = None
    for source, frame in pairs:
        (found,) = look([frame.image])
        if settings.track and source.moving:
            tracker = tracker if tracked is source and tracker else Tracker(settings.min_score, settings.reidentify)
            tracked, found = source, tracker.update(found, frame.time or 0.0)
        # Tracked objects stay even below the least score.
        yield _ProcessedPicture(source, frame, found if tracked is source else found.above(settings.least_score))


def _drawn(
    item: _ProcessedPicture, *, names: dict[Source, str], folder: Path, settings: PredictionSettings
) -> _ProcessedPicture:
    """Draw a picture; an image's is written at once, and its pixels are released."""
    if item.source not in names:
        return item
    drawn = draw_detections(item.frame.image, item.found, 0.0, settings.max_boxes)
    if item.source.moving:
        return replace(item, drawn=drawn)
    write_whole(folder / names[item.source], encode_picture(drawn, Path(names[item.source]).suffix))
    return item


def _written(items: Iterable[_ProcessedPicture], names: dict[Source, str], folder: Path) -> Iterator[_ProcessedPicture]:
    """Write the videos, and yield each picture's detections."""
    for source, group in itertools.groupby(items, key=lambda item: item.source):
        if source not in names or not source.moving:
            yield from group
            continue
        with open_video_for_writing(folder / names[source]) as video:
            for item in group:
                video.write(_picture(item), item.frame.time or 0.0)
                yield item


def _picture(item: _ProcessedPicture) -> NDArray[np.uint8]:
    return item.frame.image if item.drawn is None else item.drawn


def _names(sources: Sequence[Source], out: Path, settings: PredictionSettings) -> dict[Source, str]:
    """Return a file name for each image's picture and each video, all different, none overwriting a source."""
    taken: set[str] = set()
    files = {Path(source.name).resolve() for source in sources}
    own: set[Path] = set()
    # Pictures of an earlier run are replaced; in a folder without one, existing files are the user's own.
    if out.is_dir() and not any((out / name).exists() for name in (*RESULT_FILES, MARKER)):
        own = {path.resolve() for path in out.iterdir()} - files
    names: dict[Source, str] = {}
    for source in sources:
        if not (settings.save_video if source.moving else settings.pictures):
            continue
        suffix = ".mp4" if source.moving else f".{settings.picture_format}"
        stem = unique_stem(Path(source.name).stem, taken)
        if not source.moving and (out / f"{stem}{suffix}").resolve() in files | own:
            stem = unique_stem(f"{stem}-detected", taken)
        target = (out / f"{stem}{suffix}").resolve()
        if target in files | own:
            what = "one of the sources" if target in files else "an existing file, not from an earlier run"
            raise DataError(f"{out / stem}{suffix} is {what}; write to another folder")
        names[source] = f"{stem}{suffix}"
    return names


def _result_names(settings: PredictionSettings) -> list[str]:
    asked = {"detections.json": settings.json, "coco.json": settings.coco, "detections.csv": settings.csv}
    return [name for name, wanted in asked.items() if wanted] or ["detections.json"]


@contextmanager
def _interrupt_ends(reading: Stage[Any], *, live: bool) -> Iterator[None]:
    """Make Ctrl-C end a stream like its own end: results are written, videos are complete."""
    if not live or threading.current_thread() is not threading.main_thread():
        yield
        return
    before = signal.getsignal(signal.SIGINT)

    def stop(*_: object) -> None:
        signal.signal(signal.SIGINT, before)  # a second Ctrl-C interrupts
        reading.end()

    signal.signal(signal.SIGINT, stop)
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, before)
