"""Variants of layouts: each that tools and tutorials have, with one list or several."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import yaml

from tests.brought.layouts import (
    VISDRONE_COLORS,
    coco,
    darknet,
    kitti,
    open_images_toolkit,
    raccoon,
    raccoon_table,
    retinanet,
    visdrone,
    voc,
    voc_xml,
    write,
    write_pictures,
    yolo,
    yolo_text,
    yolo_with_classes,
)
from tests.brought.pictures import Picture, pictures, renamed
from tests.brought.tool_layouts import (
    createml,
    cvat,
    cvat_video,
    datumaro,
    imagefolder,
    label_studio,
    label_studio_min,
    labelme,
    parquet,
    records,
    supervisely,
    via,
    vott,
)
from tests.brought.variant import Variant

Make = Callable[[Path], Path]
_TRAIN, _HELD_OUT = pictures()[:4], pictures()[4:]
_THREE = {"train": pictures(7)[:4], "valid": pictures(7)[4:5], "test": pictures(7)[5:]}


def _each(write_one: Callable[[Sequence[Picture], Path], Any], *names: str) -> Make:
    """Return what writes a folder for each list, whole in itself."""

    def make(to: Path) -> Path:
        for name, given in zip(names, _THREE.values(), strict=False):
            write_one(given, to / name)
        return to

    return make


def _flat_voc(given: Sequence[Picture], to: Path) -> Path:
    return voc(given, to, images=".", annotations=".")


def _voc_with_lists(to: Path, *, sub: str = "", **lists: Sequence[Picture]) -> Path:
    for name, given in lists.items():
        voc(given, to, images=f"JPEGImages/{sub}", annotations=f"Annotations/{sub}")
        lines = "".join(f"{sub}{'/' if sub else ''}{picture.stem}\n" for picture in given)
        write(to / "ImageSets" / "Main" / f"{name}.txt", lines)
    return to


def _tutorial(to: Path) -> Path:
    """Write the tutorials' `images/train` and `images/test` with XML, and their tables."""
    for name, given in (("train", _TRAIN), ("test", _HELD_OUT)):
        _flat_voc(given, to / "images" / name)
        raccoon_table(given, to / "images" / f"{name}_labels.csv")
    return to


def _voc_with_tables(to: Path) -> Path:
    """Write the raccoon project: XML in `annotations`, and a table of the same boxes."""
    voc(pictures(), to, images="images", annotations="annotations")
    raccoon_table(pictures(), to / "data" / "raccoon_labels.csv")
    return to


def _roboflow_tables(to: Path) -> Path:
    for name, given in _THREE.items():
        write_pictures(given, to / name)
        raccoon_table(given, to / name / "_annotations.csv")
    return to


def _roboflow_records(to: Path) -> Path:
    for name, given in _THREE.items():
        records({"Shapes.tfrecord": given}, to / name, map_name="Shapes_label_map.pbtxt")
    return to


def _yaml(to: Path, content: str) -> Path:
    write_pictures(pictures(), to / "train" / "images")
    for picture in pictures():
        write(to / "train" / "labels" / f"{picture.stem}.txt", yolo_text(picture))
    write(to / "data.yaml", content)
    return to


def _yaml_above(to: Path) -> Path:
    yolo({"train": _TRAIN, "val": _HELD_OUT}, to / "mydata", images="images/{split}", labels="labels/{split}")
    (to / "mydata" / "data.yaml").unlink()
    names = {0: "red", 1: "green", 2: "blue"}
    content = {"path": "mydata", "train": "images/train", "val": "images/val", "test": None, "names": names}
    return write(to / "mydata.yaml", yaml.safe_dump(content))


def _path_outside(to: Path) -> Path:
    yolo({"train": _TRAIN, "val": _HELD_OUT}, to / "datasets" / "x", images="images/{split}", labels="labels/{split}")
    content = {"path": "../datasets/x", "train": "images/train", "val": "images/val", "names": ["red", "green", "blue"]}
    return write(to / "cfg" / "my.yaml", yaml.safe_dump(content))


def _parts_of_yolo(to: Path) -> Path:
    yolo({"a": pictures()[:2], "b": pictures()[2:4], "c": pictures()[4:]}, to)
    lists = {"train": ["a/images", "b/images"], "val": ["c/images"]}
    write(to / "data.yaml", yaml.safe_dump({**lists, "names": ["red", "green", "blue"]}))
    return to


def _coco_of_two_files(to: Path) -> Path:
    for name, given in (("train", _TRAIN), ("val", _HELD_OUT)):
        coco(given, to, name=f"annotations/{name}.json", images=f"images/{name}")
    return to


def _odd_first_key(content: dict[str, Any]) -> None:
    lists = {key: content.pop(key) for key in list(content)}
    content.update({"version": "1.0", "info": {"note": "x" * 5000}, "licenses": [], **lists})


LAYOUTS: dict[str, Variant] = {
    "Roboflow's VOC": Variant(_each(_flat_voc, "train", "valid", "test"), said="test"),
    "VOC, two folders whole in themselves": Variant(_each(voc, "train", "valid")),
    "VOC, all in one folder": Variant(lambda to: _flat_voc(pictures(), to)),
    "VOC, images and annotations": Variant(lambda to: voc(pictures(), to, images="images", annotations="annotations")),
    "VOC, images and labels": Variant(lambda to: voc(pictures(), to, images="images", annotations="labels")),
    "VOC with train and val": Variant(lambda to: _voc_with_lists(to, train=_TRAIN, val=_HELD_OUT)),
    "CVAT's VOC with default.txt": Variant(lambda to: _voc_with_lists(to, default=pictures())),
    "CVAT's VOC with folders of jobs": Variant(lambda to: _voc_with_lists(to, sub="job1", default=pictures())),
    "VOC with folders of jobs, no list": Variant(
        lambda to: voc(pictures(), to, images="JPEGImages/job1", annotations="Annotations/job1")
    ),
    "the tutorial's images/train": Variant(_tutorial),
    "the raccoons' project": Variant(_voc_with_tables),
    "raccoon CSV beside images": Variant(lambda to: raccoon(pictures(), to)),
    "raccoon CSV, the file itself": Variant(lambda to: raccoon(pictures(), to) / "train_labels.csv"),
    "raccoon CSV among its pictures": Variant(lambda to: raccoon(pictures(), to, images=".")),
    "Roboflow's CSV": Variant(_roboflow_tables, said="test"),
    "RetinaNet CSV": Variant(lambda to: retinanet(pictures(), to)),
    "RetinaNet CSV, the file itself": Variant(lambda to: retinanet(pictures(), to) / "annotations.csv"),
    "RetinaNet CSV with pictures without objects": Variant(
        lambda to: retinanet(pictures(), to, empty=renamed(pictures(2), "empty{number}.png"))
    ),
    "COCO among its pictures": Variant(lambda to: coco(pictures(), to, images=".")),
    "COCO, the file itself": Variant(lambda to: coco(pictures(), to) / "annotations.json"),
    "COCO, another first key": Variant(lambda to: coco(pictures(), to, change=_odd_first_key)),
    "CVAT's COCO": Variant(
        lambda to: coco(pictures(), to, name="annotations/instances_default.json", images="images/default")
    ),
    "COCO, annotations/train.json and val.json": Variant(_coco_of_two_files),
    "COCO, folders each with its own": Variant(_each(coco, "train", "val")),
    "Roboflow's COCO": Variant(
        _each(lambda given, to: coco(given, to, name="_annotations.coco.json", images="."), "train", "valid", "test"),
        said="test",
    ),
    "YOLO with train and val": Variant(lambda to: yolo({"train": _TRAIN, "val": _HELD_OUT}, to)),
    "YOLO, images/train and labels/train": Variant(
        lambda to: yolo({"train": _TRAIN, "val": _HELD_OUT}, to, images="images/{split}", labels="labels/{split}")
    ),
    "YOLO, labels beside pictures": Variant(
        lambda to: yolo({"train": _TRAIN, "val": _HELD_OUT}, to, images="{split}", labels="{split}")
    ),
    "YOLO, data.yaml beside its folder": Variant(_yaml_above),
    "YOLO, path outside, as asked": Variant(_path_outside, allow_paths_outside=True),
    "YOLO, path outside": Variant(_path_outside, None, refused="allow_paths_outside|outside"),
    "YOLO, train as a list of folders": Variant(_parts_of_yolo),
    "YOLO, names with keys of text": Variant(
        lambda to: _yaml(to, "train: train/images\nnames: {'0': red, '1': green, '2': blue}\n")
    ),
    "YOLO, names that YAML reads as booleans": Variant(
        lambda to: _yaml(to, "train: train/images\nnames: [on, off, no]\n"),
        classes={"on": "red", "off": "green", "no": "blue"},
    ),
    "YOLO, names that are numbers": Variant(
        lambda to: _yaml(to, "train: train/images\nnames: [7, 8, 9]\n"),
        classes={"7": "red", "8": "green", "9": "blue"},
    ),
    "YOLO, names with a gap": Variant(
        lambda to: _yaml(to, "train: train/images\nnames: {0: red, 2: green, 5: blue}\n"), None, refused="names"
    ),
    "YOLO, nc without names": Variant(lambda to: _yaml(to, "train: train/images\nnc: 3\n"), None, refused="names"),
    "Label Studio's YOLO": Variant(
        lambda to: write(
            yolo_with_classes(pictures(), to, images="images", labels="labels") / "notes.json", '{"categories": []}'
        ).parent
    ),
    "labelImg's YOLO": Variant(lambda to: yolo_with_classes(pictures(), to)),
    "CVAT's YOLO 1.1": Variant(lambda to: darknet({"train": pictures()}, to)),
    "Darknet with train and valid": Variant(lambda to: darknet({"train": _TRAIN, "valid": _HELD_OUT}, to)),
    "Darknet, paths beside": Variant(lambda to: darknet({"train": pictures()}, to, prefix="")),
    "OIDv4_ToolKit": Variant(lambda to: open_images_toolkit(pictures(), to)),
    "LabelMe": Variant(lambda to: labelme(pictures(), to)),
    "LabelMe, two folders": Variant(_each(labelme, "train", "val")),
    "VIA's regions": Variant(lambda to: via(pictures(), to)),
    "VIA's regions by number": Variant(lambda to: via(pictures(), to, by_number=True)),
    "VIA's project": Variant(lambda to: via(pictures(), to, project=True)),
    "VIA, two folders": Variant(_each(via, "train", "val")),
    "CreateML": Variant(lambda to: createml(pictures(), to)),
    "CreateML, two folders": Variant(_each(createml, "train", "valid")),
    "KITTI": Variant(lambda to: kitti(pictures(), to)),
    "KITTI, the folder training itself": Variant(lambda to: kitti(pictures(), to) / "training"),
    "VisDrone": Variant(lambda to: visdrone(pictures(), to), classes=VISDRONE_COLORS),
    "Datumaro": Variant(lambda to: datumaro({"default": pictures()}, to)),
    "Datumaro with train and val": Variant(lambda to: datumaro({"train": _TRAIN, "val": _HELD_OUT}, to)),
    "Supervisely": Variant(lambda to: supervisely(pictures(), to)),
    "Hugging Face's imagefolder": Variant(lambda to: imagefolder({"train": _TRAIN, "validation": _HELD_OUT}, to)),
    "Hugging Face's Parquet": Variant(lambda to: parquet({"train": _TRAIN, "validation": _HELD_OUT}, to)),
    "Label Studio's JSON": Variant(lambda to: label_studio(pictures(), to)),
    "Label Studio's JSON-MIN": Variant(lambda to: label_studio_min(pictures(), to), refused="as JSON"),
    "CVAT for images": Variant(lambda to: cvat(pictures(), to)),
    "CVAT for images, named with a folder": Variant(
        lambda to: cvat(pictures(), to, images="images/job a", name="job a/{name}")
    ),
    "CVAT for video": Variant(
        lambda to: cvat_video(renamed(pictures(), "frame_{number:06d}.png"), to), refused="CVAT for images"
    ),
    "TFRecords": Variant(lambda to: records({"train.record": _TRAIN, "val.record": _HELD_OUT}, to)),
    "TFRecords, a file itself": Variant(lambda to: records({"train.record": pictures()}, to) / "train.record"),
    "Roboflow's TFRecords": Variant(_roboflow_records, said="test"),
    "VoTT's TFRecords": Variant(lambda to: vott(pictures(), to)),
    "VOC without size": Variant(lambda to: voc(pictures(), to, sized=False)),
    "VOC, size of zeros": Variant(
        lambda to: voc(pictures(), to, text=lambda one: voc_xml(replace(one, width=0, height=0)))
    ),
}
