"""Runs over shards that are read in sequence: killed at any moment, they go on to the same bits."""

from __future__ import annotations

import json
import random
import re
import time
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest

from boxwright.data.label_map import load_label_map
from boxwright.data.tfrecord_dataset import TFRecordDataset
from boxwright.weights.store import read_checkpoint
from tests.conftest import small_config_text
from tests.data.shards import tar_bytes, write_parquet
from tests.training.checkpoints import same
from tests.training.test_train import EVERY_STEP, start, wait_for_step

OWN_INITIALIZERS = True


def shards_of(shapes_data: Path, folder: Path, reader: str) -> str:
    """Write the training data as three shards, and return the configuration that reads them."""
    records = [str(shapes_data / "train.record-?????-of-00002")]
    dataset = TFRecordDataset(records, load_label_map(shapes_data / "label_map.pbtxt"))
    content: list[dict[str, Any]] = []
    for index, sample in enumerate(dataset):
        data, name = dataset.encoded(index)
        boxes = [[x, y, right - x, below - y] for x, y, right, below in sample.boxes.tolist()]
        objects = {"bbox": boxes, "category": (sample.labels + 1).tolist()}
        content.append({"image": {"bytes": data, "path": name}, "image_id": f"{index}", "objects": objects})
    ends = (0, len(content) // 4, len(content) // 3, len(content))
    for number, (first, last) in enumerate(pairwise(ends)):
        some = content[first:last]
        if reader == "parquet":
            write_parquet(folder / f"a-{number}.parquet", some, 2, ())
            continue
        files = [(f"{row['image_id']}.png", row["image"]["bytes"]) for row in some]
        files += [(f"{row['image_id']}.json", json.dumps({"objects": row["objects"]}).encode()) for row in some]
        # Side by side, as the sort by name has them.
        (folder / f"a-{number}.tar").write_bytes(tar_bytes(sorted(files)))
    ending = "parquet" if reader == "parquet" else "tar"
    read = (
        f'{reader}_input_reader {{ input_path: "{folder}/a-*.{ending}" }} '
        "shuffle_buffer_size: 3 num_readers: 2 read_block_length: 1"
    )
    return re.sub(r'tf_record_input_reader \{ input_path: "[^"]*train[^"]*" \}', read, small_config_text(shapes_data))


@pytest.mark.slow
@pytest.mark.parametrize(("reader", "workers"), [("web_dataset", 0), ("parquet", 2)])
def test_a_run_over_shards_that_is_killed_goes_on_exactly(
    reader: str, workers: int, shapes_data: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("BOXWRIGHT_CACHE", str(tmp_path / "cache"))
    config = tmp_path / "pipeline.config"
    config.write_text(shards_of(shapes_data, tmp_path, reader))
    whole, killed = tmp_path / "whole", tmp_path / "killed"
    words = (*EVERY_STEP, "--workers")
    output, _ = (process := start(config, whole, *words, "0")).communicate(timeout=120)
    assert process.returncode == 0, output
    process = start(config, killed, *words, str(workers))
    wait_for_step(killed, process, 5)
    time.sleep(random.random() / 10)
    process.kill()
    process.communicate()
    output, _ = (process := start(config, killed, *words, str(workers))).communicate(timeout=120)
    assert process.returncode == 0, output
    first, second = (
        sorted(folder.glob("ckpt-*.pt"), key=lambda path: int(path.stem[5:]))[-1] for folder in (whole, killed)
    )
    assert first.name == second.name
    assert same(read_checkpoint(first)["network"], read_checkpoint(second)["network"])
