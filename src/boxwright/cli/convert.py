"""`boxwright convert`."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from boxwright.base.errors import DataError
from boxwright.cli.console import console, count_progress, suggest
from boxwright.cli.paths import require_data

if TYPE_CHECKING:
    from boxwright.data.dataset import Dataset


def convert_command(
    source: Annotated[
        str,
        typer.Argument(
            help="A VOC folder, a COCO .json, YOLO's data.yaml, Open Images' .csv of boxes, WIDER FACE's or FDDB's .txt, or "
            "TFRecords: a file, a quoted glob, or name@10."
        ),
    ],
    target: Annotated[
        Path,
        typer.Argument(
            help="Output: *.json for COCO, *.record or *.tfrecord for TFRecord, data.yaml for YOLO, else a VOC folder."
        ),
    ],
    label_map: Annotated[
        Path | None,
        typer.Option(
            "--label_map",
            help="Classes and ids (.pbtxt); default: label_map.pbtxt beside the data, or the names in TFRecords.",
        ),
    ] = None,
    image_set: Annotated[
        str,
        typer.Option(
            "--image_set",
            help="For VOC: a list in ImageSets/Main, such as trainval; for YOLO: val or test. Also the split's name in a "
            "data.yaml that is written.",
        ),
    ] = "",
    image_folder: Annotated[
        Path | None,
        typer.Option("--image_folder", help="For COCO, Open Images, WIDER FACE and FDDB: where the images are."),
    ] = None,
    num_shards: Annotated[int, typer.Option("--num_shards", min=1, help="For TFRecord: number of files.")] = 1,
    *,
    masks: Annotated[bool, typer.Option("--masks", help="Convert masks too.")] = False,
    allow_paths_outside: Annotated[
        bool, typer.Option("--allow_paths_outside", help="Let annotations name files outside their folder.")
    ] = False,
) -> None:
    """Convert data to Pascal VOC, COCO, YOLO or TFRecord: images are copied byte for byte, boxes exactly."""
    path = Path(source)
    if path.suffix in (".pt", ".index", ".safetensors") or any(path.glob("ckpt-*.pt")):
        raise DataError(f"{path}: weights, not data; use boxwright export")
    require_data(source)
    from boxwright.data.formats import open_dataset

    dataset = open_dataset(
        source,
        label_map=label_map,
        image_set=image_set,
        image_folder=image_folder,
        load_masks=masks,
        allow_paths_outside=allow_paths_outside,
    )
    _write(dataset, target, image_set, num_shards)
    console.print(f"{len(dataset)} images, {len(dataset.categories)} classes: {target}", markup=False)
    suggest("inspect", target)


def _write(dataset: Dataset, target: Path, image_set: str, num_shards: int) -> None:
    """Write data in the format of the target's name."""
    from boxwright.data.convert import write_coco, write_tfrecords, write_voc, write_yolo

    progress = count_progress(f"convert {len(dataset)} images")
    if target.suffix == ".json":
        write_coco(dataset, target, progress=progress)
    # The suffix may be a shard's number, as in train.record-00000-of-00010.
    elif "record" in target.suffix or ".record" in target.name:
        write_tfrecords(dataset, target, num_shards=num_shards, progress=progress)
    elif target.suffix in (".yaml", ".yml"):
        # Roboflow's name of the split.
        split = "val" if image_set == "valid" else image_set
        write_yolo(dataset, target, split if split in ("train", "val", "test") else "train", progress=progress)
    elif target.suffix in (".txt", ".csv", ".xml", ".zip", ".pbtxt"):
        raise DataError(f"{target}: unknown format; expected *.json, *.record, *.tfrecord, data.yaml, or a VOC folder")
    else:
        write_voc(dataset, target, progress=progress)
