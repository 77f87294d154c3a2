"""Context features and sequences of frames, fuzzed."""

from __future__ import annotations

from functools import cache
from pathlib import Path

import numpy as np

from boxwright.data.batch import collate, to_input
from boxwright.data.dataset import Dataset
from boxwright.data.example_messages import with_context
from boxwright.data.tf_example import RecordFields, read_features
from boxwright.data.tfrecord import write_records
from boxwright.data.tfrecord_dataset import TFRecordDataset, TFSequenceDataset, encode_sequence
from boxwright.nn.preprocessing import FixedShapeResizer
from tests.camera_traps import CATEGORIES, frames_of, record_of
from tests.fuzz.reader import AcceptedError, Reader

_WANTED = RecordFields(context=True, context_image_ids=True)
_CONTEXT = np.linspace(-1, 1, 12, dtype=np.float32).reshape(4, 3)
_IDS = ("a", "b", "c", "d")


@cache
def _records() -> list[bytes]:
    return [record_of(frame) for frame in frames_of(1, 3, seed=1, side=24)]


def _use(dataset: Dataset) -> None:
    for index in range(len(dataset)):
        batch = collate([to_input(dataset[index], FixedShapeResizer(16, 16))])
        context = batch.targets.context
        if context is None or not context.features.isfinite().all():
            raise AcceptedError("context that is missing or not finite reaches the network")
        if int(context.counts[0]) != context.features.shape[1]:
            raise AcceptedError("a count that differs from the features")
        dataset.encoded(index)


def _context() -> Reader:
    def read(data: bytes, folder: Path) -> None:
        write_records(folder / "a.record", [data])
        _use(TFRecordDataset([folder / "a.record"], CATEGORIES, _WANTED))

    return Reader(lambda: [with_context(_records()[0], _CONTEXT, _IDS)], read)


def _sequence() -> Reader:
    def seeds() -> list[bytes]:
        features = [read_features(record, "r") for record in _records()]
        return [encode_sequence(features[:count], (24, 24), _CONTEXT, _IDS, "r") for count in (1, 3)]

    def read(data: bytes, folder: Path) -> None:
        write_records(folder / "a.record", [data])
        _use(TFSequenceDataset([folder / "a.record"], CATEGORIES, _WANTED))

    return Reader(seeds, read)


CONTEXT_READERS = {"context_features": _context(), "sequence_example": _sequence()}
