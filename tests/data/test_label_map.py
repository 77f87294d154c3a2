from __future__ import annotations

from pathlib import Path

import pytest

from boxwright.base.errors import DataError
from boxwright.data.label_map import load_label_map, write_label_map
from tests.conftest import GOLDEN


def load(tmp_path: Path, text: str) -> object:
    (tmp_path / "map.pbtxt").write_text(text)
    return load_label_map(tmp_path / "map.pbtxt")


def test_recorded_label_map() -> None:
    categories = load_label_map(GOLDEN / "records" / "label_map.pbtxt")
    assert [(c.label, c.id, c.name, c.title) for c in categories] == [
        (0, 1, "circle", "Circle"),
        (1, 2, "square", "Square"),
        (2, 3, "triangle", "Triangle"),
    ]


def test_any_order_gaps_quotes_comments_and_keypoints(tmp_path: Path) -> None:
    (tmp_path / "map.pbtxt").write_text(
        """# comment
        item { name: 'b' id: 5 keypoints { id: 1 label: "right" } keypoints { id: 0 label: 'left' } }
        item: { id: 2, name: "it's" display_name: 'It "is"' }  # another
        """
    )
    categories = load_label_map(tmp_path / "map.pbtxt")
    assert [(c.label, c.name) for c in categories] == [(1, "it's"), (4, "b")]
    assert categories.num_slots == 5
    assert categories.by_label(4).keypoints == ("left", "right")
    assert categories.by_label(3).name == "class 4"
    write_label_map(categories, tmp_path / "again.pbtxt")
    assert [c.id for c in load_label_map(tmp_path / "again.pbtxt")] == [2, 5]


@pytest.mark.parametrize(
    ("text", "wanted"),
    [
        ("", "no items"),
        ('item { id: 0 name: "a" }', "item 1 \\('a'\\) has id 0; ids start at 1"),
        ('item { name: "a" }', "item 1 \\('a'\\) has no id"),
        ("item { id: 1 }", "item 1 \\(id 1\\) has no name"),
        ('item { id: 1 name: "a" } item { id: 1 name: "b" }', "item 2: id 1 is that of item 1"),
        ('item { id: 1 name: "a" } item { id: 2 name: "a" }', "item 2: name 'a' is that of item 1"),
        ('item { id: 1 nme: "a" }', "did you mean name?"),
        ('item { id: 1 name: "a"', "the file ends inside 'item'"),
    ],
)
def test_bad_label_maps(tmp_path: Path, text: str, wanted: str) -> None:
    with pytest.raises(DataError, match=wanted) as caught:
        load(tmp_path, text)
    assert "map.pbtxt" in str(caught.value)


def test_missing_file(tmp_path: Path) -> None:
    with pytest.raises(DataError, match="no such file"):
        load_label_map(tmp_path / "none.pbtxt")
