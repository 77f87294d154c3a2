"""The demos' data as TFRecords: shapes, also with masks, or figures, with a label map and a configuration to train on them."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from importlib import resources
from pathlib import Path

from boxwright.base.drawing import contact_sheet
from boxwright.base.files import write_whole
from boxwright.config.load import dump_message
from boxwright.data.convert import write_tfrecords
from boxwright.data.dataset import Dataset
from boxwright.data.image_io import encode_png
from boxwright.data.shapes import FiguresDataset, ShapesDataset
from boxwright.evaluation.pictures import draw_sample
from boxwright.pipeline.load import load_config

_SIZE = (128, 128)  # the network's input


@dataclass(frozen=True)
class Demo:
    """A demo: what its images show, and the configuration that comes with Boxwright.

    Attributes:
        dataset: Returns a number of images of a size, by seed.
        optimizer: The optimizer's field in the configuration.
        overrides: What the configuration needs besides the paths of data, `{data}` being their folder.
    """

    dataset: Callable[..., Dataset]
    config: str
    optimizer: str = "adam_optimizer"
    overrides: tuple[str, ...] = ()


SHAPES = Demo(ShapesDataset, "shapes.config")
MASKS = Demo(ShapesDataset, "masks.config", "adamw_optimizer")
FIGURES = Demo(
    FiguresDataset,
    "figures.config",
    overrides=("model.center_net.keypoint_label_map_path={data}/label_map.pbtxt",),
)


def write_demo_data(
    out: Path, demo: Demo, train_images: int, val_images: int, progress: Callable[[Iterable[int]], Iterable[int]]
) -> Path:
    """Write a demo's TFRecords with label map, contact sheet and configuration; return the configuration.

    Args:
        val_images: Images for evaluation; from another seed, so none appears in training.
    """
    data = out / "data"
    training, held_out = (
        demo.dataset(count, seed=seed, size=_SIZE) for seed, count in enumerate((train_images, val_images))
    )
    write_tfrecords(training, data / "train.record", num_shards=2, progress=progress)
    write_tfrecords(held_out, data / "val.record", progress=progress)
    samples = [training[index] for index in range(min(20, train_images))]
    pictures = [draw_sample(sample, training.categories) for sample in samples]
    write_whole(data / "contact-sheet.png", encode_png(contact_sheet(pictures, [s.id for s in samples])))
    asset = resources.files("boxwright") / "assets" / demo.config
    with resources.as_file(asset) as path:
        config = load_config(
            path,
            [
                f"train_input_reader.label_map_path={data / 'label_map.pbtxt'}",
                f"train_input_reader.tf_record_input_reader.input_path={data / 'train.record-?????-of-00002'}",
                f"eval_input_reader.label_map_path={data / 'label_map.pbtxt'}",
                f"eval_input_reader.tf_record_input_reader.input_path={data / 'val.record'}",
                *(override.format(data=data) for override in demo.overrides),
            ],
        )
    target = out / "pipeline.config"
    write_whole(target, dump_message(config))
    return target
