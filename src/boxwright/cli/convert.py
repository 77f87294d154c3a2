"""`boxwright convert`."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Annotated

import typer

from boxwright.cli.console import console, count_progress
from boxwright.errors import CheckpointError

__all__ = ["convert_command"]


def convert_command(  # noqa: PLR0913  # the flags of the command
    source: Annotated[
        str,
        typer.Argument(
            help="Data: a VOC folder, a COCO .json, or TFRecords: a file, a quoted glob, or name@10. "
            "Or weights: a run's folder or checkpoint, a TF2 checkpoint or a SavedModel."
        ),
    ],
    target: Annotated[
        Path,
        typer.Argument(
            help="What to write. For data: *.json for COCO, *.record or *.tfrecord for TFRecord, else a VOC folder. "
            "For weights: *.safetensors, else the prefix of a TF2 checkpoint, such as out/ckpt-1."
        ),
    ],
    label_map: Annotated[
        Path | None,
        typer.Option(
            "--label-map",
            help="Classes and their ids (.pbtxt); TFRecords need it, unless label_map.pbtxt lies beside them.",
        ),
    ] = None,
    image_set: Annotated[
        str, typer.Option("--image-set", help="For VOC: a list in ImageSets/Main, such as trainval.")
    ] = "",
    image_folder: Annotated[Path | None, typer.Option("--image-folder", help="For COCO: where the images are.")] = None,
    num_shards: Annotated[int, typer.Option("--num-shards", min=1, help="For TFRecord: how many files.")] = 1,
    masks: Annotated[bool, typer.Option("--masks", help="Convert masks too.")] = False,
    allow_paths_outside: Annotated[
        bool, typer.Option("--allow_paths_outside", help="Let annotations name files outside their folder.")
    ] = False,
    pipeline_config_path: Annotated[
        Path | None,
        typer.Option("--pipeline_config_path", "--config", help="For weights of TF2: the model's configuration."),
    ] = None,
) -> None:
    """Convert data among Pascal VOC, COCO and TFRecord, or weights to a TF2 checkpoint or safetensors.

    Images are copied byte for byte, boxes and weights exactly.
    """
    from boxwright.checkpoints.sources import is_tensorflow

    path = Path(source)
    named_so = path.suffix in (".pt", ".index") or re.fullmatch(r"ckpt-\d+", path.name)
    if named_so or is_tensorflow(path) or any(path.glob("ckpt-*.pt")):
        _convert_weights(Path(source), target, pipeline_config_path)
        return
    from boxwright.data.convert import open_dataset, write_coco, write_tfrecords, write_voc

    dataset = open_dataset(
        source,
        label_map=label_map,
        image_set=image_set,
        image_folder=image_folder,
        load_masks=masks,
        allow_paths_outside=allow_paths_outside,
    )
    progress = count_progress(f"convert {len(dataset)} images")
    if target.suffix == ".json":
        write_coco(dataset, target, progress=progress)
    elif "record" in target.suffix or ".record" in target.name:
        write_tfrecords(dataset, target, num_shards=num_shards, progress=progress)
    else:
        write_voc(dataset, target, progress=progress)
    console.print(f"{len(dataset)} images, {len(dataset.categories)} classes: {target}", markup=False)


def _convert_weights(source: Path, target: Path, pipeline_config_path: Path | None) -> None:
    from boxwright.checkpoints.export_weights import write_description, write_safetensors, write_tensorflow_checkpoint
    from boxwright.config.load import load_config
    from boxwright.evaluation.evaluate import restore_detector

    config = load_config(pipeline_config_path) if pipeline_config_path else None
    detector, config, step = restore_detector(source, config=config)
    if target.is_dir():
        raise CheckpointError(f"{target} is a folder; name a checkpoint in it, such as {target}/ckpt-{step}")
    if target.suffix == ".safetensors":
        write_safetensors(detector, target)
    else:
        write_tensorflow_checkpoint(detector, target, step=step)
        write_description(target.parent, config, detector.categories)
    console.print(f"{len(list(detector.network.parameters()))} parameters at step {step}: {target}", markup=False)
