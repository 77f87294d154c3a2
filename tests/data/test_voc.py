"""VOC folders: which picture an annotation is of, what a folder may look like, and what is said about it."""

from __future__ import annotations

import io
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from boxwright.base.errors import DataError
from boxwright.data.convert import write_voc
from boxwright.data.image_io import encode_png
from boxwright.data.voc import VocDataset
from boxwright.types import Categories, Category


def picture(path: Path, width: int = 8, level: int = 0) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(encode_png(np.full((6, width, 3), level, np.uint8)))


def annotation(path: Path, filename: str, *names: str, size: str = "") -> None:
    """Write an annotation with an object of each class name."""
    corners = "<bndbox><xmin>1</xmin><ymin>2</ymin><xmax>5</xmax><ymax>4</ymax></bndbox>"
    objects = "".join(f"<object><name>{name}</name>{corners}</object>" for name in names)
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(f"<annotation><filename>{filename}</filename>{size}{objects}</annotation>")


def levels(dataset: VocDataset) -> dict[str, int]:
    """Return each sample's gray level by its id: which picture it has."""
    return {dataset[index].id: int(dataset[index].image[0, 0, 0]) for index in range(len(dataset))}


def said(dataset: VocDataset) -> list[str]:
    return [*dataset.notices.assumed.lines()]


# ---------------------------------------------------------------- which picture


def folder(tmp_path: Path, **filenames: str) -> Path:
    """Write a.png, b.png, c.png of levels 1, 2, 3, and an annotation with each `<filename>`."""
    for level, stem in enumerate("abc", start=1):
        picture(tmp_path / "images" / f"{stem}.png", level=level)
    for stem, filename in filenames.items():
        annotation(tmp_path / "annotations" / f"{stem}.xml", filename, "cat")
    return tmp_path


def test_names_that_agree_need_no_word(tmp_path: Path) -> None:
    dataset = VocDataset(folder(tmp_path, a="a.png", b="b.png", c=""))
    assert levels(dataset) == {"a": 1, "b": 2, "c": 3}
    assert said(dataset) == []


def test_an_annotations_own_name_wins_where_all_have_a_picture(tmp_path: Path) -> None:
    dataset = VocDataset(folder(tmp_path, a="b.png", b="c.png", c="c.png"))
    assert levels(dataset) == {"a": 1, "b": 2, "c": 3}
    assert said(dataset) == [
        "annotations whose <filename> names another picture, read by their own name: 2 (a.xml: b.png)"
    ]


def test_pictures_of_which_nothing_is_certain_are_errors(tmp_path: Path) -> None:
    """A picture without an annotation of its name shows that names need not agree."""
    dataset = VocDataset(folder(tmp_path, a="b.png", b="b.png", x="c.png"))
    assert levels_or_errors(dataset) == {
        "a": "a.xml: of b.png by its <filename>, of a.png by its own name",
        "b": 2,
        "x": 3,
    }


def test_two_annotations_of_a_picture_are_errors(tmp_path: Path) -> None:
    """Each alone would call the objects of the other background; the one that is named like the picture is certain."""
    dataset = VocDataset(folder(tmp_path, a="a.png", x="a.png", y="b.png", z="b.png"))
    assert levels_or_errors(dataset) == {
        "a": 1,
        "x": "x.xml: of a.png, as is a.xml",
        "y": "y.xml: of b.png, as is z.xml",
        "z": "z.xml: of b.png, as is y.xml",
    }


def levels_or_errors(dataset: VocDataset) -> dict[str, object]:
    outcomes: dict[str, object] = {}
    for index, stem in enumerate(dataset.stems):
        try:
            outcomes[stem] = int(dataset[index].image[0, 0, 0])
        except DataError as error:
            outcomes[stem] = str(error).partition(";")[0].rpartition("/")[2]
    return outcomes


@pytest.mark.parametrize(
    ("filename", "reason"),
    [
        ("b", "pictures that <filename> names without ending"),
        ("B.PNG", "pictures whose name differs in upper and lower case or Unicode's form"),
        ("b.jpg", "pictures of another ending than <filename> says"),
        ("C:\\Users\\me\\b.png", "pictures named by another machine's path, read from the folder"),
        ("/home/me/b.png", "pictures named by another machine's path, read from the folder"),
        ("https://host/b.png?x=1", "pictures named by an address, read from the folder"),
        ("http://[x/b.png", "pictures named by an address, read from the folder"),
    ],
)
def test_a_filename_as_other_machines_write_it(tmp_path: Path, filename: str, reason: str) -> None:
    dataset = VocDataset(folder(tmp_path, label_7=filename))
    assert levels(dataset) == {"label_7": 2}
    assert said(dataset) == [
        f"{reason}: 1 (label_7.xml: {filename})",
        "annotations that are named otherwise than their picture, read by <filename>: 1 (label_7.xml)",
    ]


def test_a_filename_of_no_picture_gives_way_to_the_own_name(tmp_path: Path) -> None:
    dataset = VocDataset(folder(tmp_path, a="DSC_1.png", b="b.xml"))
    assert levels(dataset) == {"a": 1, "b": 2}
    assert said(dataset) == ["annotations whose <filename> is no picture, read by their own name: 2 (a.xml: DSC_1.png)"]


def test_an_own_name_in_another_case_or_unicode_form(tmp_path: Path) -> None:
    picture(tmp_path / "Ba\u0308um.PNG", level=9)
    annotation(tmp_path / "b\u00e4um.xml", "", "cat")
    assert levels(VocDataset(tmp_path)) == {"b\u00e4um": 9}


def test_one_of_two_pictures_of_a_name_is_named_or_refused(tmp_path: Path) -> None:
    picture(tmp_path / "a.png", level=1)
    picture(tmp_path / "a.bmp", level=2)
    annotation(tmp_path / "a.xml", "a.bmp", "cat")
    assert levels(VocDataset(tmp_path)) == {"a": 2}
    annotation(tmp_path / "a.xml", "", "cat")
    with pytest.raises(DataError, match=r"a.xml: may be of a.bmp or a.png; rename one of them"):
        VocDataset(tmp_path)[0]


def test_a_filename_does_not_lead_outside(tmp_path: Path) -> None:
    picture(tmp_path / "outside.png", level=7)
    root = folder(tmp_path / "in", x="../../outside.png", a="")
    dataset = VocDataset(root)
    assert dataset.stems == ["a"]
    assert "pictures without an annotation: 2 (b.png)" in dataset.notices.files.lines()
    assert levels(VocDataset(root, allow_paths_outside=True)) == {"a": 1, "x": 7}


def test_a_list_may_lead_outside_where_that_is_allowed(tmp_path: Path) -> None:
    root = folder(tmp_path / "in", a="")
    (root / "ImageSets" / "Main").mkdir(parents=True)
    (root / "ImageSets" / "Main" / "l.txt").write_text("../../far/x\n")
    annotation(tmp_path / "far" / "x.xml", "", "cat")
    picture(tmp_path / "far" / "x.png", level=7)
    with pytest.raises(DataError, match="lies outside"):
        VocDataset(root, "l")
    assert levels(VocDataset(root, "l", allow_paths_outside=True)) == {"../../far/x": 7}


# ---------------------------------------------------------------- what is no sample


def test_files_that_are_no_sample_are_counted(tmp_path: Path) -> None:
    root = folder(tmp_path, a="a.png", orphan="orphan.png", b="b.png")
    (root / "annotations" / "notes.xml").write_text("<notes/>")
    (root / "annotations" / "broken.xml").write_text("<annotation>")
    (root / "annotations" / "._a.xml").write_bytes(b"\0\5\x16\7 Mac OS X")
    annotation(root / "annotations" / "__MACOSX" / "a.xml", "a.png", "dog")
    picture(root / "images" / "broken.png")
    dataset = VocDataset(root)
    assert dataset.stems == ["a", "b", "broken"]
    assert sorted(dataset.notices.files.lines()) == [
        "XML files that are no annotation of VOC's: 1 (notes.xml)",
        "annotations without a picture: 1 (orphan.xml)",
        "pictures without an annotation: 1 (c.png)",
    ]
    for read in (dataset.__getitem__, dataset.without_pixels, dataset.encoded):
        with pytest.raises(DataError, match="broken.xml: not XML"):
            read(2)


def test_a_listed_annotation_without_a_picture_stays_a_sample(tmp_path: Path) -> None:
    root = folder(tmp_path, a="a.png", orphan="orphan.png")
    (root / "ImageSets" / "Main").mkdir(parents=True)
    (root / "ImageSets" / "Main" / "l.txt").write_text("orphan\na\na\n")
    dataset = VocDataset(root, "l")
    assert dataset.stems == ["orphan", "a", "a"], "a list may name a picture twice"
    assert dataset[2].id == "a"
    for read in (dataset.__getitem__, dataset.without_pixels, dataset.encoded):
        with pytest.raises(DataError, match=r"orphan.xml: no picture 'orphan.png' in .*images"):
            read(0)
    assert not dataset.notices.files.counts, "pictures that a list does not name are not missing annotations"


def test_a_folder_whose_names_do_not_meet_is_refused_with_an_example_of_each(tmp_path: Path) -> None:
    with pytest.raises(
        DataError, match=r"none of 2 annotations has a picture: .*x.xml: no picture 'x.png'.*pictures there: a.png"
    ):
        VocDataset(folder(tmp_path, x="x.png", y="y.png"))


# ---------------------------------------------------------------- folders


@pytest.mark.parametrize(
    ("xml", "image", "filename", "stem"),
    [
        ("Annotations/job1/f.xml", "JPEGImages/job1/f.png", "job1/f.png", "job1/f"),
        ("Annotations/job1/f.xml", "JPEGImages/job1/f.png", "f.png", "job1/f"),
        ("Annotations/job1/f.xml", "JPEGImages/f.png", "f.png", "job1/f"),
        ("Annotations/f.xml", "JPEGImages/job1/f.png", "f.png", "f"),
        ("f.xml", "f.png", "", "f"),
        ("f.XML", "f.PNG", "f.png", "f"),
        ("images/train/f.xml", "images/train/f.png", "f.png", "f"),
        ("annotations/f.xml", "f.png", "f.png", "f"),
        ("labels/f.xml", "pictures/f.png", "f.png", "f"),
        ("xml/f.xml", "img/f.png", "f.png", "f"),
        ("export/Annotations/f.xml", "export/JPEGImages/f.png", "f.png", "f"),
    ],
)
def test_layouts(tmp_path: Path, xml: str, image: str, filename: str, stem: str) -> None:
    picture(tmp_path / image, level=5)
    annotation(tmp_path / xml, filename, "cat")
    dataset = VocDataset(tmp_path)
    assert levels(dataset) == {stem: 5}
    assert not dataset.notices.files.counts


def test_frames_of_one_name_in_two_folders(tmp_path: Path) -> None:
    for level, job in enumerate(("job0", "job1"), start=1):
        picture(tmp_path / "JPEGImages" / job / "f.png", level=level)
        annotation(tmp_path / "Annotations" / job / "f.xml", "f.png", "cat")
    (tmp_path / "ImageSets" / "Main").mkdir(parents=True)
    (tmp_path / "ImageSets" / "Main" / "default.txt").write_text("job1/f\njob0\\f\n")
    assert levels(VocDataset(tmp_path)) == {"job0/f": 1, "job1/f": 2}
    listed = VocDataset(tmp_path, "default")
    assert levels(listed) == {"job1/f": 2, "job0/f": 1}
    assert said(listed) == ["names in lists with backslashes, or in another case or Unicode form: 1 (job0\\f)"]


def test_masks_of_the_same_names_are_no_pictures(tmp_path: Path) -> None:
    picture(tmp_path / "SegmentationClass" / "a.png", level=9)
    picture(tmp_path / "SegmentationClass" / "b.png", level=9)
    picture(tmp_path / "JPEGImages" / "a.png", level=1)
    for stem in "ab":
        annotation(tmp_path / "Annotations" / f"{stem}.xml", f"{stem}.png", "cat")
    dataset = VocDataset(tmp_path)
    assert levels(dataset) == {"a": 1}
    assert list(dataset.notices.files.lines()) == ["annotations without a picture: 1 (b.xml)"]


# ---------------------------------------------------------------- classes


def categories(*names: str) -> Categories:
    return Categories(tuple(Category(label, label + 1, name) for label, name in enumerate(names)))


def test_objects_of_other_classes_than_the_label_maps_are_left_out_and_counted(tmp_path: Path) -> None:
    root = folder(tmp_path)
    annotation(root / "annotations" / "a.xml", "a.png", "cat", "ox", "dog", "ox")
    annotation(root / "annotations" / "b.xml", "b.png", "ant")
    dataset = VocDataset(root, categories=categories("dog", "cat"))
    assert [dataset[index].labels.tolist() for index in range(2)] == [[1, 0], []]
    assert [dataset[index].left_out for index in range(2)] == [2, 1]
    assert list(dataset.notices.boxes.lines()) == ["of classes that are not in the label map: 3 (ant, ox)"]
    with pytest.raises(DataError, match=r"none of the classes in the data \(ant, cat, dog, ox\) .* \(cow, pig\)"):
        VocDataset(root, categories=categories("cow", "pig"))


def test_no_objects_are_not_of_other_classes(tmp_path: Path) -> None:
    root = folder(tmp_path)
    annotation(root / "annotations" / "a.xml", "a.png")
    assert VocDataset(root, categories=categories("cow"))[0].left_out == 0


def test_two_unicode_forms_are_one_class(tmp_path: Path) -> None:
    root = folder(tmp_path)
    annotation(root / "annotations" / "a.xml", "a.png", "cafe\u0301", "tea")
    annotation(root / "annotations" / "b.xml", "b.png", "caf\u00e9")
    dataset = VocDataset(root)
    assert [item.name for item in dataset.categories] == ["caf\u00e9", "tea"]
    assert [dataset[index].labels.tolist() for index in range(2)] == [[0, 1], [0]]
    assert said(dataset) == ["objects whose class is written in two Unicode forms, read as one class: 1 (caf\u00e9)"]
    given = VocDataset(root, categories=categories("tea", "caf\u00e9"))
    assert given[0].labels.tolist() == [1, 0]


def test_a_class_in_one_form_stays_as_written(tmp_path: Path) -> None:
    root = folder(tmp_path)
    annotation(root / "annotations" / "a.xml", "a.png", "cafe\u0301", "Tea", "tea")
    dataset = VocDataset(root)
    assert [item.name for item in dataset.categories] == ["Tea", "cafe\u0301", "tea"]
    assert said(dataset) == []


# ---------------------------------------------------------------- orientation


def turned(path: Path, orientation: int, size: tuple[int, int]) -> None:
    """Write a picture with a bright corner that is at the upper left once it is upright."""
    pixels = np.zeros((size[1], size[0], 3), np.uint8)
    pixels[: size[1] // 2, : size[0] // 2] = 255
    back = {
        2: Image.Transpose.FLIP_LEFT_RIGHT,
        3: Image.Transpose.ROTATE_180,
        4: Image.Transpose.FLIP_TOP_BOTTOM,
        5: Image.Transpose.TRANSPOSE,
        6: Image.Transpose.ROTATE_90,
        7: Image.Transpose.TRANSVERSE,
        8: Image.Transpose.ROTATE_270,
    }
    image = Image.fromarray(pixels)
    stored = image.transpose(back[orientation]) if orientation in back else image
    exif = Image.Exif()
    exif[0x0112] = orientation
    buffer = io.BytesIO()
    stored.save(buffer, "JPEG", exif=exif, quality=95)
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(buffer.getvalue())


@pytest.mark.parametrize("size", [(64, 32), (48, 48)])
@pytest.mark.parametrize("orientation", range(1, 9))
def test_boxes_stay_on_their_objects_through_a_round_trip(
    tmp_path: Path, orientation: int, size: tuple[int, int]
) -> None:
    turned(tmp_path / "v" / "a.jpg", orientation, size)
    width, height = size
    box = f"<bndbox><xmin>0</xmin><ymin>0</ymin><xmax>{width // 2}</xmax><ymax>{height // 2}</ymax></bndbox>"
    declared = f"<size><width>{width}</width><height>{height}</height></size>"
    for written in (declared, ""):
        (tmp_path / "v" / "a.xml").write_text(f"<annotation>{written}<object><name>o</name>{box}</object></annotation>")
        start = VocDataset(tmp_path / "v")
        target = tmp_path / f"w{len(written)}"
        write_voc(start, target)
        for dataset in (start, VocDataset(target)):
            sample, without = dataset[0], dataset.without_pixels(0)
            assert sample.image.shape == (height, width, 3)
            assert without.image.shape == (height, width, 0)
            assert without.boxes.tolist() == sample.boxes.tolist() == [[0, 0, width // 2, height // 2]]
            assert sample.image[2 : height // 2 - 4, 2 : width // 2 - 4].min() > 200
            assert sample.image[height // 2 + 4 :].max() < 50


def test_exif_is_ignored_where_that_is_asked_for_and_the_size_does_not_tell(tmp_path: Path) -> None:
    turned(tmp_path / "a.jpg", 6, (64, 32))
    turned(tmp_path / "b.jpg", 3, (64, 32))
    upright = "<size><width>64</width><height>32</height></size>"
    annotation(tmp_path / "a.xml", "a.jpg", "o", size=upright)
    annotation(tmp_path / "b.xml", "b.jpg", "o", size=upright)
    dataset = VocDataset(tmp_path, ignore_exif=True)
    assert dataset[0].image.shape == (32, 64, 3), "the annotation's size is that of the upright picture"
    assert dataset[1].image[0, 0, 0] < 50, "nothing shows that labels refer to the upright picture"
    annotation(tmp_path / "a.xml", "a.jpg", "o")
    assert VocDataset(tmp_path, ignore_exif=True)[0].image.shape == (64, 32, 3)
    assert VocDataset(tmp_path, ignore_exif=True).without_pixels(0).image.shape == (64, 32, 0)
    assert VocDataset(tmp_path)[0].image.shape == (32, 64, 3)
