"""A data set in TFRecord files, as the TF Object Detection API writes them."""

from __future__ import annotations

import warnings
from collections.abc import Sequence
from pathlib import Path

import numpy as np

from boxwright.base.errors import DataError
from boxwright.data.reading import reading
from boxwright.data.tf_example import (
    BOXES_ONLY,
    RecordFields,
    decode_example,
    encoded_image,
    read_features,
    text_feature,
)
from boxwright.data.tfrecord import Compression, TFRecordFile, expand_paths
from boxwright.types import Categories, Sample


class TFRecordDataset:
    """Samples from one or more TFRecord files, in the order of the files and their records."""

    def __init__(
        self,
        paths: Sequence[str | Path],
        categories: Categories,
        wanted: RecordFields = BOXES_ONLY,
        *,
        compression: Compression = "auto",
    ) -> None:
        """Open the files and find their records.

        Args:
            paths: Paths, globs, or `name@count`.
            wanted: What to read besides boxes and classes.

        Raises:
            DataError: If a file is missing or damaged, or all are empty.
        """
        self.name = ", ".join(str(path) for path in paths)
        self.categories = categories
        self._wanted = wanted
        # Without paths, the call on an empty list raises the error that names the field.
        found = [expand_paths([str(path)]) for path in paths] or [expand_paths([])]
        sources = [[TFRecordFile(path, compression) for path in some] for some in found]
        self.files = [file for source in sources for file in source]
        self._source_sizes = tuple(sum(len(file) for file in source) for source in sources)
        self._ends = np.cumsum([len(file) for file in self.files])
        self._unknown: dict[str, str] = {}
        if not len(self):
            raise DataError(f"{self.name}: no records (record 0 at byte 0: the file is empty)")

    @property
    def source_sizes(self) -> tuple[int, ...]:
        """The number of samples of each source."""
        return self._source_sizes

    def __len__(self) -> int:
        return int(self._ends[-1])

    def _locate(self, index: int) -> tuple[TFRecordFile, int]:
        if not 0 <= index < len(self):
            raise IndexError(index)
        # Right: an index at the end of a file belongs to the next one that has records.
        number = int(np.searchsorted(self._ends, index, side="right"))
        return self.files[number], index - int(self._ends[number - 1] if number else 0)

    def __getitem__(self, index: int) -> Sample:
        """Return one sample.

        Raises:
            DataError: If the record is damaged, or is not an annotated image.
        """
        file, record = self._locate(index)
        where = f"{file.path}: record {record}"
        known = len(self._unknown)
        with reading(where):
            sample = decode_example(
                read_features(file[record], where),
                self.categories,
                where,
                self._wanted,
                self._unknown,
            )
        # Dictionaries keep their order: these were added by this record, so each class is reported once.
        for name, place in list(self._unknown.items())[known:]:
            warnings.warn(f"{place}: class {name!r} is not in the label map; its boxes are dropped", stacklevel=2)
        if not sample.id:
            sample.id = f"{file.path.name}:{record}"
        return sample

    def encoded(self, index: int) -> tuple[bytes, str]:
        """Return the image file's bytes and its name.

        Raises:
            DataError: If the record is damaged, or has no image.
        """
        file, record = self._locate(index)
        where = f"{file.path}: record {record}"
        with reading(where):
            features = read_features(file[record], where)
            data = encoded_image(features, where)
            name = text_feature(features, "image/filename", where)
        suffix = ".png" if data[:4] == b"\x89PNG" else ".jpg"
        return data, Path(name).name or f"{index:06d}{suffix}"
