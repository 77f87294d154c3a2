"""Result files, written while detecting, so that a long video takes no memory."""

from __future__ import annotations

import csv
import io
import json
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Any, BinaryIO, Protocol

import numpy as np
from numpy.typing import NDArray

from boxwright.base.files import open_whole
from boxwright.evaluation.pictures import LEAST_KEYPOINT_SCORE
from boxwright.evaluation.results import detection_rows, large_values
from boxwright.inference.reidentification import NO_TRACK
from boxwright.inference.sources import Frame
from boxwright.types import Categories, FoundObjects

Row = dict[str, Any]
_OF_ANNOTATIONS = ("category_id", "bbox", "score", "segmentation", "embedding", "surface")
_COLUMNS = ["file", "frame", "time", "track", "class_id", "class", "score", "x_min", "y_min", "x_max", "y_max"]


class ResultFile(Protocol):
    """A file that is written picture by picture."""

    def add(self, frame: Frame, found: FoundObjects, rows: Sequence[Row]) -> None:
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

    def add(self, frame: Frame, found: FoundObjects) -> None:
        """Write the next picture's detections."""
        rows = _rows(str(self._pictures), frame, found)
        for file in self._files:
            file.add(frame, found, rows)
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

    def add(self, frame: Frame, found: FoundObjects, rows: Sequence[Row]) -> None:
        del frame, found
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

    def add(self, frame: Frame, found: FoundObjects, rows: Sequence[Row]) -> None:
        height, width = found.image_size
        name = frame.source if frame.time is None else f"{frame.source}#{frame.number}"
        number = len(self._images) + 1
        self._images.append({"id": number, "file_name": name, "height": height, "width": width})
        self._categories = found.categories
        self._labels.update(found.labels.tolist())
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
        for one in classes:
            # COCO's readers need a name for each point.
            if count := self._keypoint_counts.get(one["id"], 0):
                one["keypoints"] = names.get(one["id"]) or [f"keypoint {number + 1}" for number in range(count)]
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

    def add(self, frame: Frame, found: FoundObjects, rows: Sequence[Row]) -> None:
        del frame
        for row, box in zip(rows, found.boxes.tolist(), strict=True):
            corners = [round(value, 3) for value in box]
            told = [row.get("frame", ""), row.get("time", ""), row.get("track_id", "")]
            self._write([row["file_name"], *told, row["category_id"], row["category_name"], row["score"], *corners])

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


def _rows(image_id: str, frame: Frame, found: FoundObjects) -> list[dict[str, Any]]:
    of_video = {} if frame.time is None else {"frame": frame.number, "time": round(frame.time, 4)}
    rows = detection_rows(found, image_id, found.categories)
    tracks = [{}] * len(found) if found.tracks is None else [{"track_id": number} for number in _numbers(found.tracks)]
    return [
        {**row, **large, "file_name": frame.source, "category_name": name, **of_video, **track}
        for row, large, name, track in zip(rows, large_values(found), found.names(), tracks, strict=True)
    ]


def _numbers(tracks: NDArray[np.int64]) -> list[int | None]:
    return [None if track == NO_TRACK else track for track in tracks.tolist()]
