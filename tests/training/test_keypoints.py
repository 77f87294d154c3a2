"""Keypoints from records to the loss."""

from __future__ import annotations

import contextlib
import io
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from pycocotools.coco import COCO
from pycocotools.cocoeval import COCOeval

import boxwright as bw
from boxwright.data.batch import collate, to_input
from boxwright.data.convert import encode_example
from boxwright.data.tfrecord import write_records
from boxwright.evaluation.write import to_coco_rows
from boxwright.nn.criteria.criterion import LossTerm
from boxwright.pipeline.input_reader import build_dataset
from boxwright.pipeline.training import build_training
from boxwright.types import Categories, Category, Sample
from tests.conftest import SMALL_MODEL, SMALL_TRAINING
from tests.evaluation.evaluate import evaluate_detector


@pytest.fixture
def config(tmp_path: Path) -> str:
    points = np.array([[[10, 12, 1], [30, 20, 0]], [[5, 6, 1], [7, 8, 1]]], np.float32)
    image = np.random.default_rng(0).integers(0, 255, (40, 50, 3), np.uint8)
    sample = Sample(image, np.array([[5, 5, 35, 30], [2, 2, 20, 20]]), np.array([0, 1]), keypoints=points)
    categories = Categories(tuple(Category(n, n + 1, f"c{n}") for n in range(4)))
    from PIL import Image

    png = io.BytesIO()
    Image.fromarray(image).save(png, "PNG")
    write_records(tmp_path / "k.record", [encode_example(sample, png.getvalue(), categories)] * 4)
    (tmp_path / "map.pbtxt").write_text("".join(f'item {{ id: {n + 1} name: "c{n}" }}\n' for n in range(4)))
    model = SMALL_MODEL.replace("faster_rcnn_box_coder { }", "keypoint_box_coder { num_keypoints: 2 }").replace(
        "depth: 32\n", "depth: 32 box_code_size: 8\n"
    )
    reader = f'label_map_path: "{tmp_path}/map.pbtxt" tf_record_input_reader {{ input_path: "{tmp_path}/k.record" }}'
    text = f"{model}{SMALL_TRAINING} train_input_reader {{ num_keypoints: 2 {reader} }}"
    (tmp_path / "pipeline.config").write_text(text)
    return str(tmp_path / "pipeline.config")


def test_keypoints_reach_the_targets(config: str) -> None:
    pipeline = bw.load_config(config)
    dataset = build_dataset(pipeline.train_input_reader, "train_input_reader")
    detector = bw.build_detector(pipeline)
    batch = collate([to_input(dataset[0], detector.preprocessor.resizer)] * 2)
    found = batch.targets.keypoints
    assert found is not None
    # The image of 40 × 50 becomes 64 × 64; the second point of the first object is hidden.
    assert found[0, 0, 0].tolist() == pytest.approx([10 * 64 / 50, 12 * 64 / 40], abs=1e-3)
    assert found[0, 0, 1].isnan().all()
    assert found[1, 1, 1].tolist() == pytest.approx([7 * 64 / 50, 8 * 64 / 40], abs=1e-3)
    inputs = detector.preprocessor.normalize(batch.images, batch.true_sizes)
    losses = detector.criterion(detector.predict(inputs), batch.targets)
    assert LossTerm.sum(losses).isfinite()
    found_points = detector.detect([np.zeros((20, 30, 3), np.uint8)])[0].keypoints
    assert found_points is not None
    assert found_points.shape[1:] == (2, 2)


@pytest.mark.slow
def test_it_trains(config: str, tmp_path: Path) -> None:
    bw.train(
        bw.load_config(config, ["train_config.num_steps=2"]),
        tmp_path / "m",
        bw.RunSettings(workers=0, preflight=False, evaluate=False),
    )
    assert (tmp_path / "m" / "ckpt-2.pt").is_file()


@pytest.mark.parametrize("count", [0, 3])
def test_reader_and_coder_must_agree(config: str, count: int) -> None:
    pipeline = bw.load_config(config, [f"train_input_reader.num_keypoints={count}"])
    with pytest.raises(bw.ConfigError, match=f"num_keypoints: {count}, but keypoint_box_coder has 2"):
        build_training(pipeline)


@pytest.mark.slow
def test_keypoint_metrics_of_a_run(config: str, tmp_path: Path) -> None:
    """The metrics of a run are pycocotools' of the results that it writes."""
    reader = Path(config).read_text().partition("train_input_reader")[2]
    changes = [
        "train_config.num_steps=1",
        f"eval_input_reader {reader}",
        """eval_config { parameterized_metric { coco_keypoint_metrics { class_label: "c1"
            keypoint_label_to_sigmas { key: "left" value: 2.0 } keypoint_label_to_sigmas { key: "right" value: 3.0 } } } }
        """,
    ]
    with pytest.raises(bw.ConfigError, match="lists no keypoints of 'c1'"):
        bw.train(bw.load_config(config, changes), tmp_path / "m", workers=0)
    labels = tmp_path / "map.pbtxt"
    named = 'keypoints { id: 0 label: "left" } keypoints { id: 1 label: "right" } name: "c1"'
    labels.write_text(labels.read_text().replace('name: "c1"', named))
    run = bw.train(bw.load_config(config, changes), tmp_path / "m", workers=0)
    names = [name for name in run.metrics if name.startswith("Keypoints_")]
    assert len(names) == 10
    assert all(name.endswith("ByCategory/c1") for name in names)
    assert "DetectionBoxes_Precision/mAP" in run.metrics
    every: list[Any] = []
    evaluate_detector(
        bw.load_config(config, changes),
        bw.restore_detector(tmp_path / "m")[0],
        keep=lambda *of_image: every.extend(to_coco_rows(*of_image)),
    )
    rows = [row for row in every if row["category_id"] == 2]
    assert rows
    truth = COCO()
    points = [[5, 6, 2], [7, 8, 2]]
    truth.dataset = {"images": [{"id": n} for n in range(4)], "categories": [{"id": 2}]}
    truth.dataset["annotations"] = [
        {"id": n + 1, "image_id": n, "category_id": 2, "bbox": [2, 2, 18, 18], "area": 324.0, "iscrowd": 0}
        | {"keypoints": [value for point in points for value in point], "num_keypoints": 2}
        for n in range(4)
    ]
    order = list(dict.fromkeys(row["image_id"] for row in every))
    with contextlib.redirect_stdout(io.StringIO()):
        truth.createIndex()
        found = truth.loadRes([{**row, "image_id": order.index(row["image_id"])} for row in rows])
        evaluator = COCOeval(truth, found, "keypoints")
        evaluator.params.kpt_oks_sigmas = np.array([2.0, 3.0])
        evaluator.evaluate()
        evaluator.accumulate()
        evaluator.summarize()
    # Results are rounded to thousandths of a pixel.
    assert [run.metrics[name] for name in names] == pytest.approx(evaluator.stats.tolist(), abs=1e-3)
    assert max(run.metrics[name] for name in names) > 0
