"""Splitting: what is nearly the same stays together, and the same data give the same split."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

import boxwright as bw
from boxwright.data.coco import CocoDataset
from boxwright.data.convert import write_coco
from boxwright.training.autoconfig.write import choose_held_out, split_dataset
from boxwright.training.preflight.images import near_groups, read_fingerprints
from boxwright.types import Categories, Category, Sample
from tests.training.autoconfig.datasets import shapes


def dataset_with_copies(folder: Path, copies: int) -> CocoDataset:
    """Thirty pictures of which the first is there again, saved with less quality or smaller."""
    import json

    path = write_coco(shapes(30, 3), folder / "instances.json")
    content = json.loads(path.read_text())
    first = content["images"][0]
    with Image.open(folder / "images" / first["file_name"]) as image:
        for number in range(copies):
            name = f"copy-{number}.jpg"
            image.convert("RGB").save(folder / "images" / name, quality=70 + number)
            content["images"].append({**first, "id": 1000 + number, "file_name": name})
    path.write_text(json.dumps(content))
    return CocoDataset(path, folder / "images")


def test_copies_are_on_one_side(tmp_path: Path) -> None:
    dataset = dataset_with_copies(tmp_path, copies=5)
    groups = near_groups(read_fingerprints(dataset, range(len(dataset))))
    assert sorted(row for group in groups for row in group) == list(range(35))
    assert [0, 30, 31, 32, 33, 34] in groups
    split = split_dataset(dataset)
    sides = [{number for number, _ in side} for side in (split.train, split.held_out)]
    assert sides[0] | sides[1] == set(range(35))
    assert not sides[0] & sides[1]
    assert len([side for side in sides if side & {0, 30, 31, 32, 33, 34}]) == 1
    assert split.groups >= 1
    # A fifth of 35 is 7; whole groups give a little more or less.
    assert 5 <= len(sides[1]) <= 9


def test_the_order_of_the_data_does_not_matter(tmp_path: Path) -> None:
    import json

    path = write_coco(shapes(20, 3), tmp_path / "instances.json")
    first = split_dataset(CocoDataset(path))
    content = json.loads(path.read_text())
    content["images"].reverse()
    path.write_text(json.dumps(content))
    second = split_dataset(CocoDataset(path))
    assert {name for _, name in first.held_out} == {name for _, name in second.held_out}
    assert len(first.held_out) == 4
    assert second == split_dataset(CocoDataset(path))


def test_unreadable_images_are_on_neither_side(tmp_path: Path) -> None:
    path = write_coco(shapes(10, 3), tmp_path / "instances.json")
    broken = sorted((tmp_path / "images").iterdir())[4]
    broken.write_bytes(b"no image")
    split = split_dataset(CocoDataset(path))
    assert len(split.unreadable) == 1
    assert broken.name in split.unreadable[0]
    assert broken.name not in {name for side in (split.train, split.held_out) for _, name in side}
    assert len(split.train) + len(split.held_out) == 9


def test_one_picture_cannot_be_split(tmp_path: Path) -> None:
    path = write_coco(shapes(1, 3), tmp_path / "instances.json")
    with pytest.raises(bw.DataError, match="at least two are needed"):
        split_dataset(CocoDataset(path))
    two = write_coco(shapes(2, 3), tmp_path / "two" / "instances.json")
    split = split_dataset(CocoDataset(two))
    assert (len(split.train), len(split.held_out)) == (1, 1)


def test_plain_pictures_that_differ_in_color_alone_are_no_reason_to_fail(tmp_path: Path) -> None:
    """Flat pictures have no structure that tells them apart: all are one group, and the error says so."""
    import json

    images = []
    for number in range(4):
        array = np.full((40, 40, 3), 40 * number, np.uint8)
        Image.fromarray(array).save(tmp_path / f"{number}.png")
        images.append({"id": number, "file_name": f"{number}.png", "height": 40, "width": 40})
    content = {"images": images, "annotations": [], "categories": [{"id": 1, "name": "a"}]}
    (tmp_path / "a.json").write_text(json.dumps(content))
    with pytest.raises(bw.DataError, match="4 images in 1 group of near-duplicates"):
        split_dataset(CocoDataset(tmp_path / "a.json", tmp_path))


class Pictures:
    """Files without annotations."""

    name = "pictures"
    categories = Categories((Category(0, 1, "thing"),))

    def __init__(self, files: Sequence[Path]) -> None:
        self.files = files

    def __len__(self) -> int:
        return len(self.files)

    def __getitem__(self, index: int) -> Sample:
        raise NotImplementedError

    def encoded(self, index: int) -> tuple[bytes, str]:
        return self.files[index].read_bytes(), self.files[index].name


def frames(folder: Path, name: str, seed: int, count: int, step: int) -> None:
    """Write pictures that a camera takes while it moves sideways over one scene."""
    scene = np.random.default_rng(seed).integers(0, 255, (12, 60, 3), np.uint8)
    wide = Image.fromarray(scene).resize((600, 120), Image.Resampling.BICUBIC)
    for number in range(count):
        wide.crop((number * step, 0, number * step + 160, 120)).save(folder / f"{name}{number:04d}.png")


@pytest.mark.parametrize("name", ["clip_", "a video.mp4-", "shot (1) frame "])
def test_frames_of_a_video_are_on_one_side(name: str, tmp_path: Path) -> None:
    for seed in range(6):
        frames(tmp_path, f"{chr(97 + seed)}_{name}", seed, 8, 5)
    prints = read_fingerprints(Pictures(sorted(tmp_path.glob("*.png"))), range(48))
    by_looks, by_video = near_groups(prints), near_groups(prints, frames=True)
    assert sorted(len(group) for group in by_video) == [8] * 6, [len(group) for group in by_looks]
    assert len(by_looks) > 6, "a test of nothing: copies are on one side anyway"
    held_out = choose_held_out(by_video, prints)
    assert len(held_out) == 8
    assert len({prints.names[row][0] for row in held_out}) == 1


def test_numbered_pictures_that_show_other_things_are_no_video(tmp_path: Path) -> None:
    for number in range(20):
        scene = np.random.default_rng(number).integers(0, 255, (12, 16, 3), np.uint8)
        Image.fromarray(scene).resize((160, 120), Image.Resampling.BICUBIC).save(tmp_path / f"img{number}.png")
    prints = read_fingerprints(Pictures(sorted(tmp_path.glob("*.png"))), range(20))
    assert len(near_groups(prints, frames=True)) == 20


def test_one_video_alone_is_split_all_the_same(tmp_path: Path) -> None:
    frames(tmp_path, "clip", 1, 30, 12)
    split = split_dataset(Pictures(sorted(tmp_path.glob("*.png"))))
    assert split.held_out
    assert len(split.train) > len(split.held_out)
