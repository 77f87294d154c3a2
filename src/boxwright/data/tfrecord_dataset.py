"""Data sets in TFRecord files, as the TF Object Detection API writes them: of images, and of sequences of frames."""

from __future__ import annotations

import warnings
from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
from google.protobuf.message import DecodeError
from numpy.typing import NDArray

from boxwright.base.errors import DataError
from boxwright.data.example_messages import Features, SequenceExample, parse_features, parse_values, set_context
from boxwright.data.image_io import decode_image, parse_header
from boxwright.data.pixel_cache import PixelCache
from boxwright.data.reading import reading, whole_number
from boxwright.data.shard_files import File, ShardFiles
from boxwright.data.tf_example import (
    BOXES_ONLY,
    RecordFields,
    declared_size,
    decode_example,
    encoded_image,
    labels_from_one,
    read_features,
    text_feature,
)
from boxwright.data.tfrecord import Compression, TFRecordFile
from boxwright.types import Categories, Sample

_IMAGE = "image/encoded"
_ANNOTATED = "region/is_annotated"
_SIDES = tuple(f"region/bbox/{side}" for side in ("xmin", "ymin", "xmax", "ymax"))
_FLOATS = (*_SIDES, "region/label/confidence")
# A frame's list: the key of the same in a record of one image.
_LISTS = {
    _IMAGE: _IMAGE,
    "image/source_id": "image/source_id",
    **{side: side.replace("region/", "image/object/") for side in _SIDES},
    "region/label/string": "image/object/class/text",
    # TF's decoder takes the confidence of a label for the weight of its box.
    "region/label/confidence": "image/object/weight",
}


def open_records(paths: Sequence[str | Path], compression: Compression = "auto") -> ShardFiles[TFRecordFile]:
    """Return the records of TFRecord files.

    Args:
        paths: Paths or addresses, globs, or `name@count`.

    Raises:
        DataError: If a file is missing or damaged, or all are empty.
    """
    records = ShardFiles(paths, partial(TFRecordFile, compression=compression))
    if not len(records):
        raise DataError(f"{records.name}: no records (record 0 at byte 0: the file is empty)")
    return records


def _as_local(path: File) -> Path:
    if not isinstance(path, Path):
        raise DataError(f"{path}: expected a file on this machine")
    return path


class TFRecordDataset:
    """Samples from the records of one or more TFRecord files."""

    def __init__(
        self,
        paths: Sequence[str | Path],
        categories: Categories,
        wanted: RecordFields = BOXES_ONLY,
        *,
        compression: Compression = "auto",
        labels_from_zero: bool = False,
    ) -> None:
        """Open the files and find their records.

        Args:
            paths: Paths or addresses, globs, or `name@count`.
            wanted: What to read besides boxes and classes.
            labels_from_zero: Whether the records number classes from 0, where the label map's ids start at 1.

        Raises:
            DataError: If a file is missing or damaged, or all are empty.
        """
        self.records = open_records(paths, compression)
        self.name = self.records.name
        self.categories = categories
        self._wanted, self._labels_from_zero = wanted, labels_from_zero
        self._unknown: dict[str, str] = {}
        self.pixels: PixelCache | None = None

    @property
    def at_address(self) -> bool:
        """Whether records are fetched from an address as they are read."""
        return any(not isinstance(file.path, Path) for file in self.files)

    @property
    def read_as(self) -> str:
        """What pixels depend on besides their file."""
        return f"records, white_level {self._wanted.white_level}"

    def picture(self, index: int) -> tuple[Path, tuple[int, int]]:
        """Return the file of a record, and the (height, width) of its image, by the picture's header.

        Raises:
            DataError: If the record is damaged, or has no image.
        """
        file, record = self.records.locate(index)
        where = self.records.where(index)
        with reading(where):
            features = read_features(file[record], where)
            header = parse_header(encoded_image(features, where), where)
            return _as_local(file.path), header.size_for(declared_size(features, where), upright=False)

    @property
    def files(self) -> tuple[TFRecordFile, ...]:
        """The files."""
        return self.records.files

    @property
    def source_sizes(self) -> tuple[int, ...]:
        """The number of samples of each source."""
        return self.records.source_sizes

    @property
    def shard_sizes(self) -> tuple[tuple[int, ...], ...]:
        """By source, the number of samples of each file, if any is read from an address; else empty."""
        return self.records.shard_sizes

    def __len__(self) -> int:
        return len(self.records)

    def __getitem__(self, index: int) -> Sample:
        """Return one sample.

        Raises:
            DataError: If the record is damaged, or is not an annotated image.
        """
        file, record = self.records.locate(index)
        where = self.records.where(index)
        known = len(self._unknown)
        with reading(where):
            features = read_features(file[record], where)
            if self._labels_from_zero:
                features = labels_from_one(features, where)
            decode = decode_image if self.pixels is None else partial(self._read_pixels, index)
            sample = decode_example(features, self.categories, where, self._wanted, self._unknown, decode)
        _warn_about_unknown_classes(self._unknown, known)
        if not sample.id:
            sample.id = f"{file.path.name}:{record}"
        return sample

    def _read_pixels(self, index: int, *picture: Any, **options: Any) -> NDArray[np.uint8]:
        """Return decoded pixels, kept or from the arguments of `decode_image`."""
        file, _ = self.records.locate(index)
        decode = partial(decode_image, *picture, **options)
        return decode() if self.pixels is None else self.pixels.read(index, _as_local(file.path), decode)

    def encoded(self, index: int) -> tuple[bytes, str]:
        """Return the image file's bytes and its name.

        Raises:
            DataError: If the record is damaged, or has no image.
        """
        file, record = self.records.locate(index)
        where = self.records.where(index)
        with reading(where):
            return _image_file(read_features(file[record], where), where, index)


class TFSequenceDataset:
    """Samples from the frames of `tf.train.SequenceExample` records: every frame, or one of each sequence."""

    def __init__(
        self,
        paths: Sequence[str | Path],
        categories: Categories,
        wanted: RecordFields = BOXES_ONLY,
        *,
        frame: int | None = None,
    ) -> None:
        """Open the files and count the frames of their records, which reads all of them once.

        Args:
            paths: Paths or addresses, globs, or `name@count`.
            wanted: What to read besides boxes and classes.
            frame: The index of the only frame to take of each sequence; None for all.

        Raises:
            DataError: If a file is missing or damaged, all are empty, a record is no sequence, or lacks the frame.
        """
        self.records = open_records(paths)
        self.name = self.records.name
        self.categories = categories
        self._wanted = wanted
        self._unknown: dict[str, str] = {}
        counts = [self._count(index) for index in range(len(self.records))]
        if frame is not None:
            for index, count in enumerate(counts):
                if frame >= count:
                    raise DataError(f"{self.records.where(index)}: has {count} frames; frame_index is {frame}")
        chosen = [range(count) if frame is None else [frame] for count in counts]
        self._frames = [(index, number) for index, frames in enumerate(chosen) for number in frames]
        ends = np.cumsum([len(frames) for frames in chosen])
        starts_of_sources = np.cumsum(self.records.source_sizes) - 1
        self.source_sizes: tuple[int, ...] = tuple(np.diff(ends[starts_of_sources], prepend=0).tolist())

    def __len__(self) -> int:
        return len(self._frames)

    def __getitem__(self, index: int) -> Sample:
        """Return one frame; its id is its own, with the sequence's context features.

        Raises:
            DataError: If the record is damaged, or the frame is not an annotated image.
        """
        record, frame = self._frames[index]
        where = f"{self.records.where(record)}: frame {frame}"
        known = len(self._unknown)
        with reading(where):
            sequence = self._sequence(record)
            features = frame_features(sequence, frame)
            sample = decode_example(features, self.categories, where, self._wanted, self._unknown)
            sample = replace(sample, annotated=is_annotated(sequence, frame, where))
        _warn_about_unknown_classes(self._unknown, known)
        if not sample.id:
            file, number = self.records.locate(record)
            sample.id = f"{file.path.name}:{number}:{frame}"
        return sample

    def encoded(self, index: int) -> tuple[bytes, str]:
        """Return a frame's image file and its name.

        Raises:
            DataError: If the record is damaged, or the frame has no image.
        """
        record, frame = self._frames[index]
        where = f"{self.records.where(record)}: frame {frame}"
        with reading(where):
            return _image_file(frame_features(self._sequence(record), frame), where, index)

    def _sequence(self, record: int) -> object:
        file, number = self.records.locate(record)
        return read_sequence(file[number], self.records.where(record))

    def _count(self, record: int) -> int:
        with reading(self.records.where(record)):
            return count_frames(self._sequence(record))


def _warn_about_unknown_classes(unknown: dict[str, str], known: int) -> None:
    """Warn of the classes after the first `known`: dictionaries keep their order, so each is reported once."""
    for warning in list(unknown.values())[known:]:
        warnings.warn(warning, stacklevel=3)


def _image_file(features: Features, where: str, index: int) -> tuple[bytes, str]:
    data, name = encoded_image(features, where), text_feature(features, "image/filename", where)
    suffix = ".png" if data[:4] == b"\x89PNG" else ".jpg"
    return data, Path(name).name or f"{index:06d}{suffix}"


def read_sequence(record: bytes, where: str) -> Any:
    """Return a record's SequenceExample message.

    Raises:
        DataError: If the bytes are none, it has no frames, or its lists are not of the same number of frames.
    """
    sequence = SequenceExample()
    try:
        sequence.ParseFromString(record)
    except (DecodeError, RecursionError):
        raise DataError(f"{where}: not a tf.train.SequenceExample") from None
    lists = sequence.feature_lists.feature_list
    if _IMAGE not in lists or not lists[_IMAGE].feature:
        known = ", ".join(sorted(lists))[:400] or "none"
        raise DataError(f"{where}: no {_IMAGE} among the sequence's lists: {known}; is it a tf.train.Example?")
    count = count_frames(sequence)
    for key in (*_LISTS, _ANNOTATED):
        if key in lists and len(lists[key].feature) != count:
            raise DataError(f"{where}: {key} has {len(lists[key].feature)} frames, {_IMAGE} has {count}")
    return sequence


def count_frames(sequence: Any) -> int:
    """Return the number of frames of a SequenceExample."""
    return len(sequence.feature_lists.feature_list[_IMAGE].feature)


def frame_features(sequence: Any, frame: int) -> Features:
    """Return a frame's features under the keys of a tf.train.Example, with what the sequence's frames share."""
    lists = sequence.feature_lists.feature_list
    own = {key: parse_values(lists[name].feature[frame]) for name, key in _LISTS.items() if name in lists}
    return parse_features(sequence.context) | own


def is_annotated(sequence: Any, frame: int, where: str) -> bool:
    """Return whether a frame was annotated; if the sequence does not say, it was.

    Raises:
        DataError: If the frame's value is not one number.
    """
    lists = sequence.feature_lists.feature_list
    if _ANNOTATED not in lists:
        return True
    values = parse_values(lists[_ANNOTATED].feature[frame])
    if len(values) != 1 or isinstance(values[0], bytes):
        raise DataError(f"{where}: {_ANNOTATED}: expected one number")
    return whole_number(values[0], f"{where}: {_ANNOTATED}") != 0


def encode_sequence(
    frames: Sequence[Features],
    size: tuple[int, int],
    context: NDArray[np.float32],
    image_ids: Sequence[str],
    where: str,
) -> bytes:
    """Return frames as a serialized tf.train.SequenceExample: images, boxes, class names and weights.

    Args:
        frames: Features of records of one image, all of one size.
        size: Their (height, width).
        context: float32 [M, F]; features of other images, shared by all frames.
        image_ids: M ids of the images that they are of.

    Raises:
        DataError: If a frame's objects have class ids, but no names, which sequences cannot hold.
    """
    sequence = SequenceExample()
    shared = sequence.context.feature
    encoded = frames[0][_IMAGE][0]
    shared["image/format"].bytes_list.value.append(b"png" if encoded[:4] == b"\x89PNG" else b"jpeg")
    shared["image/height"].int64_list.value.append(size[0])
    shared["image/width"].int64_list.value.append(size[1])
    set_context(shared, context, image_ids)
    lists = sequence.feature_lists.feature_list
    has_weights = any(len(frame.get("image/object/weight", ())) for frame in frames)
    for frame in frames:
        count = len(frame.get("image/object/bbox/xmin", ()))
        if len(frame.get("image/object/class/text", ())) != count:
            raise DataError(
                f"{where}: a record's objects have no image/object/class/text, which sequences need; "
                "write records of single images (tf_example)"
            )
        for name, key in _LISTS.items():
            values = frame.get(key, ())
            if name == "region/label/confidence":
                if not has_weights:
                    continue
                values = values or [1.0] * count
            feature = lists[name].feature.add()
            kind = feature.float_list if name in _FLOATS else feature.bytes_list
            kind.value.extend(values)
        lists[_ANNOTATED].feature.add().int64_list.value.append(1)
    return bytes(sequence.SerializeToString(deterministic=True))
