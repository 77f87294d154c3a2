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
        (
            'item { id: 0 name: "none_of_the_above" } item { id: 1 name: "a" }',
            "remove the item if it stands for no object",
        ),
        ('item { id: -1 name: "background" }', "should be greater than or equal to 0, found -1"),
        ('item { id: 0 name: "background" }', "no items besides 'background'"),
        ('item { id: 0 name: "background" } item { id: 0 name: "background" }', "item 2: id 0 is that of item 1"),
        ('item { id: 1 display_name: "a" } item { id: 2 name: "a" }', "item 2: name 'a' is that of item 1"),
        ('item { id: 1 display_name: "" }', "item 1 \\(id 1\\) has no name"),
        ("item {\n id: 1\n name: ‘a’\n}", "map.pbtxt:3:8: unexpected character '‘'; write straight quotes"),
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


def test_a_display_name_alone_is_the_name(tmp_path: Path) -> None:
    (tmp_path / "map.pbtxt").write_text("item { id: 1 display_name: 'a' } item { id: 2 name: 'b' display_name: 'B' }")
    categories = load_label_map(tmp_path / "map.pbtxt")
    assert [(c.id, c.name, c.title) for c in categories] == [(1, "a", "a"), (2, "b", "B")]
    assert categories.by_any_name("B") is categories.by_label(1)


@pytest.mark.parametrize(
    "name", ["name: 'background'", "display_name: 'background'", "name: 'x' display_name: 'background'"]
)
def test_a_background_of_id_0_is_no_class(tmp_path: Path, name: str) -> None:
    (tmp_path / "map.pbtxt").write_text(f"item {{ id: 0 {name} }} item {{ id: 1 name: 'a' }}")
    assert [(c.label, c.name) for c in load_label_map(tmp_path / "map.pbtxt")] == [(0, "a")]


@pytest.mark.parametrize("encoding", ["utf-8", "utf-8-sig", "utf-16"])
@pytest.mark.parametrize("end", ["\n", "\r\n", "\r"])
def test_text_as_editors_of_windows_write_it(tmp_path: Path, encoding: str, end: str) -> None:
    text = "# my classes\nitem{\n id:1,\n name:\"é\",\n}\nitem {id: 0x2 name: 'gr\\145en' # second\n}\n"
    (tmp_path / "map.pbtxt").write_bytes(text.replace("\n", end).encode(encoding))
    assert [(c.id, c.name) for c in load_label_map(tmp_path / "map.pbtxt")] == [(1, "é"), (2, "green")]


def test_missing_file(tmp_path: Path) -> None:
    with pytest.raises(DataError, match="no such file"):
        load_label_map(tmp_path / "none.pbtxt")
