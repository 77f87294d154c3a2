"""Writing pictures and their labels as annotation tools and hubs export them in JSON, XML, Parquet and records."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any
from urllib.parse import quote
from xml.sax.saxutils import quoteattr

from boxwright.data.example_messages import Example
from boxwright.data.tfrecord import write_records
from tests.brought.layouts import Splits, number_of, write, write_pictures, xywh
from tests.brought.pictures import CLASSES, Object, Picture


def labelme(pictures: Sequence[Picture], folder: Path, *, image_path: Callable[[Picture], str] | None = None) -> Path:
    """Write LabelMe's JSON beside each picture, the first of the two corners being the lower right."""
    write_pictures(pictures, folder)
    for picture in pictures:
        shapes = [
            {
                "label": one.name,
                "points": [[one.box[2], one.box[3]], [one.box[0], one.box[1]]],
                "shape_type": "rectangle",
                "group_id": None,
                "flags": {},
            }
            for one in picture.objects
        ]
        content = {"version": "5.4.1", "flags": {}, "shapes": shapes, "imageData": None}
        content |= {"imagePath": image_path(picture) if image_path else picture.name}
        content |= {"imageHeight": picture.height, "imageWidth": picture.width}
        write(folder / f"{picture.stem}.json", json.dumps(content))
    return folder


def _via_region(one: Object, attribute: str) -> dict[str, Any]:
    x, y, width, height = xywh(one)
    shape = {"name": "rect", "x": x, "y": y, "width": width, "height": height}
    return {"shape_attributes": shape, "region_attributes": {attribute: one.name}}


def via(pictures: Sequence[Picture], folder: Path, *, project: bool = False, by_number: bool = False) -> Path:
    """Write VIA's file of regions, or its whole project.

    Args:
        by_number: Whether regions are a mapping from '0', '1', …, as VIA 1 had them.
    """
    write_pictures(pictures, folder)
    content: dict[str, Any] = {}
    for picture in pictures:
        regions: Any = [_via_region(one, "class") for one in picture.objects]
        if by_number:
            regions = {str(number): region for number, region in enumerate(regions)}
        size = len(picture.data)
        row = {"filename": picture.name, "size": size, "regions": regions, "file_attributes": {}}
        content[f"{picture.name}{size}"] = row
    name, whole = "via_region_data.json", content
    if project:
        name = "via_project.json"
        whole = {"_via_settings": {}, "_via_img_metadata": content, "_via_attributes": {"region": {}, "file": {}}}
    write(folder / name, json.dumps(whole))
    return folder


def createml(pictures: Sequence[Picture], folder: Path, *, name: str = "_annotations.createml.json") -> Path:
    """Write Create ML's JSON in the folder of pictures; boxes are centers and sizes in pixels."""
    write_pictures(pictures, folder)
    content = []
    for picture in pictures:
        rows = []
        for one in picture.objects:
            x, y, width, height = xywh(one)
            place = {"x": x + width / 2, "y": y + height / 2, "width": width, "height": height}
            rows.append({"label": one.name, "coordinates": place})
        content.append({"image": picture.name, "annotations": rows})
    write(folder / name, json.dumps(content))
    return folder


def datumaro(splits: Splits, folder: Path) -> Path:
    """Write Datumaro's JSON of each split, with a folder of pictures of its name."""
    labels = [{"name": name, "parent": "", "attributes": []} for name in CLASSES]
    for split, pictures in splits.items():
        write_pictures(pictures, folder / "images" / split)
        items = [
            {
                "id": picture.stem,
                "annotations": [
                    {
                        "id": 0,
                        "type": "bbox",
                        "attributes": {},
                        "group": 0,
                        "label_id": number_of(one),
                        "bbox": xywh(one),
                    }
                    for one in picture.objects
                ],
                "attr": {"frame": number},
                "image": {"path": picture.name, "size": [picture.height, picture.width]},
            }
            for number, picture in enumerate(pictures)
        ]
        content = {"dm_format_version": "1.0", "infos": {}, "categories": {"label": {"labels": labels}}, "items": items}
        write(folder / "annotations" / f"{split}.json", json.dumps(content))
    return folder


def supervisely(pictures: Sequence[Picture], folder: Path) -> Path:
    """Write a Supervisely project of one data set."""
    write_pictures(pictures, folder / "ds0" / "img")
    for picture in pictures:
        objects = [
            {
                "id": number,
                "classTitle": one.name,
                "geometryType": "rectangle",
                "points": {"exterior": [[one.box[0], one.box[1]], [one.box[2], one.box[3]]], "interior": []},
            }
            for number, one in enumerate(picture.objects)
        ]
        size = {"height": picture.height, "width": picture.width}
        content = {"description": "", "tags": [], "size": size, "objects": objects}
        write(folder / "ds0" / "ann" / f"{picture.name}.json", json.dumps(content))
    classes = [{"title": name, "shape": "rectangle", "color": "#ff0000"} for name in CLASSES]
    write(folder / "meta.json", json.dumps({"classes": classes, "tags": []}))
    return folder


def imagefolder(splits: Splits, folder: Path, *, box: Callable[[Object], Sequence[float]] = xywh) -> Path:
    """Write Hugging Face's `imagefolder`: pictures of each split with a `metadata.jsonl`."""
    for split, pictures in splits.items():
        write_pictures(pictures, folder / split)
        rows = [
            {
                "file_name": picture.name,
                "objects": {
                    "bbox": [list(box(one)) for one in picture.objects],
                    "categories": [number_of(one) for one in picture.objects],
                },
            }
            for picture in pictures
        ]
        write(folder / split / "metadata.jsonl", "".join(json.dumps(row) + "\n" for row in rows))
    return folder


def parquet(
    splits: Splits,
    folder: Path,
    *,
    box: Callable[[Object], Sequence[float]] = xywh,
    names: Sequence[str] | None = None,
) -> Path:
    """Write Hugging Face's Parquet of each split: `image` and `objects`.

    Args:
        names: Of the classes, for the table's own description; None to leave them numbers.
    """
    import pyarrow as pa
    import pyarrow.parquet as pq

    for split, pictures in splits.items():
        rows = [
            {
                "image_id": number,
                "image": {"bytes": picture.data, "path": picture.name},
                "width": picture.width,
                "height": picture.height,
                "objects": {
                    "id": list(range(len(picture.objects))),
                    "bbox": [[float(side) for side in box(one)] for one in picture.objects],
                    "category": [number_of(one) for one in picture.objects],
                },
            }
            for number, picture in enumerate(pictures)
        ]
        table = pa.Table.from_pylist(rows)
        if names:
            category = {"feature": {"names": list(names), "_type": "ClassLabel"}, "_type": "Sequence"}
            features = {"objects": {"category": category}, "image": {"_type": "Image"}}
            table = table.replace_schema_metadata({"huggingface": json.dumps({"info": {"features": features}})})
        path = folder / "data" / f"{split}-00000-of-00001.parquet"
        path.parent.mkdir(parents=True, exist_ok=True)
        pq.write_table(table, path)
    return folder


def _percents(one: Object, picture: Picture) -> dict[str, Any]:
    x, y, width, height = xywh(one)
    place = {"x": 100 * x / picture.width, "y": 100 * y / picture.height}
    place |= {"width": 100 * width / picture.width, "height": 100 * height / picture.height}
    return {**place, "rotation": 0, "rectanglelabels": [one.name]}


def label_studio(pictures: Sequence[Picture], folder: Path, *, address: str = "/data/upload/1/ab12cd34-{name}") -> Path:
    """Write Label Studio's JSON beside a folder of pictures."""
    write_pictures(pictures, folder / "images")
    tasks = []
    for number, picture in enumerate(pictures):
        size = {"original_width": picture.width, "original_height": picture.height, "image_rotation": 0}
        result = [
            {
                **size,
                "type": "rectanglelabels",
                "from_name": "label",
                "to_name": "image",
                "value": _percents(one, picture),
            }
            for one in picture.objects
        ]
        annotation = {"id": number, "result": result, "was_cancelled": False, "ground_truth": False}
        tasks.append(
            {"id": number, "annotations": [annotation], "data": {"image": address.format(name=quote(picture.name))}}
        )
    write(folder / "project-1.json", json.dumps(tasks))
    return folder


def label_studio_min(pictures: Sequence[Picture], folder: Path) -> Path:
    """Write Label Studio's JSON-MIN beside a folder of pictures."""
    write_pictures(pictures, folder / "images")
    tasks = []
    for number, picture in enumerate(pictures):
        size = {"original_width": picture.width, "original_height": picture.height}
        label = [{**_percents(one, picture), **size} for one in picture.objects]
        tasks.append({"id": number, "image": f"/data/upload/1/ab12cd34-{quote(picture.name)}", "label": label})
    write(folder / "project-1-min.json", json.dumps(tasks))
    return folder


def cvat(pictures: Sequence[Picture], folder: Path, *, images: str = "images", name: str = "{name}") -> Path:
    """Write “CVAT for images 1.1”."""
    write_pictures(pictures, folder / images)
    rows = []
    for number, picture in enumerate(pictures):
        boxes = "".join(
            f'<box label="{one.name}" occluded="0" xtl="{one.box[0]:.2f}" ytl="{one.box[1]:.2f}" '
            f'xbr="{one.box[2]:.2f}" ybr="{one.box[3]:.2f}" z_order="0"></box>'
            for one in picture.objects
        )
        own = quoteattr(name.format(name=picture.name))
        rows.append(
            f'<image id="{number}" name={own} width="{picture.width}" height="{picture.height}">{boxes}</image>\n'
        )
    labels = "".join(f"<label><name>{label}</name></label>" for label in CLASSES)
    head = f"<version>1.1</version><meta><task><labels>{labels}</labels></task></meta>\n"
    write(folder / "annotations.xml", f'<?xml version="1.0"?>\n<annotations>\n{head}{"".join(rows)}</annotations>\n')
    return folder


def cvat_video(pictures: Sequence[Picture], folder: Path) -> Path:
    """Write “CVAT for video 1.1”, each object a track of one frame."""
    write_pictures(pictures, folder / "images")
    rows = [
        f'<track id="{frame}" label="{one.name}"><box frame="{frame}" outside="0" xtl="{one.box[0]}" ytl="{one.box[1]}" '
        f'xbr="{one.box[2]}" ybr="{one.box[3]}"></box></track>\n'
        for frame, picture in enumerate(pictures)
        for one in picture.objects
    ]
    write(folder / "annotations.xml", f"<annotations><version>1.1</version>{''.join(rows)}</annotations>")
    return folder


def label_map(names: Sequence[str] = CLASSES, *, first: int = 1, key: str = "name") -> str:
    """Return the text of a label map."""
    return "".join(
        f"item {{\n  id: {number}\n  {key}: '{name}'\n}}\n" for number, name in enumerate(names, start=first)
    )


def example(picture: Picture, *, first: int = 1, text: Callable[[str], str] | None = str) -> bytes:
    """Return a record of one picture.

    Args:
        first: The number of the first class.
        text: Spells the classes' names; None to leave them out.
    """
    record = Example()
    feature = record.features.feature
    feature["image/encoded"].bytes_list.value.append(picture.data)
    feature["image/format"].bytes_list.value.append(b"png" if picture.data[:4] == b"\x89PNG" else b"jpeg")
    feature["image/filename"].bytes_list.value.append(picture.name.encode())
    feature["image/width"].int64_list.value.append(picture.width)
    feature["image/height"].int64_list.value.append(picture.height)
    for place, (side, length) in enumerate(
        zip(("xmin", "ymin", "xmax", "ymax"), (picture.width, picture.height) * 2, strict=True)
    ):
        values = [one.box[place] / length for one in picture.objects]
        feature[f"image/object/bbox/{side}"].float_list.value.extend(values)
    feature["image/object/class/label"].int64_list.value.extend(first + number_of(one) for one in picture.objects)
    if text is not None:
        names = [text(one.name).encode() for one in picture.objects]
        feature["image/object/class/text"].bytes_list.value.extend(names)
    return bytes(record.SerializeToString(deterministic=True))


def records(
    files: Splits, folder: Path, *, map_name: str = "label_map.pbtxt", map_text: str | None = None, **options: Any
) -> Path:
    """Write records, a file for each name, and a label map beside them.

    Args:
        map_name: Of the label map; empty for none.
    """
    for name, pictures in files.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        write_records(folder / name, [example(picture, **options) for picture in pictures])
    if map_name:
        write(folder / map_name, label_map() if map_text is None else map_text)
    return folder


def vott(pictures: Sequence[Picture], folder: Path) -> Path:
    """Write VoTT's export: a file of records for each picture, and `tf_label_map.pbtxt`."""
    return records(
        {f"{picture.stem}.tfrecord": [picture] for picture in pictures}, folder, map_name="tf_label_map.pbtxt"
    )
