"""Archives of the model zoo as they are downloaded: their configurations name no data, only PATH_TO_BE_CONFIGURED."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

import boxwright as bw
from boxwright.api.export import made_pictures, pictures_of_data
from boxwright.base.errors import ConfigError, ExportError
from boxwright.config.load import parse_message
from boxwright.data.convert import write_tfrecords
from boxwright.data.shapes import ShapesDataset
from boxwright.evaluation.data import open_evaluation_data
from boxwright.evaluation.settings import EvaluationSettings
from boxwright.pipeline.data_paths import placeholder_of_data
from boxwright.pipeline.load import with_overrides
from boxwright.types.categories import coco_classes, coco_classes_by_id
from boxwright.weights.restore import stored_config
from tests.weights.tensorflow.test_first_formats import CONFIG, WEIGHTS, archive, write

_RECORDS = 'tf_record_input_reader { input_path: "PATH_TO_BE_CONFIGURED/v-?" }'
READER = f'{{ label_map_path: "PATH_TO_BE_CONFIGURED/m.txt" {_RECORDS} }}'
READERS = f"train_input_reader {READER} eval_config {{ }} eval_input_reader {READER}"
FIVE = CONFIG.replace("num_classes: 90", "num_classes: 5")
SETTINGS = EvaluationSettings()


@pytest.fixture(scope="module")
def zoo(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("zoo")
    files = {f"ssd/{file.name}": file.read_bytes() for file in write(WEIGHTS, "bundle", folder / "in").parent.iterdir()}
    path = folder / "ssd.tar.gz"
    path.write_bytes(archive({**files, "ssd/pipeline.config": f"{CONFIG} {READERS}".encode()}))
    return path


def coco(folder: Path) -> Path:
    """Write COCO's data with its own sparse ids: a person, and a toothbrush, which is class 90 of 80."""
    folder.mkdir(exist_ok=True)
    Image.new("RGB", (64, 48), (90, 120, 30)).save(folder / "a.jpg")
    rows = [{"id": item.id, "name": item.name} for item in coco_classes()]
    boxes = [{"id": n, "image_id": 1, "category_id": n, "bbox": [n / 9, 2, 20, 20], "area": 400} for n in (1, 90)]
    images = [{"id": 1, "file_name": "a.jpg", "width": 64, "height": 48}]
    (folder / "val.json").write_text(json.dumps({"images": images, "annotations": boxes, "categories": rows}))
    return folder


def test_cocos_classes_are_known_by_the_number_of_its_ids(zoo: Path) -> None:
    model = bw.load(zoo, runtime="torch")
    assert model.categories is not None
    assert [(model.categories.by_label(n - 1).name) for n in (1, 13, 90)] == ["person", "stop sign", "toothbrush"]
    assert model.categories.to_list() == coco_classes_by_id().to_list()


def test_other_detectors_have_numbers(tmp_path: Path) -> None:
    for name, text, known in (
        ("own", f"{CONFIG} {READERS.replace('PATH_TO_BE_CONFIGURED', '/home/me')}", False),
        ("bare", CONFIG, False),
        ("zoo", f"{CONFIG} {READERS}", True),
    ):
        path = write(WEIGHTS, "bundle", tmp_path / name)
        (tmp_path / name / "pipeline.config").write_text(text)
        assert (bw.restore_detector(path)[0].categories is not None) is known, name


def test_pictures_for_an_export_are_made(zoo: Path) -> None:
    detector, config, _ = bw.restore_detector(zoo)
    pictures, source = pictures_of_data(config, detector)
    assert len({picture.shape for picture in pictures}) == 3
    assert all(picture.dtype == np.uint8 for picture in pictures)
    assert source == "made shapes, as PATH_TO_BE_CONFIGURED/v-? stands for your data; --images names others"
    with pytest.raises(ExportError, match="no images of 5 channels are made"):
        made_pictures("PATH_TO_BE_CONFIGURED", 5)


def test_evaluation_needs_data_and_no_label_map(zoo: Path, tmp_path: Path) -> None:
    config, trained = stored_config(zoo), coco_classes_by_id()
    with pytest.raises(ConfigError, match=r"\[0\]: PATH_TO_BE_CONFIGURED/v-\? stands for your data; .*--set"):
        open_evaluation_data(config, SETTINGS, trained, 90)
    folder = coco(tmp_path / "coco")
    given = f'eval_input_reader {{ coco_input_reader {{ annotations: "{folder}/val.json" image_folder: "{folder}" }} }}'
    data = open_evaluation_data(with_overrides(config, [given]), SETTINGS, trained, 90).dataset
    # Numbered in the file's order, the toothbrush would be class 80 of the detector's 90.
    assert data[0].labels.tolist() == [0, 89]


def test_records_of_a_detector_without_names_are_numbers(tmp_path: Path) -> None:
    write_tfrecords(ShapesDataset(3, seed=1), tmp_path / "v.record")
    config = with_overrides(
        parse_message(f"{FIVE} {READERS}", bw.Pipeline),
        [f'eval_input_reader.tf_record_input_reader.input_path=["{tmp_path}/v.record"]'],
    )
    data = open_evaluation_data(config, SETTINGS, None, 5)
    assert [item.name for item in data.dataset.categories] == [f"class {n}" for n in range(1, 6)]
    wanted = [ShapesDataset(3, seed=1)[n].labels.tolist() for n in range(3)]
    assert sorted(data.dataset[n].labels.tolist() for n in range(3)) == sorted(wanted)


def test_more_classes_than_the_detector_has_are_refused(tmp_path: Path) -> None:
    folder = coco(tmp_path / "coco")
    reader = (
        f'eval_input_reader {{ coco_input_reader {{ annotations: "{folder}/val.json" image_folder: "{folder}" }} }}'
    )
    config = parse_message(f"{FIVE} eval_config {{ }} {reader}", bw.Pipeline)
    with pytest.raises(ConfigError, match=r"class 'toothbrush', number 80; the detector has 5"):
        open_evaluation_data(config, SETTINGS, None, 5)


def test_an_override_takes_the_place_of_placeholders(tmp_path: Path) -> None:
    config = parse_message(READERS, bw.Pipeline)
    assert placeholder_of_data(config.eval_input_reader[0]) == "PATH_TO_BE_CONFIGURED/v-?"
    own = 'eval_input_reader { tf_record_input_reader { input_path: "a.record" } }'
    assert len(with_overrides(config, [own]).eval_input_reader) == 1
    assert len(with_overrides(config, ["eval_config.num_visualizations=3"]).eval_input_reader) == 1
    (tmp_path / "pipeline.config").write_text(READERS)
    assert not placeholder_of_data(bw.load_config(tmp_path / "pipeline.config", [own]).eval_input_reader[0])
