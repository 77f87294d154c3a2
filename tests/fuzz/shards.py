"""Readers of shards of pictures under the fuzzer."""

from __future__ import annotations

import gzip
import os
import tarfile
import tempfile
from collections.abc import Callable
from functools import partial
from pathlib import Path

from boxwright.data.row_dataset import RowDataset, open_parquet_rows, open_web_dataset
from tests.data.shards import CLASSES, members, rows, tar_bytes, write_parquet
from tests.fuzz.reader import AcceptedError, Reader


def _reader(seeds: Callable[[], list[bytes]], name: str, open_rows: Callable[..., RowDataset]) -> Reader:
    def read(data: bytes, folder: Path) -> None:
        os.environ["BOXWRIGHT_CACHE"] = str(folder / "cache")
        (folder / name).write_bytes(data)
        dataset = open_rows([folder / name], CLASSES)
        for index in range(len(dataset)):
            sample = dataset[index]
            if sample.labels.size and not 0 <= sample.labels.min() <= sample.labels.max() < len(CLASSES):
                raise AcceptedError(f"labels {sample.labels}")
            dataset.encoded(index)

    return Reader(seeds, read)


def _archives() -> list[bytes]:
    long = [
        ("b" * 120 + ending, content)
        for (_, content), ending in zip(members(rows(0, 1)), (".png", ".json"), strict=True)
    ]
    plain = tar_bytes(members(rows(0, 3)))
    return [
        plain,
        gzip.compress(plain),
        *(tar_bytes(long, format=form) for form in (tarfile.PAX_FORMAT, tarfile.GNU_FORMAT)),
    ]


def _parquet() -> list[bytes]:
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder, "a.parquet")
        return [write_parquet(path, rows(0, 3), 2, names).read_bytes() for names in (("cat", "dog"), ())]


def _shapes() -> list[bytes]:
    content = rows(0, 2)
    for row in content:
        row["objects"] |= {"segmentation": [[[1, 1, 9, 1, 9, 9]]], "keypoints": [[1, 2, 2, 3, 4, 1]], "area": [32.5]}
    content[1]["objects"]["segmentation"] = [{"size": [20, 30], "counts": [40, 9, 551]}]
    return [tar_bytes(members(content))]


SHARD_READERS = {
    "web_dataset": _reader(_archives, "a.tar", open_web_dataset),
    "outlines": _reader(_shapes, "a.tar", partial(open_web_dataset, load_masks=True, num_keypoints=2)),
    "parquet": _reader(_parquet, "a.parquet", open_parquet_rows),
}
