"""`boxwright convert`."""

from __future__ import annotations

import glob
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from boxwright.base.errors import DataError, OutputError, shortened
from boxwright.base.outputs import check_output, is_output_address
from boxwright.base.paths import refuse_source
from boxwright.base.read_settings import LABELS_ARE, ReadSettings, parse_label_convention
from boxwright.base.remote import folder_of, is_remote
from boxwright.base.settings import setting
from boxwright.base.text import counted, without_secrets
from boxwright.cli.console import console, count_progress, suggest
from boxwright.cli.inspect import print_account
from boxwright.cli.options import require_data
from boxwright.data.tool_files import Tool

if TYPE_CHECKING:
    from boxwright.data.dataset import Dataset


@dataclass(frozen=True, kw_only=True)
class Output:
    """How labels are read, and data written; the command has an option for each."""

    num_shards: int = setting(1, "For TFRecord, WebDataset and Parquet: number of files.", least=1)
    shard_size: int = setting(0, "Instead of --num_shards: images in each of these files, at most.", least=0)
    max_side: int = setting(
        0, "Make pictures whose longer side has more pixels smaller, with their boxes and masks; 0: none.", least=0
    )
    to: Tool | None = setting(
        None,
        "Write boxes for an annotation tool instead, with the scores and reasons of COCO files that have them (predict "
        "--coco, a report's label_errors.json): cvat (*.xml), label_studio (*.json) or fiftyone (labels.json). Images stay "
        "where they are.",
    )
    labels_are: str = setting("", LABELS_ARE)
    image_prefix: str | None = setting(
        None, "For label_studio: what is before an image's name in its address; default: /data/local-files/?d="
    )


Source = Annotated[
    str,
    typer.Argument(
        help="A VOC folder, a COCO .json, CVAT's .xml, Label Studio's or FiftyOne's .json, YOLO's data.yaml, Open Images' "
        ".csv of boxes, WIDER FACE's or FDDB's .txt; TFRecords, WebDataset's .tar or Parquet: a file, a folder, a quoted "
        "glob, or name@10; of the last two also an address."
    ),
]
Target = Annotated[
    str,
    typer.Argument(
        help="Output: *.json for COCO, *.record or *.tfrecord for TFRecord, *.tar for WebDataset, *.parquet, data.yaml "
        "for YOLO, else a VOC folder. The shards (records, .tar, .parquet) also at an s3:// or gs:// address."
    ),
]
LabelMap = Annotated[
    Path | None,
    typer.Option(
        "--label_map",
        help="Classes and ids (.pbtxt); default: label_map.pbtxt beside the data, or the names in TFRecords.",
    ),
]
ImageSet = Annotated[
    str,
    typer.Option(
        "--image_set",
        help="For VOC: a list in ImageSets/Main, such as trainval; for YOLO: val or test. Also the split's name in a "
        "data.yaml that is written.",
    ),
]
ImageFolder = Annotated[
    Path | None,
    typer.Option("--image_folder", help="For COCO, Open Images, WIDER FACE and FDDB: where the images are."),
]
Masks = Annotated[bool, typer.Option("--masks", help="Convert masks too.")]


def convert_command(
    output: Output,
    reading: ReadSettings,
    source: Source,
    target: Target,
    label_map: LabelMap = None,
    image_set: ImageSet = "",
    image_folder: ImageFolder = None,
    *,
    masks: Masks = False,
) -> None:
    """Convert data to VOC, COCO, YOLO, TFRecord, WebDataset or Parquet: images byte for byte, boxes exactly.

    Photographs of 12 megapixels slow down training: --max_side 1280 makes them smaller.
    """
    path = Path(source)
    if path.suffix in (".pt", ".index", ".safetensors") or any(path.glob("ckpt-*.pt")):
        raise DataError(f"{path}: weights, not data; use boxwright export")
    if output.image_prefix is not None and output.to is not Tool.LABEL_STUDIO:
        raise DataError("--image_prefix: an image's address in Label Studio; add --to label_studio")
    check_output(target, "target")
    require_data(source)
    _check_target(source, target, output)
    from boxwright.data.open_dataset import open_dataset

    dataset = open_dataset(
        source,
        label_map=label_map,
        image_set=image_set,
        image_folder=image_folder,
        load_masks=masks,
        **asdict(reading),
        labels_are=parse_label_convention(output.labels_are),
    )
    print_account(dataset)
    if output.max_side:
        if output.to is not None:
            raise DataError("--max_side: an annotation tool's file names pictures that stay as they are; convert first")
        from boxwright.data.smaller_pictures import SmallerPictures

        dataset = SmallerPictures(dataset, output.max_side)
    if output.to is not None:
        _write_for_tool(dataset, Path(target), output.to, output.image_prefix)
        return
    if _is_sharded(target):
        _write_shards(dataset, target, output, masks=masks)
    else:
        _write(dataset, Path(target), image_set)
    console.print(
        f"{counted(len(dataset), 'image')}, {counted(len(dataset.categories), 'class', 'classes')}: "
        f"{without_secrets(target)}"
    )
    if not (is_output_address(target) and _is_record(target)):
        suggest("inspect", target if output.num_shards == 1 and not output.shard_size else _folder(target))


def _is_record(target: str) -> bool:
    # The suffix may be a shard's number, as in train.record-00000-of-00010.
    return "record" in Path(target).suffix or ".record" in Path(target).name


def _is_sharded(target: str) -> bool:
    """Return whether a target is of a format whose files hold many samples."""
    return _is_record(target) or target.lower().endswith((".tar", ".parquet"))


def _folder(target: str) -> str:
    return folder_of(target) if is_output_address(target) else str(Path(target).parent)


def _check_target(source: str, target: str, output: Output) -> None:
    """Raise an error for options that do not go together, or if what is read would be written over."""
    if output.shard_size and output.num_shards > 1:
        raise DataError("--shard_size: the number of files follows from it; leave out --num_shards")
    if (output.shard_size or output.num_shards > 1) and not _is_sharded(target):
        raise DataError("--num_shards, --shard_size: for *.record, *.tfrecord, *.tar and *.parquet alone")
    if not is_output_address(target):
        _refuse_own_sources(source, Path(target))
    elif not _is_sharded(target) or output.to is not None:
        shown = shortened(without_secrets(target), 400)
        raise DataError(f"{shown}: at an address, convert writes *.tar, *.parquet, *.record and *.tfrecord alone")
    elif is_remote(source) and folder_of(target) in (source.rstrip("/"), folder_of(source)):
        raise OutputError(f"{shortened(without_secrets(target), 400)}: the source is in this folder; write to another")


def _refuse_own_sources(source: str, target: Path) -> None:
    """Raise an OutputError if images, labels or shards would be written over those that are read."""
    if target.suffix in (".yaml", ".yml"):  # images and labels are written beside it
        path = Path(source)
        refuse_source(target.parent, [path.parent if path.suffix == target.suffix else path])
    elif _is_sharded(str(target)) and not is_remote(source):
        from boxwright.data.shard_files import expand_paths

        sources = list(Path(source).iterdir()) if Path(source).is_dir() else expand_paths([source])
        for shard in (target, *target.parent.glob(f"{glob.escape(target.stem)}*-*-of-*")):
            refuse_source(shard, [source, *sources])
    else:
        refuse_source(target, [source])


def _write_for_tool(dataset: Dataset, target: Path, tool: Tool, prefix: str | None) -> None:
    from boxwright.data.tool_files import write_for_tool

    progress = count_progress(f"convert {counted(len(dataset), 'image')}")
    write_for_tool(dataset, target, tool, prefix=prefix, progress=progress)
    console.print(f"{counted(len(dataset), 'image')}, {counted(len(dataset.categories), 'class', 'classes')}: {target}")


def _write_shards(dataset: Dataset, target: str, output: Output, *, masks: bool) -> None:
    """Write data in files of many samples each, of the format of the target's name."""
    from boxwright.data.convert import write_tfrecords
    from boxwright.data.write_rows import write_parquet, write_web_dataset

    progress = count_progress(f"convert {counted(len(dataset), 'image')}")
    count = max(-(-len(dataset) // output.shard_size), 1) if output.shard_size else output.num_shards
    if _is_record(target):
        write_tfrecords(dataset, target, num_shards=count, progress=progress)
    elif target.lower().endswith(".tar"):
        write_web_dataset(dataset, target, num_shards=count, progress=progress)
    else:
        write_parquet(dataset, target, num_shards=count, masks=masks, progress=progress)


def _write(dataset: Dataset, target: Path, image_set: str) -> None:
    """Write data in the format of the target's name."""
    from boxwright.data.convert import write_coco, write_voc, write_yolo

    progress = count_progress(f"convert {counted(len(dataset), 'image')}")
    if target.suffix == ".json":
        write_coco(dataset, target, progress=progress)
    elif target.suffix in (".yaml", ".yml"):
        # Roboflow's name of the split.
        split = "val" if image_set == "valid" else image_set
        write_yolo(dataset, target, split if split in ("train", "val", "test") else "train", progress=progress)
    elif target.suffix in (".txt", ".csv", ".xml", ".zip", ".pbtxt", ".gz", ".tgz"):
        raise DataError(
            f"{target}: unknown format; expected *.json, *.record, *.tfrecord, *.tar, *.parquet, data.yaml, or a VOC folder"
        )
    else:
        write_voc(dataset, target, progress=progress)
