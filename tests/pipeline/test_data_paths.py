"""Relative paths of data in a configuration."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

import boxwright as bw
from boxwright.pipeline import messages as m
from boxwright.pipeline.input_reader import build_dataset

TEXT = """
train_input_reader { label_map_path: "map.pbtxt" tf_record_input_reader { input_path: ["a.record-?????-of-00002", "b"] } }
eval_input_reader { label_map_path: "elsewhere.pbtxt" voc_input_reader { root: "voc" image_set: "test" } }
"""


@pytest.fixture
def config_path(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A configuration with data beside it, read from another folder."""
    folder, current = tmp_path / "project", tmp_path / "current"
    (folder / "voc").mkdir(parents=True)
    current.mkdir()
    for name in ("map.pbtxt", "a.record-00000-of-00002", "pipeline.config"):
        (folder / name).write_text(TEXT)
    monkeypatch.chdir(current)
    return folder / "pipeline.config"


def test_what_exists_only_beside_the_configuration_is_found(config_path: Path) -> None:
    config = bw.load_config(config_path)
    reader, folder = config.train_input_reader, config_path.parent
    assert reader is not None
    assert reader.tf_record_input_reader is not None
    assert reader.label_map_path == str(folder / "map.pbtxt")
    assert reader.tf_record_input_reader.input_path == [str(folder / "a.record-?????-of-00002"), "b"]
    assert config.eval_input_reader[0].label_map_path == "elsewhere.pbtxt"
    assert config.eval_input_reader[0].voc_input_reader is not None
    assert config.eval_input_reader[0].voc_input_reader.root == str(folder / "voc")
    assert config.notes == [
        f"{name}: relative to {config_path}, as the current folder does not have it"
        for name in ("label_map_path", "input_path", "root")
    ]


def test_the_current_folder_comes_first(config_path: Path) -> None:
    for name in ("map.pbtxt", "a.record-00000-of-00002"):
        Path(name).touch()
    os.mkdir("voc")
    config = bw.load_config(config_path)
    assert config.train_input_reader is not None
    assert config.train_input_reader.label_map_path == "map.pbtxt"
    assert config.notes == []


def test_a_path_set_on_the_command_line_stays(config_path: Path) -> None:
    config = bw.load_config(config_path, ["train_input_reader.label_map_path='map.pbtxt'"])
    assert config.train_input_reader is not None
    assert config.train_input_reader.label_map_path == "map.pbtxt"


def test_an_error_names_the_folder_in_which_a_relative_path_was_searched(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As for a run that was trained in another one; for absolute paths that says nothing."""
    monkeypatch.chdir(tmp_path)
    for path, expected in (("data/a.json", True), (str(tmp_path / "a.json"), False)):
        reader = m.InputReader(coco_input_reader=m.CocoInputReader(annotations=path))
        with pytest.raises(bw.DataError) as raised:
            build_dataset(reader, "train_input_reader")
        assert (f"; data/a.json is searched in the current folder, {tmp_path}" in str(raised.value)) is expected
