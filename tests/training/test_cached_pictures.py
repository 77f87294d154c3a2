"""Runs that keep decoded pictures: the same bits as without, also where a resumed run has the cache and the first had not."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest

import boxwright as bw
from boxwright.base.errors import ConfigError, OutputError
from boxwright.data import pixel_cache
from boxwright.data.label_map import load_label_map
from boxwright.data.shapes import ShapesDataset
from boxwright.data.tfrecord_dataset import TFRecordDataset
from tests.conftest import Silent, small_config_text
from tests.training.checkpoints import same
from tests.training.test_distributed import finish, torchrun
from tests.training.test_train import QUIET, weights

OWN_INITIALIZERS = True


@pytest.fixture
def config(shapes_data: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A configuration of the training data as pictures in a folder, which are seen several times."""
    monkeypatch.setenv("BOXWRIGHT_CACHE", str(tmp_path / "cache"))
    records = [str(shapes_data / "train.record-?????-of-00002")]
    dataset = TFRecordDataset(records, load_label_map(shapes_data / "label_map.pbtxt"))
    folder, images, annotations = tmp_path / "data", [], []
    folder.mkdir()
    for index, sample in zip(range(8), dataset, strict=False):
        (folder / f"{index}.png").write_bytes(dataset.encoded(index)[0])
        images.append({"id": index, "file_name": f"{index}.png"})
        for (x, y, right, below), label in zip(sample.boxes.tolist(), sample.labels.tolist(), strict=True):
            box = [x, y, right - x, below - y]
            annotations.append({"id": len(annotations), "image_id": index, "category_id": label + 1, "bbox": box})
    categories = [{"id": item.id, "name": item.name} for item in dataset.categories]
    content: dict[str, Any] = {"images": images, "annotations": annotations, "categories": categories}
    (folder / "a.json").write_text(json.dumps(content))
    reader = f'coco_input_reader {{ annotations: "{folder}/a.json" image_folder: "{folder}" }}'
    text = re.sub(r'tf_record_input_reader \{ input_path: "[^"]*train[^"]*" \}', reader, small_config_text(shapes_data))
    path = tmp_path / "pictures.config"
    path.write_text(text)
    return path


def test_weights_do_not_depend_on_the_cache(config: Path, tmp_path: Path) -> None:
    said: list[str] = []

    class Listener(Silent):
        def message(self, text: str) -> None:
            said.append(text)

    whole, part = bw.load_config(config), bw.load_config(config, ["train_config.num_steps=3"])
    bw.train(whole, tmp_path / "without", **QUIET)
    bw.train(whole, tmp_path / "kept", **QUIET, cache=True, listeners={"said": Listener()})
    (file,) = (tmp_path / "cache" / "pixels").iterdir()
    assert any(text.startswith(f"decoded pictures are kept in {file}: 0.0 GB") for text in said)
    bw.train(whole, tmp_path / "read", **{**QUIET, "workers": 2}, cache=True)
    bw.train(part, tmp_path / "begun with", **QUIET, cache=True)
    bw.train(whole, tmp_path / "begun with", **QUIET)
    bw.train(part, tmp_path / "begun without", **QUIET)
    bw.train(whole, tmp_path / "begun without", **{**QUIET, "workers": 2}, cache=True)
    expected = weights(tmp_path / "without")
    for name in ("kept", "read", "begun with", "begun without"):
        assert same(weights(tmp_path / name), expected), name


def test_weights_of_records_do_not_depend_on_the_cache(
    small_config: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("BOXWRIGHT_CACHE", str(tmp_path / "cache"))
    config = bw.load_config(small_config, ["train_config.num_steps=3"])
    for name, options in (("without", {}), ("kept", {"cache": True}), ("read", {"cache": True, "workers": 2})):
        bw.train(config, tmp_path / name, **{**QUIET, **options})
    assert same(weights(tmp_path / "kept"), weights(tmp_path / "without"))
    assert same(weights(tmp_path / "read"), weights(tmp_path / "without"))


@pytest.mark.slow
def test_processes_of_a_run_share_the_cache(
    small_config: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("BOXWRIGHT_CACHE", str(tmp_path / "cache"))
    finish(torchrun(2, small_config, tmp_path / "without"))
    assert "decoded pictures are kept in" in finish(torchrun(2, small_config, tmp_path / "kept", "--cache"))
    assert len(list((tmp_path / "cache" / "pixels").iterdir())) == 1
    assert same(weights(tmp_path / "kept"), weights(tmp_path / "without"))


def test_runs_that_cannot_keep_pictures_do_not_begin(
    config: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    own = bw.load_config(config, ["train_input_reader={ external_input_reader { } }"])
    with pytest.raises(ConfigError, match="and these are neither files nor records of one image; train without it"):
        bw.train(own, tmp_path / "own", **QUIET, cache=True, dataset=ShapesDataset(4))
    usage = pixel_cache.shutil.disk_usage(tmp_path)
    monkeypatch.setattr(pixel_cache.shutil, "disk_usage", lambda _: usage._replace(free=9))
    with pytest.raises(OutputError, match="train without the cache, or name another folder with BOXWRIGHT_CACHE"):
        bw.train(config, tmp_path / "large", **QUIET, cache=True)
    assert not (tmp_path / "own").exists()
    assert not (tmp_path / "large").exists()
