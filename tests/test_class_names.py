"""Classes of the same objects under the names of several data sets."""

from __future__ import annotations

import pytest

from boxwright.types import Categories, Category
from boxwright.types.categories import coco_classes
from boxwright.types.class_names import find_same_class, objects365_classes, snapshot_serengeti_classes

# Of D-FINE's solver: the index among Objects365's classes, from 0, of each of COCO's 80.
# fmt: off
D_FINES_ROWS = (
    0, 46, 5, 58, 114, 55, 116, 65, 21, 40, 176, 127, 249, 24, 56, 139, 92, 78, 99, 96, 144, 295, 178, 180, 38, 39, 13,
    43, 120, 219, 148, 173, 165, 154, 137, 113, 145, 146, 204, 8, 35, 10, 88, 84, 93, 26, 112, 82, 265, 104, 141, 152,
    234, 143, 150, 97, 2, 50, 25, 75, 98, 153, 37, 73, 115, 132, 106, 61, 163, 134, 277, 81, 133, 18, 94, 30, 169, 70,
    328, 226,
)
# fmt: on


def classes(*names: str) -> Categories:
    return Categories(tuple(Category(label, label + 1, name) for label, name in enumerate(names)))


def test_objects365_has_365_classes_after_an_unused_row() -> None:
    categories = objects365_classes()
    assert (len(categories), categories.num_slots) == (365, 366)
    assert categories.by_label(0).name == "class 1"  # no class of the data set
    assert [categories.by_id(number).name for number in (1, 2, 365)] == ["Person", "Sneakers", "Table Tennis"]  # type: ignore[union-attr]


def test_snapshot_serengeti_has_the_object_detection_apis_48_classes() -> None:
    categories = snapshot_serengeti_classes()
    assert len(categories) == categories.num_slots == len({item.name for item in categories}) == 48
    known = {1: "human", 5: "zebra", 16: "guineaFowl", 20: "lionFemale", 38: "lionMale", 48: "zorilla"}
    assert {number: categories.by_id(number).name for number in known} == known  # type: ignore[union-attr]
    assert categories.by_label(4).name == "zebra"


def test_coco_finds_the_rows_that_d_fines_authors_take() -> None:
    found = [find_same_class(objects365_classes(), item) for item in coco_classes()]
    assert [None if item is None else item.label - 1 for item in found] == list(D_FINES_ROWS)


def test_objects365_finds_cocos_rows() -> None:
    for item, row in zip(coco_classes(), D_FINES_ROWS, strict=True):
        theirs = objects365_classes().by_label(row + 1)
        assert find_same_class(coco_classes(), theirs) == item


@pytest.mark.parametrize(
    ("name", "found"),
    [
        ("Traffic_Light", "traffic light"),
        ("TV-Monitor", None),  # its words are not those of "tvmonitor"
        ("tvmonitor", "tv"),
        ("Sofa", "couch"),
        ("cat ", "cat"),
        ("cats", None),
        ("class 3", None),
    ],
)
def test_names_that_are_spelled_alike(name: str, found: str | None) -> None:
    same = find_same_class(coco_classes(), Category(0, 1, name))
    assert (None if same is None else same.name) == found


def test_the_name_itself_comes_before_others() -> None:
    known = classes("Wild Bird", "Bird", "bird")
    assert [find_same_class(known, Category(0, 1, name)).label for name in ("bird", "BIRD", "wild bird")] == [2, 1, 0]  # type: ignore[union-attr]


def test_display_names_count_too() -> None:
    by_id = Categories((Category(0, 1, "/m/01g317", "Person"), Category(1, 2, "/m/0199g", "Bicycle")))
    assert find_same_class(by_id, Category(3, 4, "bicycle")) == by_id.by_label(1)
    assert find_same_class(coco_classes(), by_id.by_label(0)) == coco_classes().by_label(0)
