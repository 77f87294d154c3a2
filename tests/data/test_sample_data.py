"""The pictures of blood cells that come with the package."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from boxwright.base.errors import OutputError
from boxwright.data.coco import CocoDataset
from boxwright.data.recognize import recognize
from boxwright.data.sample_data import BLOOD_CELLS, copy_blood_cells, sample_images


def test_sample_images_are_the_test_pictures() -> None:
    paths = sample_images()
    assert len(paths) == 72  # BCCD's ImageSets/Main/test.txt
    assert paths == sorted(paths)
    assert all(path.is_file() for path in paths)
    # Names of that list, the first and the last; BloodImage_00000 is in its list train.
    assert (paths[0].name, paths[-1].name) == ("BloodImage_00007.jpg", "BloodImage_00407.jpg")
    with Image.open(paths[0]) as picture:
        assert picture.size == (384, 288)


def test_no_picture_is_in_both_lists() -> None:
    names = {split: {path.name for path in (BLOOD_CELLS / split).iterdir()} for split in ("train", "test")}
    assert not names["train"] & names["test"]
    for split, files in names.items():
        images = json.loads((BLOOD_CELLS / f"{split}.json").read_text())["images"]
        assert {image["file_name"] for image in images} == files


def test_labels_are_the_authors_resized() -> None:
    data = CocoDataset(BLOOD_CELLS / "test.json", BLOOD_CELLS / "test")
    assert [category.name for category in data.categories] == ["Platelets", "RBC", "WBC"]
    # BloodImage_00007.xml: 640×480, the first object a WBC from 193, 92 to 387, 285; times 0.6.
    first = data.truth(0)
    assert first.labels[0] == 2
    np.testing.assert_allclose(first.boxes[0], [115.8, 55.2, 232.2, 171.0], atol=0.06)
    assert sum(len(data.truth(index).boxes) for index in range(len(data))) == 945  # all that its 72 files have


def test_a_copy_is_recognized_as_data_with_a_split(tmp_path: Path) -> None:
    copy = copy_blood_cells(tmp_path / "cells")
    copy_blood_cells(copy)  # again, over what is there
    recognized = recognize(copy)
    assert recognized.kind == "COCO"
    assert recognized.held_out is not None
    assert Path(recognized.held_out.path).name == "test.json"
    assert "2017 shenggan" in (copy / "LICENSE").read_text()
    assert not list(copy.rglob("UNFINISHED"))


def test_a_copy_that_cannot_be_written_is_an_error_with_its_name(tmp_path: Path) -> None:
    (tmp_path / "cells" / "test").mkdir(parents=True)
    (tmp_path / "cells" / "test" / "BloodImage_00007.jpg").mkdir()
    with pytest.raises(OutputError, match=r"BloodImage_00007\.jpg: could not be written: Is a directory"):
        copy_blood_cells(tmp_path / "cells")
    # The mark stays, so that no later command takes half of the data for all.
    assert (tmp_path / "cells" / "UNFINISHED").is_file()
