"""Samples by a list."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

import boxwright as bw
from boxwright.data.dataset import source_sizes
from boxwright.data.listed import ListedDataset, read_sample_list, sample_list_text
from boxwright.data.shapes import ShapesDataset
from boxwright.pipeline import messages as m
from boxwright.pipeline.input_reader import build_dataset

DATA = ShapesDataset(10, seed=1, size=(40, 40))


def test_the_samples_of_the_list_in_its_order() -> None:
    rows = [(number, DATA[number].filename) for number in (7, 2, 3)]
    listed = ListedDataset(DATA, rows, "train.txt")
    assert len(listed) == 3
    assert source_sizes(listed) == (3,)
    assert listed.categories == DATA.categories
    for index, (number, name) in enumerate(rows):
        assert listed[index].filename == name
        assert np.array_equal(listed[index].image, DATA[number].image)
        assert listed.encoded(index) == DATA.encoded(number)


def test_names_that_a_line_cannot_hold_are_compared_as_it_holds_them() -> None:
    from dataclasses import replace

    class Renamed(ShapesDataset):
        def __getitem__(self, index: int) -> bw.Sample:
            return replace(super().__getitem__(index), filename=" line\nbreak.jpg")

    listed = ListedDataset(Renamed(3, seed=1, size=(40, 40)), [(1, "line break.jpg")], "train.txt")
    assert listed[0].filename == " line\nbreak.jpg"


def test_data_that_changed_are_an_error() -> None:
    other = ListedDataset(DATA, [(2, "other.jpg")], "train.txt")
    for read in (other.__getitem__, other.encoded):
        with pytest.raises(bw.DataError, match=r"train\.txt: sample 2 is .*, and was other\.jpg when"):
            read(0)
    with pytest.raises(bw.DataError, match=r"sample 10, but .* has 10; the data changed"):
        ListedDataset(DATA, [(10, "")], "train.txt")


def test_lists_are_read_as_they_are_written(tmp_path: Path) -> None:
    rows = [(3, "a b.jpg"), (0, "folder/ü.png"), (12, ""), (4, "Shot 1.23\u202fPM.jpg"), (5, "line\nbreak.jpg")]
    path = tmp_path / "list.txt"
    path.write_text(sample_list_text(rows, "a comment"), encoding="utf-8")
    assert path.read_text(encoding="utf-8").splitlines()[0] == "# a comment"
    assert read_sample_list(path) == [
        (3, "a b.jpg"),
        (0, "ü.png"),
        (12, ""),
        (4, "Shot 1.23\u202fPM.jpg"),
        (5, "line break.jpg"),
    ]


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "the list is empty"),
        ("# nothing\n", "the list is empty"),
        ("1 a.jpg\nb.jpg\n", "line 2: expected a number and a file's name, found 'b.jpg'"),
        ("-1 a.jpg\n", "line 1: expected a number"),
        ("99999999999999 a.jpg\n", "line 1: expected a number"),
        ("1 a.jpg\n1 b.jpg\n", "listed twice"),
    ],
)
def test_what_is_no_list(text: str, message: str, tmp_path: Path) -> None:
    (tmp_path / "list.txt").write_text(text)
    with pytest.raises(bw.DataError, match=message):
        read_sample_list(tmp_path / "list.txt")


def test_a_reader_takes_a_list(shapes_data: Path, tmp_path: Path) -> None:
    reader = m.InputReader(voc_input_reader=m.VocInputReader(root=str(shapes_data / "voc")))
    everything = build_dataset(reader, "train_input_reader")
    (tmp_path / "list.txt").write_text(sample_list_text([(4, everything[4].filename)], "one"))
    reader.sample_list = str(tmp_path / "list.txt")
    listed = build_dataset(reader, "train_input_reader")
    assert len(listed) == 1
    assert listed[0].filename == everything[4].filename
