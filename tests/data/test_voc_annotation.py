"""What the tools that write VOC's XML put into an object."""

from __future__ import annotations

from pathlib import Path

import pytest

from boxwright.base.errors import DataError
from boxwright.data.reading import Notices
from boxwright.data.voc_pictures import VocObject, read_voc_annotation

BOX = "<bndbox><xmin>1</xmin><ymin>2</ymin><xmax>30</xmax><ymax>40</ymax></bndbox>"
OTHER = "<bndbox><xmin>5</xmin><ymin>6</ymin><xmax>7.5</xmax><ymax>8</ymax></bndbox>"


def read(tmp_path: Path, inside: str) -> tuple[tuple[VocObject, ...], Notices]:
    (tmp_path / "a.xml").write_text(f"<annotation><object><name>cat</name>{inside}</object></annotation>")
    notices = Notices()
    annotation = read_voc_annotation(tmp_path / "a.xml", notices)
    assert annotation is not None
    return annotation.objects, notices


def test_every_box_of_an_object_is_an_object(tmp_path: Path) -> None:
    objects, notices = read(tmp_path, f"{BOX}<difficult>1</difficult>{OTHER}")
    assert objects == (VocObject("cat", (1, 2, 30, 40), True), VocObject("cat", (5, 6, 7.5, 8), True))
    assert list(notices.assumed.lines()) == ["further boxes of one <object>, read as objects of its class: 1 (a.xml)"]


def test_boxes_of_parts_are_no_objects(tmp_path: Path) -> None:
    objects, notices = read(tmp_path, f"<part><name>head</name>{OTHER}</part>{BOX}")
    assert [item.box for item in objects] == [(1, 2, 30, 40)]
    assert list(notices.assumed.lines()) == []


@pytest.mark.parametrize(
    ("angle", "wanted"),
    # 20 wide, 10 high, about (50, 40): upright, by a quarter turn, and by 30°, where the box is
    # 20 cos 30° + 10 sin 30° = 22.3205 wide and 20 sin 30° + 10 cos 30° = 18.6603 high.
    [
        ("0", (40, 35, 60, 45)),
        ("1.5707963267948966", (45, 30, 55, 50)),
        ("0.5235987755982988", (38.83975, 30.66987, 61.16025, 49.33013)),
        # A thousand million whole turns.
        ("6.283185307179586e9", (40, 35, 60, 45)),
    ],
)
def test_a_rotated_box_is_the_box_around_it(
    tmp_path: Path, angle: str, wanted: tuple[float, float, float, float]
) -> None:
    rotated = f"<robndbox><cx>50</cx><cy>40</cy><w>20</w><h>10</h><angle>{angle}</angle></robndbox>"
    objects, notices = read(tmp_path, rotated)
    assert objects[0].box == pytest.approx(wanted, abs=1e-4)
    assert list(notices.assumed.lines()) == ["rotated boxes, read as the upright boxes around them: 1 (a.xml)"]
    objects, notices = read(tmp_path, rotated + BOX)
    assert [item.box for item in objects] == [(1, 2, 30, 40)], "a tool that writes both means the upright one"


@pytest.mark.parametrize(
    "polygon",
    [
        "<x1>1</x1><y1>2</y1><x2>9</x2><y2>4</y2><x3>5</x3><y3>8</y3>",
        "<username>me</username><pt><x>1</x><y>4</y></pt><pt><x>9</x><y>8</y></pt><pt><x>5</x><y>2</y></pt>",
    ],
)
def test_a_polygon_alone_is_the_box_around_it(tmp_path: Path, polygon: str) -> None:
    objects, notices = read(tmp_path, f"<polygon>{polygon}</polygon>")
    assert [item.box for item in objects] == [(1, 2, 9, 8)]
    assert list(notices.assumed.lines()) == ["polygons without <bndbox>, read as the boxes around them: 1 (a.xml)"]
    objects, notices = read(tmp_path, f"<polygon>{polygon}</polygon>{BOX}")
    assert [item.box for item in objects] == [(1, 2, 30, 40)]
    assert list(notices.assumed.lines()) == []


def test_swapped_corners_stay_as_written(tmp_path: Path) -> None:
    objects, _ = read(tmp_path, "<bndbox><xmin>9</xmin><ymin>8</ymin><xmax>1</xmax><ymax>2</ymax></bndbox>")
    assert objects[0].box == (9, 8, 1, 2)


def test_objects_that_were_deleted_are_counted(tmp_path: Path) -> None:
    objects, notices = read(tmp_path, f"<deleted>1</deleted>{BOX}")
    assert objects == ()
    assert list(notices.boxes.lines()) == ["marked as deleted: 1 (a.xml)"]
    assert len(read(tmp_path, f"<deleted>0</deleted>{BOX}")[0]) == 1


@pytest.mark.parametrize("text", ["", "0", " 0 ", "0.0", "False", "no", "Unspecified", "UNSPECIFIED", "none"])
def test_words_for_not_difficult(tmp_path: Path, text: str) -> None:
    objects, notices = read(tmp_path, f"{BOX}<difficult>{text}</difficult>")
    assert not objects[0].difficult
    assert list(notices.assumed.lines()) == []


@pytest.mark.parametrize("text", ["1", "True", "true", "yes", "1.0", "2"])
def test_words_for_difficult(tmp_path: Path, text: str) -> None:
    objects, notices = read(tmp_path, f"{BOX}<difficult>{text}</difficult>")
    assert objects[0].difficult
    assert list(notices.assumed.lines()) == []


@pytest.mark.parametrize("text", ["maybe", "nan", "１ or so"])
def test_words_for_neither_are_said(tmp_path: Path, text: str) -> None:
    objects, notices = read(tmp_path, f"{BOX}<difficult>{text}</difficult>")
    assert not objects[0].difficult
    wanted = f"objects whose <difficult> is neither yes nor no, read as not difficult: 1 (a.xml: {text})"
    assert list(notices.assumed.lines()) == [wanted]


@pytest.mark.parametrize(
    ("inside", "wanted"),
    [
        ("", "a.xml: an object without <bndbox>"),
        ("<bndbox/>", "<bndbox><xmin>: expected a number, found none"),
        ("<robndbox><cx>1</cx></robndbox>", "<robndbox><cy>: expected a number, found none"),
        ("<polygon><x1>1</x1><y1>2</y1><x2>1</x2><y2>2</y2></polygon>", "at least three points, found 2 x and 2 y"),
        ("<polygon><x1>1</x1><y1>2</y1><x2>1</x2><x3>2</x3></polygon>", "at least three points, found 3 x and 1 y"),
        ("<polygon><pt><x>one</x><y>2</y></pt></polygon>", "<pt><x>: expected a number, found 'one'"),
    ],
)
def test_objects_that_cannot_be(tmp_path: Path, inside: str, wanted: str) -> None:
    with pytest.raises(DataError) as caught:
        read(tmp_path, inside)
    assert wanted in str(caught.value)


def test_xml_of_another_kind(tmp_path: Path) -> None:
    path = tmp_path / "a.xml"
    path.write_text("<project><version>1</version></project>")
    assert read_voc_annotation(path, Notices()) is None
    path.write_text(f"<Annotation><filename> a.png </filename><object><name>x</name>{BOX}</object></Annotation>")
    annotation = read_voc_annotation(path, Notices())
    assert annotation is not None, "scripts name the root as they like"
    assert annotation.filename == "a.png"
    assert len(annotation.objects) == 1
