"""`boxwright demo`: the whole journey on made-up data."""

from __future__ import annotations

import time
from importlib import resources
from pathlib import Path
from typing import Annotated

import typer
from PIL import Image

from boxwright.cli.console import ap_line, console, count_progress, print_evaluation, progress_bar
from boxwright.cli.train import Narrator
from boxwright.config.load import dump_message, load_config
from boxwright.data.convert import write_tfrecords
from boxwright.data.shapes import ShapesDataset
from boxwright.drawing import contact_sheet, draw_boxes
from boxwright.evaluation.evaluate import restore_detector, run_evaluation
from boxwright.evaluation.evaluator import write_evaluation
from boxwright.training.train import RunSettings, train

__all__ = ["demo_command", "write_demo_data"]


def demo_command(
    out: Annotated[Path, typer.Option("--out", help="Folder for data, model and pictures; it is made.")] = Path("demo"),
    data_only: Annotated[
        bool, typer.Option("--data-only", help="Make the data and the configuration, and stop.")
    ] = False,
    num_train_steps: Annotated[int | None, typer.Option("--num_train_steps", help="Train for so many steps.")] = None,
    train_images: Annotated[int, typer.Option("--train-images", min=1, help="Images to make for training.")] = 4000,
    val_images: Annotated[int, typer.Option("--val-images", min=1, help="Images to make for evaluation.")] = 250,
) -> None:
    """Make pictures of shapes as TFRecords, train a detector on them, evaluate it, draw what it sees."""
    began = time.monotonic()
    config_path = write_demo_data(out, train_images, val_images)
    console.print(
        f"data: {out / 'data'} ({train_images} + {val_images} images), configuration: {config_path}", markup=False
    )
    if data_only:
        return
    model_dir = out / "model"
    steps = (
        []
        if num_train_steps is None
        else [
            f"train_config.num_steps={num_train_steps}",
            f"train_config.optimizer.adam_optimizer.learning_rate.cosine_decay_learning_rate.total_steps={max(num_train_steps, 101)}",
        ]
    )
    console.print(f"\n$ boxwright train --pipeline_config_path {config_path} --model_dir {model_dir}", markup=False)
    config = load_config(config_path, steps)
    with progress_bar() as progress:
        train(config, model_dir, RunSettings(checkpoint_every_n=10_000, evaluate=False), Narrator(progress))
    console.print(f"\n$ boxwright evaluate --model_dir {model_dir} --out {out / 'eval'}", markup=False)
    detector, _, _ = restore_detector(model_dir)
    evaluation = run_evaluation(config, detector, 0, lambda items, title: count_progress(title)(items))
    write_evaluation(evaluation, out / "eval")
    print_evaluation(evaluation)
    console.print(f"\npictures, truth beside detections: {out / 'eval' / 'pictures'}", markup=False)
    console.print(f"TensorBoard: tensorboard --logdir {model_dir}", markup=False)
    console.print(
        f"yours next: boxwright predict IMAGE --model_dir {model_dir} --out {out / 'predictions'}", markup=False
    )
    console.print(f"took {time.monotonic() - began:.0f} s")
    console.print(ap_line(evaluation.metrics))


def write_demo_data(out: Path, train_images: int, val_images: int) -> Path:
    """Write the shapes as TFRecords with their label map, a contact sheet, and a configuration.

    Args:
        out: The demo's folder.
        train_images: Images for training.
        val_images: Images for evaluation; of another seed, so none is seen in training.

    Returns:
        The configuration's path.
    """
    data = out / "data"
    training, held_out = ShapesDataset(train_images, seed=0), ShapesDataset(val_images, seed=1)
    write_tfrecords(training, data / "train.record", num_shards=2, progress=count_progress("make training images"))
    write_tfrecords(held_out, data / "val.record", progress=count_progress("make held-out images"))
    samples = [training[index] for index in range(min(20, train_images))]
    names = [item.name for item in training.categories]
    pictures = [draw_boxes(s.image, s.boxes, s.labels.tolist(), [names[label] for label in s.labels]) for s in samples]
    Image.fromarray(contact_sheet(pictures, [s.id for s in samples])).save(data / "contact-sheet.png")
    asset = resources.files("boxwright") / "assets" / "shapes.config"
    with resources.as_file(asset) as path:
        config = load_config(
            path,
            [
                f"train_input_reader.label_map_path={data / 'label_map.pbtxt'}",
                f"train_input_reader.tf_record_input_reader.input_path={data / 'train.record-?????-of-00002'}",
                f"eval_input_reader.label_map_path={data / 'label_map.pbtxt'}",
                f"eval_input_reader.tf_record_input_reader.input_path={data / 'val.record'}",
            ],
        )
    target = out / "pipeline.config"
    target.write_text(dump_message(config), encoding="utf-8")
    return target
