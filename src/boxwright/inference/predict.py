"""Detecting objects in images, videos and streams: drawn pictures and videos, and result files.

Result files are written while detecting, so that a long video takes no memory.
"""

from __future__ import annotations

import csv
import io
import itertools
import json
import signal
import threading
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import ExitStack, closing, contextmanager
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any, BinaryIO, Protocol

import numpy as np
from numpy.typing import NDArray

from boxwright.base.errors import DataError
from boxwright.base.files import MARKER, open_whole, unfinished, unique_stem, write_whole
from boxwright.base.text import to_cell
from boxwright.base.threads import map_in_order
from boxwright.data.image_io import encode_picture
from boxwright.evaluation.pictures import LEAST_KEYPOINT_SCORE, draw_detections
from boxwright.evaluation.results import detection_rows, large_values
from boxwright.inference.detect_functions import apply_settings
from boxwright.inference.object_files import (
    CLASSES,
    CROPS,
    IN_NAMES,
    LABELS,
    require_unused,
    write_class_names,
    write_crops,
    write_yolo_labels,
)
from boxwright.inference.settings import PredictionSettings
from boxwright.inference.sources import Frame, Source
from boxwright.inference.stages import Stage, Stages, StageTimes, ThreadCounts
from boxwright.inference.tracking import NO_TRACK, Tracker
from boxwright.inference.video import open_video_for_writing
from boxwright.types import Array, Categories, DetectFunction, Detections

Row = dict[str, Any]
_Picture = tuple[Source, Frame]
_Seen = tuple[Source, Frame, Detections[Array]]
_OF_ANNOTATIONS = ("category_id", "bbox", "score", "segmentation", "embedding", "surface")
_COLUMNS = ["file", "frame", "time", "track", "class_id", "class", "score", "x_min", "y_min", "x_max", "y_max"]


class ResultFile(Protocol):
    """A file that is written picture by picture."""

    def add(self, frame: Frame, detections: Detections[Array], rows: Sequence[Row]) -> None:
        """Write a picture's detections; `rows` has them as COCO rows, with names."""
        ...

    def end(self) -> None:
        """Write what follows the last picture."""
        ...


class ResultFiles:
    """The result files of a folder; complete even after an error, with the detections up to it."""

    def __init__(self, folder: Path, names: list[str]) -> None:
        """Open the files of these `names`, of `RESULT_FILES`."""
        self._open = ExitStack()
        self._files = [RESULT_FILES[name](self._open.enter_context(open_whole(folder / name))) for name in names]
        self._pictures = 0

    def add(self, frame: Frame, detections: Detections[Array]) -> None:
        """Write the next picture's detections."""
        rows = _rows(str(self._pictures), frame, detections)
        for file in self._files:
            file.add(frame, detections, rows)
        self._pictures += 1

    def close(self) -> None:
        """Finish each file; OutputError if the disk is full."""
        with self._open:
            for file in self._files:
                file.end()


class _Rows:
    """A JSON list with one COCO row per object, with names."""

    def __init__(self, file: BinaryIO) -> None:
        self._list = _JsonList(file)
        file.write(b"[")

    def add(self, frame: Frame, detections: Detections[Array], rows: Sequence[Row]) -> None:
        del frame, detections
        for row in rows:
            self._list.add(row)

    def end(self) -> None:
        self._list.file.write(b"\n]\n")


class _CocoDataset:
    """A COCO data set of the detections, whose annotations have scores."""

    def __init__(self, file: BinaryIO) -> None:
        self._annotations = _JsonList(file)
        self._images: list[dict[str, Any]] = []
        self._categories: Categories | None = None
        self._labels: set[int] = set()
        self._keypoint_counts: dict[int, int] = {}
        # Annotations come first, one by one; images and categories are complete only at the end.
        file.write(b'{"annotations": [')

    def add(self, frame: Frame, detections: Detections[Array], rows: Sequence[Row]) -> None:
        height, width = detections.image_size
        name = frame.source if frame.time is None else f"{frame.source}#{frame.number}"
        number = len(self._images) + 1
        self._images.append({"id": number, "file_name": name, "height": height, "width": width})
        self._categories = detections.categories
        self._labels.update(detections.labels.tolist())
        for row in rows:
            known = {key: row[key] for key in _OF_ANNOTATIONS if key in row}
            known |= self._keypoints(row)
            area = round(row["bbox"][2] * row["bbox"][3], 3)
            place = {"id": self._annotations.count + 1, "image_id": number}
            self._annotations.add({**place, **known, "area": area, "iscrowd": 0})

    def end(self) -> None:
        if self._categories is None:
            classes: list[Row] = [{"id": label + 1, "name": f"class {label + 1}"} for label in sorted(self._labels)]
            names: dict[int, list[str]] = {}
        else:
            classes = [{"id": item.id, "name": item.title} for item in self._categories.items]
            names = {item.id: list(item.keypoints) for item in self._categories.items}
        for category in classes:
            # COCO's readers need a name for each point.
            if count := self._keypoint_counts.get(category["id"], 0):
                category["keypoints"] = names.get(category["id"]) or [
                    f"keypoint {number + 1}" for number in range(count)
                ]
        rest = f'"images": {json.dumps(self._images)}, "categories": {json.dumps(classes)}'
        self._annotations.file.write(f"\n], {rest}}}\n".encode())

    def _keypoints(self, row: Row) -> Row:
        """Return a row's keypoints with COCO's visibility in place of their scores, and the scores beside them."""
        if "keypoints" not in row:
            return {}
        points = np.reshape(np.array(row["keypoints"], np.float64), (-1, 3))
        self._keypoint_counts[row["category_id"]] = len(points)
        visible = points[:, 2] >= LEAST_KEYPOINT_SCORE
        marks = np.concatenate([np.where(visible[:, None], points[:, :2], 0), 2 * visible[:, None]], 1)
        return {
            "keypoints": marks.flatten().tolist(),
            "num_keypoints": int(visible.sum()),
            "keypoint_scores": points[:, 2].tolist(),
        }


class _Table:
    """A CSV line per object; boxes are corners in pixels."""

    def __init__(self, file: BinaryIO) -> None:
        self._file = file
        self._write(_COLUMNS)

    def add(self, frame: Frame, detections: Detections[Array], rows: Sequence[Row]) -> None:
        del frame
        for row, box in zip(rows, detections.boxes.tolist(), strict=True):
            corners = [round(value, 3) for value in box]
            told = [row.get("frame", ""), row.get("time", ""), row.get("track_id", "")]
            name, category = to_cell(row["file_name"]), to_cell(row["category_name"])
            self._write([name, *told, row["category_id"], category, row["score"], *corners])

    def end(self) -> None:
        pass

    def _write(self, cells: list[Any]) -> None:
        text = io.StringIO()
        csv.writer(text, lineterminator="\n").writerow(cells)
        # A file's name may not be UTF-8: Python then holds lone surrogates.
        self._file.write(text.getvalue().encode("utf-8", "backslashreplace"))


RESULT_FILES: dict[str, Callable[[BinaryIO], ResultFile]] = {
    "detections.json": _Rows,
    "coco.json": _CocoDataset,
    "detections.csv": _Table,
}


class _JsonList:
    """A JSON list that is being written."""

    def __init__(self, file: BinaryIO) -> None:
        self.file, self.count = file, 0

    def add(self, item: dict[str, Any]) -> None:
        self.file.write((",\n " if self.count else "\n ").encode() + json.dumps(item).encode())
        self.count += 1


def _rows(image_id: str, frame: Frame, detections: Detections[Array]) -> list[dict[str, Any]]:
    of_video = {} if frame.time is None else {"frame": frame.number, "time": round(frame.time, 4)}
    rows = detection_rows(detections, image_id, detections.categories)
    tracks: list[Row] = [{} for _ in rows]
    if detections.tracks is not None:
        tracks = [{"track_id": None if track == NO_TRACK else track} for track in detections.tracks.tolist()]
    return [
        {**row, **large, "file_name": frame.source, "category_name": name, **of_video, **track}
        for row, large, name, track in zip(rows, large_values(detections), detections.names(), tracks, strict=True)
    ]


_DEFAULTS = PredictionSettings()
_DRAWN_AT_ONCE = 4  # pictures; they mostly wait for the disk
_READ_AHEAD = 4


@dataclass(frozen=True)
class PredictionCounts:
    """Counts of a prediction.

    Attributes:
        errors: For each source that could not be read, or not to its end, a line with its name and the reason.
    """

    pictures: int
    objects: int
    times: StageTimes
    errors: Sequence[str] = ()


class _ReadErrors:
    """The errors of sources, by source; of a source, the first."""

    def __init__(self, *, strict: bool) -> None:
        """Start without any; with `strict`, the first is raised instead of kept."""
        self._strict = strict
        self._lines: dict[Source, str] = {}

    @contextmanager
    def kept(self, source: Source) -> Iterator[None]:
        """Keep a DataError that is raised in this context."""
        try:
            yield
        except DataError as error:
            if self._strict:
                raise
            line = str(error)
            self._lines.setdefault(source, line if source.name in line else f"{source.name}: {line}")

    def lines(self, sources: Sequence[Source]) -> list[str]:
        """Return a line for each of the sources that has an error, in their order."""
        return [self._lines[source] for source in sources if source in self._lines]


@dataclass(frozen=True)
class _FileNames:
    """The names of a prediction's files.

    Attributes:
        drawn: Of each image's drawn picture and each video's; without those that are not drawn.
        stems: What the names of a source's crops and labels begin with; empty if neither is written.
    """

    drawn: dict[Source, str]
    stems: dict[Source, str]


@dataclass(frozen=True, eq=False)
class _ProcessedPicture:
    """A processed picture; with the drawn one, for a video."""

    source: Source
    frame: Frame
    detections: Detections[Array]
    drawn: NDArray[np.uint8] | None = None


def _nothing(_: Frame) -> None:
    pass


def predict(
    detect: DetectFunction,
    sources: Sequence[Source],
    out: str | Path,
    settings: PredictionSettings = _DEFAULTS,
    seen: Callable[[Frame], None] = _nothing,
    device: str = "",
    batch_size: int = 8,
) -> PredictionCounts:
    """Detect objects; draw pictures for image files and videos for videos, and write result files.

    Reading, the network, drawing and writing run in separate threads, on different pictures at a time. Live sources
    (cameras, streams) skip to their newest picture, and Ctrl-C ends them like their own end.

    A file that cannot be read is left out, and listed in the result.

    Args:
        out: The folder for results; it is created.
        seen: Called with each picture when it is done, for progress.
        device: Where the detector is, as `ImageDetector` says.
        batch_size: On a GPU, so many pictures are detected in together, if they are ready; elsewhere each by itself.

    Raises:
        ConfigError: For an unknown `merge`.
        DataError: If nothing can be read or, with `strict`, a file cannot; results up to it are written, and the folder
            stays marked as unfinished, as after any other error.
        OutputError: If the disk is full or the folder cannot be written, or has labels or crops already.
    """
    look = apply_settings(detect, settings)
    names = _FileNames(_names(sources, Path(out), settings), _stems(sources, settings))
    require_unused(Path(out), [*([CROPS] if settings.save_crops else []), *([LABELS] if settings.save_txt else [])])
    errors = _ReadErrors(strict=settings.strict)
    with unfinished(out, "predictions") as folder, Stages() as stages:
        threads = ThreadCounts.of(device, exclusive=settings.compile or settings.cuda_graphs)
        batch_size = batch_size if threads.reading > 1 else 1
        pairs = itertools.islice(_read(sources, errors, threads.reading), settings.frames or None)
        # With a file among the sources, no picture may be skipped.
        live = all(source.live for source in sources)
        reading = stages.newest("read", pairs) if live else stages.ahead("read", pairs, max(batch_size, _READ_AHEAD))
        # With several threads, a live picture would wait until as many more have arrived.
        look_at = partial(_look_at, look=look, errors=errors)
        looked = stages.spread("network", look_at, reading.batches(batch_size), 1 if live else threads.network)
        processed = _tracked(itertools.chain.from_iterable(looked), settings)
        draw = partial(_drawn, names=names, folder=folder, settings=settings)
        drawn = stages.spread("draw", draw, processed, 1 if live else _DRAWN_AT_ONCE)
        written = stages.ahead("write", _written(drawn, names.drawn, folder))
        pictures, objects, categories = 0, 0, None
        with closing(ResultFiles(folder, _result_names(settings))) as results, _interrupt_ends(reading, live=live):
            for item in written:
                results.add(item.frame, item.detections)
                pictures, objects = pictures + 1, objects + len(item.detections)
                categories = item.detections.categories
                seen(item.frame)
        if settings.save_txt and categories is not None:
            write_class_names(folder / CLASSES, categories)
        lines = errors.lines(sources)
        if lines and not pictures:
            raise DataError("; ".join(lines))
        times = stages.times("tables")
    return PredictionCounts(pictures, objects, times, lines)


def _read(sources: Sequence[Source], errors: _ReadErrors, threads: int) -> Iterator[_Picture]:
    """Yield the pictures of all sources, without those that cannot be read; of image files several at a time."""
    for moving, group in itertools.groupby(sources, key=lambda source: source.moving):
        if moving or threads == 1:
            for source in group:
                with errors.kept(source):
                    for frame in source.frames():
                        yield source, frame
            continue
        for pictures in map_in_order(partial(_read_image, errors=errors), group, threads):
            yield from pictures


def _read_image(source: Source, errors: _ReadErrors) -> list[_Picture]:
    with errors.kept(source):
        return [(source, frame) for frame in source.frames()]
    return []


def _look_at(pictures: list[_Picture], look: DetectFunction, errors: _ReadErrors) -> list[_Seen]:
    """Return the detections in each picture, without pictures that the detector refuses for their channels."""
    try:
        detections = look([frame.image for _, frame in pictures])
    except DataError:
        if len(pictures) > 1:
            return [seen for picture in pictures for seen in _look_at([picture], look, errors)]
        with errors.kept(pictures[0][0]):
            raise
        return []
    return [(*picture, found) for picture, found in zip(pictures, detections, strict=True)]


def _tracked(pictures: Iterable[_Seen], settings: PredictionSettings) -> Iterator[_ProcessedPicture]:
    """Yield what was detected in each picture; in those of a video, the objects with their numbers where asked."""
    tracked: Source | None = None
    tracker = None
    for source, frame, found in pictures:
        detections = found
        if settings.track and source.moving:
            tracker = tracker if tracked is source and tracker else Tracker(settings.min_score, settings.reidentify)
            tracked, detections = source, tracker.update(found, frame.time or 0.0)
        # Tracked objects stay even below the least score.
        yield _ProcessedPicture(
            source, frame, detections if tracked is source else detections.above(settings.least_score)
        )


def _drawn(
    item: _ProcessedPicture, *, names: _FileNames, folder: Path, settings: PredictionSettings
) -> _ProcessedPicture:
    """Draw a picture; an image's is written at once, with its crops and labels, and its pixels are released."""
    if item.source in names.stems:
        _write_objects(item, names.stems[item.source], folder, settings)
    if item.source not in names.drawn:
        return item
    drawn = draw_detections(item.frame.image, item.detections, 0.0, settings.max_boxes)
    if item.source.moving:
        return replace(item, drawn=drawn)
    name = names.drawn[item.source]
    write_whole(folder / name, encode_picture(drawn, Path(name).suffix))
    return item


def _write_objects(item: _ProcessedPicture, stem: str, folder: Path, settings: PredictionSettings) -> None:
    """Write a picture's crops and labels; those of a video's pictures are in a folder of the video, by number."""
    if settings.save_txt:
        name = f"{stem}/{item.frame.number}.txt" if item.source.moving else f"{stem}.txt"
        write_yolo_labels(folder / LABELS / name, item.detections)
    if settings.save_crops:
        name = f"{stem}/{item.frame.number}" if item.source.moving else stem
        write_crops(folder / CROPS, name, item.frame.image, item.detections, f".{settings.picture_format}")


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
        stem = unique_stem(Path(source.name).stem, taken, IN_NAMES)
        if not source.moving and (out / f"{stem}{suffix}").resolve() in files | own:
            stem = unique_stem(f"{stem}-detected", taken, IN_NAMES)
        target = (out / f"{stem}{suffix}").resolve()
        if target in files | own:
            what = "one of the sources" if target in files else "an existing file, not from an earlier run"
            raise DataError(f"{out / stem}{suffix} is {what}; write to another folder")
        names[source] = f"{stem}{suffix}"
    return names


def _stems(sources: Sequence[Source], settings: PredictionSettings) -> dict[Source, str]:
    """Return what the names of each source's crops and labels begin with, all different; empty if none are written."""
    if not (settings.save_crops or settings.save_txt):
        return {}
    taken: set[str] = set()
    return {source: unique_stem(Path(source.name).stem, taken, IN_NAMES) for source in sources}


def _result_names(settings: PredictionSettings) -> list[str]:
    asked = {"detections.json": settings.as_json, "coco.json": settings.coco, "detections.csv": settings.csv}
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
