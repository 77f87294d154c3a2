"""Context features for records of camera traps (Context R-CNN): each image's best box, remembered for its neighbors.

A folder of results holds

    _plan.json              the records, the detector and the options; a resumed run must have the same
    _embeddings/00003.npz   of the fourth input file: captures and scores of its images
    _embeddings/00003.npy   their embeddings, float32 [N, F]
    context.record-00003-of-00012
    banks/C09.npy           if asked for, each camera's newest context features

However a run ends, the same command resumes it: files that are there are complete, as each appears under its name last.
Where and when images were captured is read under the keys of the TF Object Detection API's scripts for camera traps,
whose encodings and groups these are.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass
from datetime import datetime
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from boxwright.base.errors import CheckpointError, DataError
from boxwright.base.files import make_folder, open_whole, shown, unique_stem, write_whole
from boxwright.data.example_messages import Features, with_context
from boxwright.data.image_io import decode_image, image_size
from boxwright.data.reading import whole_number
from boxwright.data.tf_example import encoded_image, read_features, text_feature
from boxwright.data.tfrecord import TFRecordFile, write_records_to
from boxwright.data.tfrecord_dataset import encode_sequence
from boxwright.inference.settings import ContextSettings
from boxwright.runtime.formats import is_export
from boxwright.weights.open_model import fixed, open_model

_DATE = "image/date_captured"
_FRAME = "image/seq_frame_num"
_DATE_FORMAT = "%Y-%m-%d %H:%M:%S"
_FIRST_YEAR, _LAST_YEAR = 1990, 2030


@dataclass(frozen=True)
class Capture:
    """The circumstances of an image.

    Attributes:
        id: The image's id in its source.
        sequence: Its camera or sequence.
        frame: Its number in the sequence; 0 if unknown.
    """

    id: str
    sequence: str
    time: datetime
    frame: int = 0


def read_capture(features: Features, key: str, where: str) -> Capture | None:
    """Return the capture of a record's image, or None if it lacks a date or its sequence, which `key` names.

    Raises:
        DataError: If the date is malformed.
    """
    date, sequence = text_feature(features, _DATE, where), text_feature(features, key, where)
    if not date or not sequence:
        return None
    try:
        time = datetime.strptime(date, _DATE_FORMAT)
    except ValueError:
        raise DataError(f"{where}: {_DATE}: expected a date such as 2015-07-30 18:04:59; found {date[:40]!r}") from None
    frames = features.get(_FRAME, ())
    frame = whole_number(frames[0], f"{where}: {_FRAME}") if len(frames) else 0
    return Capture(text_feature(features, "image/source_id", where), sequence, time, frame)


def time_embedding(time: datetime) -> NDArray[np.float32]:
    """Return a date as five numbers, mostly in 0..1, float32 [5]: year, month, day, hour, minute."""
    year = (time.year - _FIRST_YEAR) / (_LAST_YEAR - _FIRST_YEAR)
    return np.array([year, (time.month - 1) / 12, (time.day - 1) / 31, time.hour / 24, time.minute / 60], np.float32)


def box_embedding(box: NDArray[np.float32], size: tuple[int, int]) -> NDArray[np.float32]:
    """Return a box's center, width and height in shares of the image, float32 [4].

    Args:
        box: xyxy in pixels.
        size: The image's (height, width).
    """
    left, top, right, bottom = box / np.array([size[1], size[0], size[1], size[0]], np.float32)
    width, height = right - left, bottom - top
    return np.array([left + width / 2, top + height / 2, width, height], np.float32)


# A week is a quarter of its month, or what is left of it, as in TF's script; no calendar's.
HORIZONS: dict[str, Callable[[datetime], tuple[int, ...]]] = {
    "all": lambda time: (),
    "year": lambda time: (time.year,),
    "month": lambda time: (time.year, time.month),
    "week": lambda time: (time.year, time.month, time.day // 7),
    "day": lambda time: (time.year, time.month, time.day),
    "hour": lambda time: (time.year, time.month, time.day, time.hour),
    "minute": lambda time: (time.year, time.month, time.day, time.hour, time.minute),
}


def memory_banks(captures: Sequence[Capture | None], key: str, horizon: str, most: int) -> list[list[int]]:
    """Return the groups of images that are each other's context, as indices in order of capture.

    Images of a sequence and the same span of time are a group; one of more than `most` images is divided into parts of
    nearly equal size. (TF's script never ends there.) Sequences by `image/seq_id` are ordered by frame, others by date.

    Args:
        captures: None belongs to no group.
        key: image/location or image/seq_id.
        horizon: A key of `HORIZONS`.
        most: The most images of a group.
    """
    groups: dict[tuple[str, tuple[int, ...]], list[tuple[Capture, int]]] = {}
    for index, capture in enumerate(captures):
        if capture is not None:
            groups.setdefault((capture.sequence, HORIZONS[horizon](capture.time)), []).append((capture, index))
    banks: list[list[int]] = []
    for _, members in sorted(groups.items()):
        if key == "image/seq_id":
            members.sort(key=lambda member: (member[0].frame, member[0].time))
        else:
            members.sort(key=lambda member: (member[0].time, member[0].frame))
        indices = np.array([index for _, index in members])
        banks += [part.tolist() for part in np.array_split(indices, -(-len(members) // most))]
    return banks


# From images to each best box's embedding, float32 [C + 4], and score; None if nothing was detected.
Embed = Callable[[list[NDArray[np.uint8]]], list[tuple[NDArray[np.float32], float] | None]]

_SUPPRESSION = "model.faster_rcnn.second_stage_post_processing.batch_non_max_suppression"


def open_embedder(checkpoint: Path, *, device: str = "auto") -> Embed:
    """Return a function that embeds the best box of each image: its pooled features and its place.

    Args:
        checkpoint: A run's folder or a checkpoint, of a two-stage detector without context.
        device: As for `open_model`.

    Raises:
        BoxwrightError: If there is no such detector.
    """
    if is_export(checkpoint):
        raise fixed(checkpoint)
    from boxwright.pipeline.load import with_overrides
    from boxwright.weights.restore import stored_config

    config = stored_config(checkpoint)
    two_stage = config.model.faster_rcnn if config.model is not None else None
    if two_stage is None or two_stage.number_of_stages < 2 or two_stage.context_config is not None:
        raise CheckpointError(
            f"{checkpoint}: context is computed by a two-stage detector of single images (model.faster_rcnn without "
            "context_config)"
        )
    # Features of one box per image: the second stage runs on each final box once more.
    changes = [
        "model.faster_rcnn.output_final_box_features=true",
        f"{_SUPPRESSION}.max_total_detections=1",
        f"{_SUPPRESSION}.max_detections_per_class=1",
    ]
    config = with_overrides(config, changes)
    detector = open_model(checkpoint, device=device, config=config).detector.optimize()

    def embed(images: list[NDArray[np.uint8]]) -> list[tuple[NDArray[np.float32], float] | None]:
        embeddings: list[tuple[NDArray[np.float32], float] | None] = []
        for image, detections in zip(images, detector.detect(images), strict=True):
            if not len(detections.scores) or detections.features is None:
                embeddings.append(None)
                continue
            pooled = detections.features[0].float().mean((1, 2)).cpu().numpy()
            place = box_embedding(detections.boxes[0].numpy(), (image.shape[0], image.shape[1]))
            embeddings.append((np.concatenate([pooled, place]), float(detections.scores[0])))
        return embeddings

    return embed


_DEFAULTS = ContextSettings()
_PLAN = "_plan.json"
_BATCH = 8
_NOTHING = -1.0  # the score of an image without detections


@dataclass(frozen=True)
class ContextJob:
    """What every worker needs to know.

    Attributes:
        files: The input files.
        checkpoint: Of a two-stage detector of single images.
        threads: Per worker; 0 for its runtime's default.
    """

    files: tuple[str, ...]
    checkpoint: Path
    out: Path
    settings: ContextSettings = _DEFAULTS
    threads: int = 0

    def embeddings(self, unit: int) -> Path:
        """Return the file of an input file's embeddings."""
        return self.out / "_embeddings" / f"{unit:05d}.npy"

    def output(self, unit: int) -> Path:
        """Return an output file."""
        return self.out / f"context.record-{unit:05d}-of-{len(self.files):05d}"


def begin(job: ContextJob) -> None:
    """Write the plan, or compare it with that of a resumed run.

    Raises:
        DataError: If the folder has results of something else.
    """
    make_folder(job.out / "_embeddings")
    sizes = [(path, Path(path).stat().st_size) for path in job.files]
    options = {name: value for name, value in asdict(job.settings).items() if name not in _HOW}
    options["checkpoint"] = str(job.checkpoint)
    options["files"] = hashlib.sha256(json.dumps(sizes).encode()).hexdigest()
    place = job.out / _PLAN
    if not place.exists():
        if any(job.out.glob("context.record-*")):
            raise DataError(f"{shown(job.out)}: has context records of something else; choose another folder")
        write_whole(place, json.dumps(options, indent=1) + "\n")
        return
    before = json.loads(place.read_text())
    differs = sorted(name for name in options if before.get(name) != options[name])
    if differs:
        raise DataError(
            f"{shown(job.out)}: cannot be resumed, as it was started with other {', '.join(differs)}; "
            "choose another folder"
        )


# What does not change the records: a run may be resumed with other workers.
_HOW = ("engine", "workers", "device")


def missing_embeddings(job: ContextJob) -> list[int]:
    """Return the numbers of input files whose embeddings are missing."""
    # The captures are written after the embeddings.
    return [unit for unit in range(len(job.files)) if not job.embeddings(unit).with_suffix(".npz").exists()]


def missing_outputs(job: ContextJob) -> list[int]:
    """Return the numbers of output files that are missing."""
    return [unit for unit in range(len(job.files)) if not job.output(unit).exists()]


def remove_embeddings(job: ContextJob) -> None:
    """Remove what only a resumed run needs."""
    for unit in range(len(job.files)):
        for suffix in (".npy", ".npz"):
            job.embeddings(unit).with_suffix(suffix).unlink(missing_ok=True)
    with suppress(OSError):  # not empty: somebody's own files
        (job.out / "_embeddings").rmdir()


def embedding_worker(job: ContextJob) -> Callable[[int], int]:
    """Set up a worker's process; return what writes an input file's embeddings and returns its number of images."""
    import torch

    from boxwright.base.device import set_tf32

    if job.threads:
        torch.set_num_threads(job.threads)
    set_tf32(products=False)
    embed = open_embedder(job.checkpoint, device=job.settings.device)
    return lambda unit: _embed_file(job, unit, embed)


def _embed_file(job: ContextJob, unit: int, embed: Embed) -> int:
    file = TFRecordFile(job.files[unit])
    captures: list[Capture | None] = []
    rows: list[NDArray[np.float32]] = []
    scores: list[float] = []
    for start in range(0, len(file), _BATCH):
        images = []
        for number in range(start, min(start + _BATCH, len(file))):
            where = f"{job.files[unit]}: record {number}"
            features = read_features(file[number], where)
            captures.append(read_capture(features, job.settings.sequence_key, where))
            images.append(decode_image(encoded_image(features, where), where))
        for embedding, capture in zip(embed(images), captures[start:], strict=True):
            time = np.zeros(5, np.float32) if capture is None else time_embedding(capture.time)
            rows.append(np.zeros(0, np.float32) if embedding is None else np.concatenate([embedding[0], time]))
            scores.append(_NOTHING if embedding is None else embedding[1])
    _write_embeddings(job.embeddings(unit), rows, captures, np.array(scores, np.float32))
    return len(file)


def _write_embeddings(
    place: Path, rows: list[NDArray[np.float32]], captures: list[Capture | None], scores: NDArray[np.float32]
) -> None:
    embeddings = np.zeros((len(rows), max((len(row) for row in rows), default=0)), np.float32)
    for into, row in zip(embeddings, rows, strict=True):
        into[: len(row)] = row
    with open_whole(place) as file:
        np.save(file, embeddings)
    known = [
        None if capture is None else (capture.id, capture.sequence, capture.time.isoformat(), capture.frame)
        for capture in captures
    ]
    with open_whole(place.with_suffix(".npz")) as file:
        np.savez(file, scores=scores, captures=np.frombuffer(json.dumps(known).encode(), np.uint8))


@dataclass(frozen=True)
class ContextFileCounts:
    """Counts of an output file.

    Attributes:
        without: Images without context features: of unknown camera or date, or alone with nothing to remember.
    """

    images: int
    without: int


class MemoryBanks:
    """The embeddings of all images, grouped; one object per process."""

    def __init__(self, job: ContextJob) -> None:
        """Load captures and scores; embeddings stay on disk.

        Raises:
            DataError: If files have embeddings of different lengths.
        """
        captures: list[Capture | None] = []
        scores: list[NDArray[np.float32]] = []
        self._embeddings: list[NDArray[np.float32]] = []
        for unit in range(len(job.files)):
            place = job.embeddings(unit)
            with np.load(place.with_suffix(".npz")) as known:
                scores.append(known["scores"])
                captures += [_capture(row) for row in json.loads(known["captures"].tobytes())]
            self._embeddings.append(np.load(place, mmap_mode="r"))
        lengths = {rows.shape[1] for rows in self._embeddings if rows.shape[1]}
        if len(lengths) > 1:
            raise DataError(f"{job.out}: embeddings of {sorted(lengths)} numbers; remove the folder and start again")
        self.length = max(lengths, default=0)
        self.starts = np.cumsum([0, *(len(rows) for rows in self._embeddings)])
        self._captures, self._scores = captures, np.concatenate(scores)
        self.banks = memory_banks(
            captures, job.settings.sequence_key, job.settings.time_horizon, job.settings.max_features
        )
        self._kept = [self._remembered(bank, job) for bank in self.banks]
        self.bank_of = np.full(len(captures), -1)
        for number, bank in enumerate(self.banks):
            self.bank_of[bank] = number

    def place(self, index: int) -> tuple[int, int]:
        """Return the input file of an image, and its record."""
        unit = int(np.searchsorted(self.starts, index, side="right")) - 1
        return unit, index - int(self.starts[unit])

    def context(self, bank: int) -> tuple[NDArray[np.float32], list[str]]:
        """Return a group's context features, float32 [M, F], and the ids of their images; of group -1, none."""
        kept = self._kept[bank] if bank >= 0 else []
        rows = np.zeros((len(kept), self.length), np.float32)
        ids = []
        for row, index in zip(rows, kept, strict=True):
            unit, record = self.place(index)
            row[:] = self._embeddings[unit][record]
            capture = self._captures[index]
            ids.append("" if capture is None else capture.id)
        return rows, ids

    def _remembered(self, bank: list[int], job: ContextJob) -> list[int]:
        return [
            index
            for index in bank[:: job.settings.every_nth]
            if self._scores[index] >= max(job.settings.min_score, 0.0)
        ]

    def write_newest(self, folder: Path) -> int:
        """Write the context features of each sequence's last group to a file of its name; return how many."""
        newest: dict[str, int] = {}
        for number, bank in enumerate(self.banks):
            capture = self._captures[bank[0]]
            if capture is not None:
                newest[capture.sequence] = number  # groups of a sequence are ordered by time
        taken: set[str] = set()
        for sequence, number in newest.items():
            with open_whole(make_folder(folder) / f"{unique_stem(sequence, taken)}.npy") as file:
                np.save(file, self.context(number)[0])
        return len(newest)


def _capture(row: list[object] | None) -> Capture | None:
    if row is None:
        return None
    image_id, sequence, time, frame = row
    return Capture(str(image_id), str(sequence), datetime.fromisoformat(str(time)), int(str(frame)))


def record_worker(job: ContextJob) -> Callable[[int], ContextFileCounts]:
    """Return a function that writes an output file with context."""
    banks = MemoryBanks(job)
    write = _WRITERS[job.settings.output_type]

    def work(unit: int) -> ContextFileCounts:
        written: list[int] = []
        with open_whole(job.output(unit)) as file:
            write_records_to(file, write(job, banks, unit, written))
        return ContextFileCounts(len(written), written.count(0))

    return work


def _examples(job: ContextJob, banks: MemoryBanks, unit: int, written: list[int]) -> Iterator[bytes]:
    """Yield an input file's records with their context; `written` receives the number of each one's features."""
    file = TFRecordFile(job.files[unit])
    for record in range(len(file)):
        context, ids = banks.context(int(banks.bank_of[banks.starts[unit] + record]))
        written.append(len(context))
        yield with_context(file[record], context, ids)


def _sequences(job: ContextJob, banks: MemoryBanks, unit: int, written: list[int]) -> Iterator[bytes]:
    """Yield an output file's share of groups as clips; each image of no group is a clip of its own, without context."""
    files = [TFRecordFile(path) for path in job.files]
    alone = [[int(index)] for index in np.flatnonzero(banks.bank_of < 0)]
    groups = [*enumerate(banks.banks), *((-1, members) for members in alone)]
    for bank, members in groups[unit :: len(job.files)]:
        context, ids = banks.context(bank)
        frames: list[tuple[Features, tuple[int, int]]] = []
        for index in members:
            at, record = banks.place(index)
            where = f"{job.files[at]}: record {record}"
            features = read_features(files[at][record], where)
            size = image_size(encoded_image(features, where), where)
            # A sequence has one size.
            if frames and (len(frames) == job.settings.clip_length or frames[0][1] != size):
                yield _clip(frames, context, ids, where, written)
                frames = []
            frames.append((features, size))
        yield _clip(frames, context, ids, where, written)


def _clip(
    frames: list[tuple[Features, tuple[int, int]]],
    context: NDArray[np.float32],
    ids: list[str],
    where: str,
    written: list[int],
) -> bytes:
    written += [len(context)] * len(frames)
    return encode_sequence([features for features, _ in frames], frames[0][1], context, ids, where)


_WRITERS: dict[str, Callable[[ContextJob, MemoryBanks, int, list[int]], Iterator[bytes]]] = {
    "tf_example": _examples,
    "tf_sequence_example": _sequences,
}
