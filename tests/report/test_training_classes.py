"""The classes' frequencies in the training data, which the evaluation data need not have."""

from __future__ import annotations

from pathlib import Path

import numpy as np

from boxwright.config.load import parse_message
from boxwright.data.coco import CocoDataset
from boxwright.data.convert import write_tfrecords
from boxwright.pipeline import messages as m
from boxwright.report.factors import compute_factors
from boxwright.report.pictures import without_photos
from boxwright.report.write import training_objects
from boxwright.types import Categories, Category
from tests.report import made

CLASSES = Categories((Category(0, 1, "cell"), Category(1, 2, "rod"), Category(2, 3, "disk")))


def config(reader: str) -> m.TrainEvalPipelineConfig:
    return parse_message(f"train_input_reader {{ {reader} }}", m.TrainEvalPipelineConfig)


def training(folder: Path) -> Path:
    """Twenty cells and one rod; a crowd of disks does not count."""
    box = (5, 5, 20, 20)
    objects = [*[(n % 2, 0, box) for n in range(20)], (0, 1, box), (1, 2, box)]
    content = made.truth([(64, 48)] * 2, objects, ["cell", "rod", "disk"], crowds=[21])
    path, _ = made.write(folder, content, [])
    made.draw(folder, content)
    return path


def test_objects_are_counted_by_name(tmp_path: Path) -> None:
    path = training(tmp_path)
    coco = f'coco_input_reader {{ annotations: "{path}" }}'
    assert training_objects(config(coco), CLASSES, 2).tolist() == [20, 1, 0]
    record = tmp_path / "r" / "t.record"
    write_tfrecords(CocoDataset(path), record)
    of_records = (
        f'label_map_path: "{record.parent}/label_map.pbtxt" tf_record_input_reader {{ input_path: "{record}" }}'
    )
    assert training_objects(config(of_records), CLASSES, 2).tolist() == [20, 1, 0]


def test_data_that_are_gone_or_of_other_classes_say_nothing(tmp_path: Path) -> None:
    gone = f'coco_input_reader {{ annotations: "{tmp_path}/none.json" }}'
    assert training_objects(config(gone), CLASSES, 2) is None
    assert training_objects(m.TrainEvalPipelineConfig(), CLASSES, 2) is None
    there = config(f'coco_input_reader {{ annotations: "{training(tmp_path)}" }}')
    assert training_objects(there, Categories((Category(0, 1, "object"),)), 2) is None


def test_what_is_rare_in_training_is_rare(tmp_path: Path) -> None:
    """As many rods as cells are evaluated, but a 20th of the training data are rods."""
    content = made.truth([(64, 48)], [(0, 0, (5, 5, 20, 20)), (0, 1, (30, 5, 20, 20))], ["cell", "rod", "disk"])
    tables = made.tables(tmp_path, content, [])
    known = {
        factor.name: factor.objects.tolist()
        for factor in compute_factors(tables, without_photos(1), None, np.array([20, 1, 0]))
    }
    assert known["class frequency in training"] == [2, 0]
    assert "class frequency" not in known
