"""COCO files as programs and people write them: ids, names, boxes of no object, pictures of other machines."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image, ImageOps

from boxwright.base.errors import DataError
from boxwright.data.coco import CocoDataset
from boxwright.types import Categories, Category

RED, BLUE = (250, 0, 0), (0, 0, 250)
# x, y, width, height of the two objects in each picture of 40×20.
BOXES = {"red": [4, 3, 10, 12], "blue": [22, 5, 15, 10]}


def picture(path: Path, orientation: int = 1, size: tuple[int, int] = (40, 20)) -> None:
    image = np.zeros((size[1], size[0], 3), np.uint8)
    for color, (x, y, width, height) in zip((RED, BLUE), BOXES.values(), strict=True):
        image[y : y + height, x : x + width] = color
    exif = Image.Exif()
    exif[0x0112] = orientation
    path.parent.mkdir(parents=True, exist_ok=True)
    Image.fromarray(image).save(path, exif=exif)


def content(names: tuple[str, ...] = ("a.png", "b.png")) -> dict[str, Any]:
    """Two objects in each image, numbered in order."""
    images = [{"id": n, "file_name": name, "width": 40, "height": 20} for n, name in enumerate(names, start=1)]
    rows = [(image["id"], label, box) for image in images for label, box in enumerate(BOXES.values(), start=1)]
    return {
        "images": images,
        "annotations": [
            {"id": n, "image_id": image, "category_id": label, "bbox": box}
            for n, (image, label, box) in enumerate(rows, start=1)
        ],
        "categories": [{"id": 1, "name": "red"}, {"id": 2, "name": "blue"}],
    }


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    for name in ("a.png", "b.png"):
        picture(tmp_path / "images" / name)
    return tmp_path


def written(folder: Path, given: dict[str, Any]) -> Path:
    (folder / "c.json").write_text(json.dumps(given))
    return folder / "c.json"


def boxes_on_objects(dataset: CocoDataset) -> int:
    """Assert that each box encloses its class's color and nothing else; return how many do."""
    count = 0
    for index in range(len(dataset)):
        sample, empty = dataset[index], dataset.without_pixels(index)
        assert empty.image.shape == (*sample.image.shape[:2], 0)
        assert empty.boxes.tolist() == sample.boxes.tolist()
        for box, label in zip(sample.boxes.astype(int).tolist(), sample.labels.tolist(), strict=True):
            color = RED if dataset.categories.by_label(label).name == "red" else BLUE
            inside = sample.image[box[1] : box[3], box[0] : box[2]]
            assert inside.size
            assert (inside == color).all()
            assert (sample.image == color).all(-1).sum() == inside[..., 0].size
            count += 1
    return count


def notes(dataset: CocoDataset) -> list[str]:
    return [*dataset.notices.assumed.lines(), *dataset.notices.boxes.lines(), *dataset.notices.files.lines()]


def change(given: dict[str, Any], key: str, name: str, how: Any) -> dict[str, Any]:
    for row in given[key]:
        row[name] = how(row[name])
    return given


# ---------------------------------------------------------------- ids


def test_ids_may_be_floats_text_gaps_and_repeated(folder: Path) -> None:
    plain = notes(CocoDataset(written(folder, content())))
    assert plain == []
    floats = content()
    for key, names in (("images", ["id"]), ("categories", ["id"]), ("annotations", ["id", "image_id", "category_id"])):
        for name in names:
            change(floats, key, name, float)
    dataset = CocoDataset(written(folder, floats))
    assert boxes_on_objects(dataset) == 4
    assert (dataset[0].id, [c.id for c in dataset.categories]) == ("1", [1, 2])

    texts = content()
    for key, name in (("images", "id"), ("annotations", "image_id")):
        change(texts, key, name, lambda value: f"image {value}")
    change(change(texts, "categories", "id", str), "annotations", "category_id", str)
    assert boxes_on_objects(CocoDataset(written(folder, texts))) == 4

    gaps = {1: 90, 2: 0}
    sparse = change(change(content(), "categories", "id", gaps.get), "annotations", "category_id", gaps.get)
    dataset = CocoDataset(written(folder, change(sparse, "annotations", "id", lambda _: 7)))
    assert boxes_on_objects(dataset) == 4
    assert [(c.label, c.id, c.name) for c in dataset.categories] == [(0, 0, "blue"), (1, 90, "red")]


def test_an_images_id_agrees_however_it_is_spelled(folder: Path) -> None:
    dataset = CocoDataset(written(folder, change(content(), "images", "id", str)))
    assert boxes_on_objects(dataset) == 4
    assert notes(dataset) == ["annotations that spell their image's id in another way: 4 (1 for '1')"]
    padded = change(content(), "annotations", "image_id", lambda value: f"{value:012d}")
    assert boxes_on_objects(CocoDataset(written(folder, padded))) == 4
    # Two images that a spelling may mean: only the exact one.
    both = content()
    both["images"][1]["id"] = "1"
    for row in both["annotations"]:
        row["image_id"] = "1" if row["image_id"] == 2 else 1
    assert boxes_on_objects(CocoDataset(written(folder, both))) == 4
    for row in both["annotations"]:
        row["image_id"] = "01"
    with pytest.raises(DataError, match="annotation 3: image_id 01 is not among the images, nor are those of most of"):
        CocoDataset(written(folder, both))


@pytest.mark.parametrize("value", [1.5, None, True, float("nan"), [1]])
def test_an_image_needs_an_id(folder: Path, value: object) -> None:
    given = content()
    given["images"][0]["id"] = value
    with pytest.raises(DataError, match=r"images\[0\].id: expected a number, found"):
        CocoDataset(written(folder, given))


def test_annotations_of_no_image_are_left_out_unless_they_are_most(folder: Path) -> None:
    given = content()
    given["annotations"][3]["image_id"] = 77
    given["annotations"][2]["image_id"] = None
    dataset = CocoDataset(written(folder, given))
    assert (len(dataset), boxes_on_objects(dataset)) == (2, 2)
    assert notes(dataset) == ["of images that are not in the file: 2 (annotation 3)"]
    given["annotations"][1]["image_id"] = 77
    with pytest.raises(DataError, match="annotation 4: image_id 77 is not among the images, nor .* most of the 4"):
        CocoDataset(written(folder, given))


# ---------------------------------------------------------------- boxes of no object


@pytest.mark.parametrize("box", [[], None, [0, 0, 0, 0], [-1, -1, -1, -1], [0.0, 0.0, 0.0, 0.0]])
@pytest.mark.parametrize("category", [1, 0, None])
def test_a_placeholder_says_that_an_image_has_no_object(folder: Path, box: object, category: object) -> None:
    picture(folder / "images" / "n.png")
    given = content(("a.png", "b.png", "n.png"))
    given["annotations"][4:] = [{"id": 9, "image_id": 3, "category_id": category, "bbox": box}]
    dataset = CocoDataset(written(folder, given))
    assert (len(dataset), boxes_on_objects(dataset), len(dataset[2].boxes)) == (3, 4, 0)
    assert notes(dataset) == ["without a box: 1 (annotation 9)"]


def test_an_unknown_category_is_an_error_only_with_a_box(folder: Path) -> None:
    given = content()
    given["annotations"][3] |= {"category_id": None, "bbox": [5, 5, 0, 3]}
    assert notes(CocoDataset(written(folder, given))) == ["without a box: 1 (annotation 4)"]
    given["annotations"][3] |= {"bbox": [5, 5, 1, 3]}
    with pytest.raises(DataError, match="annotation 4: category_id None is not among the categories"):
        CocoDataset(written(folder, given))
    # What is flat, but of a class, stays for the account of odd boxes.
    given["annotations"][3] |= {"category_id": 2, "bbox": [5, 5, 0, 3]}
    assert CocoDataset(written(folder, given))[1].boxes.tolist() == [[4, 3, 14, 15], [5, 5, 5, 8]]


def test_an_object_with_an_outline_alone_is_not_dropped(folder: Path) -> None:
    given = content()
    given["annotations"][0] |= {"bbox": [], "segmentation": [[1, 1, 5, 1, 5, 5]]}
    with pytest.raises(DataError, match=r"annotation 1: expected bbox \[x, y, width, height\], found \[\]"):
        CocoDataset(written(folder, given))[0]
    given["annotations"][0] |= {"segmentation": [[]]}
    assert notes(CocoDataset(written(folder, given))) == ["without a box: 1 (annotation 1)"]


# ---------------------------------------------------------------- classes


def test_categories_of_one_name_are_one_class(folder: Path) -> None:
    given = content()
    given["categories"] = [{"id": 4, "name": "red"}, {"id": 2, "name": "blue"}, {"id": 1, "name": "red "}]
    given["annotations"][2]["category_id"] = 4
    dataset = CocoDataset(written(folder, given))
    assert [(c.label, c.id, c.name) for c in dataset.categories] == [(0, 1, "red"), (1, 2, "blue")]
    assert boxes_on_objects(dataset) == 4
    assert notes(dataset) == ["categories that have the name of another, read as one class: 1 (red: 1 and 4)"]
    # One that is alone is written and read again as it is.
    given["categories"] = [{"id": 1, "name": "red"}, {"id": 2, "name": "blue "}, {"id": 4, "name": "red"}]
    assert [c.name for c in CocoDataset(written(folder, given)).categories] == ["red", "blue "]


def test_a_class_that_the_label_map_lacks_is_counted(folder: Path) -> None:
    dataset = CocoDataset(written(folder, content()), categories=Categories((Category(4, 5, "red"),)))
    assert [(s.labels.tolist(), s.left_out) for s in (dataset[0], dataset.without_pixels(1))] == [([4], 1), ([4], 1)]
    assert notes(dataset) == ["of classes that are not in the label map: 2 (blue)"]
    assert [row["id"] for row in dataset.rows(1)[1]] == [3]
    with pytest.raises(DataError, match=r"none of its classes \(red, blue\) is in the label map \(cat, dog\)"):
        CocoDataset(written(folder, content()), categories=Categories((Category(0, 1, "cat"), Category(1, 2, "dog"))))


def test_names_of_a_label_map_are_compared_in_one_form(folder: Path) -> None:
    given = content()
    given["categories"][0]["name"] = "Ko\u0302t"
    ours = Categories((Category(0, 1, "K\u00f4t "), Category(1, 2, "blue")))
    assert CocoDataset(written(folder, given), categories=ours)[0].labels.tolist() == [0, 1]


# ---------------------------------------------------------------- encodings


@pytest.mark.parametrize("encoding", ["utf-8-sig", "utf-16", "utf-16-le", "utf-32"])
def test_encodings_of_windows(folder: Path, encoding: str) -> None:
    (folder / "c.json").write_bytes(json.dumps(content(), ensure_ascii=False).encode(encoding))
    assert boxes_on_objects(CocoDataset(folder / "c.json")) == 4


def test_a_file_in_no_encoding_is_named(folder: Path) -> None:
    (folder / "c.json").write_bytes(b'{"images": "\xff"}')
    with pytest.raises(DataError, match="c.json: not JSON: 'utf-8' codec"):
        CocoDataset(folder / "c.json")


# ---------------------------------------------------------------- pictures


@pytest.mark.parametrize(
    ("prefix", "assumed"),
    [
        ("images\\", "pictures named with backslashes, or by .."),
        ("C:\\Users\\x\\images\\", "pictures named by another machine's path, read from the folder"),
        ("/home/x/images/", "pictures named by another machine's path, read from the folder"),
        ("https://host/bucket/", "pictures named by an address, read from the folder"),
        ("gone/", "pictures that lie in another folder than their annotation says"),
        ("images/", ""),
        ("", ""),
    ],
)
def test_names_of_other_machines(folder: Path, prefix: str, assumed: str) -> None:
    dataset = CocoDataset(written(folder, content((f"{prefix}a.png", f"{prefix}b.png"))))
    assert boxes_on_objects(dataset) == 4
    assert notes(dataset) == ([f"{assumed}: 2 ({prefix}a.png)"] if assumed else [])
    # The name that files of lists are compared with.
    assert [dataset[0].filename.rsplit("/", 1)[-1], dataset.encoded(0)[1]] == ["a.png", "a.png"]


@pytest.mark.parametrize("name", ["..\\images\\a.png", "A.PNG", "a.png"])
def test_annotations_in_a_folder_beside_the_pictures(folder: Path, name: str) -> None:
    (folder / "annotations").mkdir()
    dataset = CocoDataset(written(folder / "annotations", content((name, "b.png"))))
    assert (dataset.folder, boxes_on_objects(dataset)) == (folder / "images", 4)


def test_a_missing_picture_stays_a_sample_that_is_an_error(folder: Path) -> None:
    dataset = CocoDataset(written(folder, content(("none.png", "b.png", ""))))
    assert (len(dataset), len(dataset[1].boxes)) == (3, 2)
    for read in (dataset.__getitem__, dataset.without_pixels, dataset.encoded):
        with pytest.raises(DataError, match="image 1: file_name: no picture 'none.png' in"):
            read(0)
        with pytest.raises(DataError, match="image 3: file_name: the picture has no name"):
            read(2)
    # A report has the boxes, with or without the picture.
    assert (dataset.truth(0).image.shape, len(dataset.truth(0).boxes)) == ((20, 40, 0), 2)
    (folder / "images" / "b.png").write_bytes(b"nothing")
    with pytest.raises(DataError, match="not an image of a known format"):
        dataset.without_pixels(1)


# ---------------------------------------------------------------- orientation


@pytest.mark.parametrize("orientation", range(1, 9))
@pytest.mark.parametrize("square", [False, True])
@pytest.mark.parametrize("stored", [False, True])
def test_boxes_stay_on_objects_of_turned_pictures(tmp_path: Path, orientation: int, square: bool, stored: bool) -> None:
    """The same picture, with boxes drawn on it upright, or by a tool that ignores EXIF."""
    size = (40, 40) if square else (40, 20)
    picture(tmp_path / "a.png", orientation, size)
    declared = content(("a.png",))
    declared["images"][0] |= {"width": size[0], "height": size[1]}
    with Image.open(tmp_path / "a.png") as image:
        turned = np.asarray(ImageOps.exif_transpose(image))
    if not stored:
        places = [np.argwhere((turned == color).all(-1)) for color in (RED, BLUE)]
        for row, place in zip(declared["annotations"], places, strict=True):
            (y, x), (bottom, right) = place.min(0).tolist(), (place.max(0) + 1).tolist()
            row["bbox"] = [x, y, right - x, bottom - y]
        declared["images"][0] |= {"width": turned.shape[1], "height": turned.shape[0]}
    # The declared size shows that labels refer to stored pixels, where a quarter turn changes it.
    told = stored and not (orientation >= 5 and not square)
    dataset = CocoDataset(written(tmp_path, declared), ignore_exif=told)
    assert boxes_on_objects(dataset) == 2
