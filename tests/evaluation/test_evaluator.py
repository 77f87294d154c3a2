"""Several metrics at once, numbers that are none, and an evaluation that several processes share."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import boxwright as bw
from boxwright.config.load import parse_message
from boxwright.config.support import broken_rules
from boxwright.data.label_map import load_label_map
from boxwright.data.loader import samples_in_order
from boxwright.data.shapes import ShapesDataset
from boxwright.evaluation.build import build_evaluation
from boxwright.evaluation.data import EvaluationData
from boxwright.evaluation.evaluate import evaluate_by_workers, open_evaluation
from boxwright.evaluation.images import EvaluatedImage, evaluate_images
from boxwright.evaluation.settings import EvaluationSettings
from boxwright.evaluation.write import ImageResults, to_coco_rows, write_evaluation
from boxwright.pipeline import messages as m
from boxwright.types import Array, Detections, Sample
from tests.evaluation.evaluate import evaluate_detector


@pytest.mark.slow
def test_several_metrics_and_nan(small_config: Path, shapes_data: Path, tmp_path: Path) -> None:
    """A label map with a class that no image has: COCO says -1, PASCAL NaN, JSON null; the notes say why."""
    label_map = tmp_path / "more.pbtxt"
    label_map.write_text((shapes_data / "label_map.pbtxt").read_text() + "item { id: 5 name: 'unicorn' }")
    overrides = [
        "eval_config.metrics_set=['coco_detection_metrics', 'pascal_voc_detection_metrics', 'oid_V2_detection_metrics']",
        "eval_config.include_metrics_per_category=true",
        "model.ssd.num_classes=5",
        f"eval_input_reader.label_map_path={label_map}",
        f"train_input_reader.label_map_path={label_map}",
        "train_config.num_steps=1",
    ]
    config = bw.load_config(small_config, overrides)
    bw.train(config, tmp_path / "m", bw.RunSettings(workers=0, preflight=False))
    lines = (tmp_path / "m" / "metrics.jsonl").read_text()
    assert "NaN" not in lines
    assert '"PascalBoxes_PerformanceByCategory/AP@0.5IOU/unicorn": null' in lines
    with ImageResults(tmp_path / "out") as results:
        evaluation = evaluate_detector(config, bw.restore_detector(tmp_path / "m")[0], keep=results.add)
        write_evaluation(evaluation, results, tmp_path / "out")
    assert evaluation.metrics["DetectionBoxes_PerformanceByCategory/mAP/unicorn"] == -1
    assert any("NaN for classes without objects: unicorn" in note for note in evaluation.notes)
    written = json.loads((tmp_path / "out" / "metrics.json").read_text())
    assert written["OpenImagesV2_PerformanceByCategory/AP@0.5IOU/unicorn"] is None
    assert written["PascalBoxes_Precision/mAP@0.5IOU"] is not None


def test_the_next_batch_is_begun_before_the_images_of_one_are_taken() -> None:
    """As on a GPU; what it gives is the same."""
    reader = parse_message('tf_record_input_reader { input_path: "none" }', m.InputReader)
    plan = build_evaluation(parse_message("eval_config { batch_size: 2 }", m.TrainEvalPipelineConfig), reader)
    data = EvaluationData("", ShapesDataset(5, seed=0, size=(32, 32)), plan)
    begun = {first: threading.Event() for first in (0, 2, 4)}

    def detect(samples: list[Sample], seed: int) -> Iterator[tuple[Detections[Array], dict[str, float]]]:
        begun[seed].set()
        for sample in samples:
            scores = np.ones(len(sample.boxes), np.float32)
            yield Detections(sample.boxes, scores, sample.labels, (32, 32)), {"loss": float(seed)}

    def content(image: EvaluatedImage) -> tuple[Any, ...]:
        return image.index, image.sample.id, image.detections.boxes.tolist(), image.losses

    images = evaluate_images(detect, data, samples_in_order, ahead=1)
    first = next(images)
    assert begun[2].wait(60)
    together = [first, *images]
    assert [image.index for image in together] == [0, 1, 2, 3, 4]
    alone = evaluate_images(detect, data, samples_in_order)
    assert list(map(content, together)) == list(map(content, alone))


@pytest.mark.slow
def test_workers_change_nothing(small_config: Path, tmp_path: Path) -> None:
    config = bw.load_config(small_config)
    detector = bw.build_detector(config, load_label_map(config.eval_input_reader[0].label_map_path))
    rows: dict[int, list[Any]] = {0: [], 2: []}
    alone, with_two = (
        evaluate_detector(
            config,
            detector,
            EvaluationSettings(workers=workers),
            keep=lambda *of_image, kept=kept: kept.extend(to_coco_rows(*of_image)),  # type: ignore[misc]
        )
        for workers, kept in rows.items()
    )
    assert alone.metrics == with_two.metrics
    assert rows[0] == rows[2]
    assert list(alone.pictures) == list(with_two.pictures)


def test_a_bad_record_is_told_from_a_worker_too(small_config: Path, shapes_data: Path, tmp_path: Path) -> None:
    record = tmp_path / "bad.record"
    data = bytearray((shapes_data / "val.record").read_bytes())
    data[len(data) // 2] ^= 0x40
    record.write_bytes(data)
    config = bw.load_config(small_config, [f'eval_input_reader[0].tf_record_input_reader.input_path=["{record}"]'])
    detector = bw.build_detector(config, load_label_map(config.eval_input_reader[0].label_map_path))
    with pytest.raises(bw.DataError, match="bad.record"):
        evaluate_detector(config, detector, EvaluationSettings(workers=2))


def test_losses_leave_out_the_penalty_where_training_does(small_config: Path) -> None:
    text = ["train_config.add_regularization_loss=false"]
    found = {}
    for changes in ([], text):
        config = bw.load_config(small_config, changes)
        torch.manual_seed(0)
        detector = bw.build_detector(config, load_label_map(config.eval_input_reader[0].label_map_path))
        found[len(changes)] = evaluate_detector(config, detector).metrics
    assert "Loss/regularization_loss" not in found[1]
    difference = found[0]["Loss/total_loss"] - found[1]["Loss/total_loss"]
    assert difference == pytest.approx(found[0]["Loss/regularization_loss"], rel=1e-4)


def test_images_at_their_own_size(small_config: Path) -> None:
    """As with an identity_resizer in the model; the detector resizes again afterwards."""
    model = "model.ssd.image_resizer={ identity_resizer { } }"
    found = []
    for changes in (["eval_config.force_no_resize=true"], [model], []):
        config = bw.load_config(small_config, changes)
        torch.manual_seed(0)
        detector = bw.build_detector(config, load_label_map(config.eval_input_reader[0].label_map_path))
        resizer = detector.preprocessor.resizer
        found.append(evaluate_detector(config, detector).metrics)
        assert detector.preprocessor.resizer is resizer
    assert found[0] == found[1]
    assert found[0]["Loss/total_loss"] != found[2]["Loss/total_loss"]


def test_groundtruth_that_is_ignored(small_config: Path, tmp_path: Path) -> None:
    """Detections and pictures, without metrics and losses; a run chooses no best checkpoint."""
    config = bw.load_config(small_config, ["eval_config.ignore_groundtruth=true", "train_config.num_steps=1"])
    bw.train(config, tmp_path / "m", bw.RunSettings(workers=0, preflight=False, device="cpu"))
    assert not (tmp_path / "m" / "best.pt").exists()
    evaluation = evaluate_detector(config, bw.restore_detector(tmp_path / "m")[0])
    assert evaluation.metrics == {}
    assert len(evaluation.pictures) == 2


def test_own_size_is_of_ssd_alone() -> None:
    text = "model { srn { } } eval_config { force_no_resize: true }"
    config = parse_message(text, m.TrainEvalPipelineConfig)
    problems = [str(problem) for problem in broken_rules(config)]
    assert any("eval_config.force_no_resize: only model.ssd takes images of any size" in one for one in problems)


@pytest.mark.slow
@pytest.mark.parametrize(
    "engine",
    ["local", pytest.param("ray", marks=pytest.mark.filterwarnings("ignore"))],
)
def test_workers_make_the_evaluation_of_one(engine: str, small_config: Path, tmp_path: Path) -> None:
    """Metrics, losses, rows and pictures: all the same, whoever looked at which image."""
    # After two steps, scores are too low for the configuration.
    least = "model.ssd.post_processing.batch_non_max_suppression.score_threshold=0"
    config = bw.load_config(small_config, ["train_config.num_steps=2", least])
    bw.train(config, tmp_path / "m", bw.RunSettings(workers=0))
    detector, _, _ = bw.restore_detector(tmp_path / "m")
    rows: dict[str, list[Any]] = {"alone": [], "shared": []}
    alone = evaluate_detector(
        config,
        detector.optimize(),
        EvaluationSettings(workers=0),
        keep=lambda *of_image: rows["alone"].extend(to_coco_rows(*of_image)),
    )
    settings = EvaluationSettings(workers=0, engine=engine, shares=2, device="cpu")
    shared = evaluate_by_workers(
        tmp_path / "m",
        config,
        open_evaluation(tmp_path / "m", config, settings),
        lambda *of_image: rows["shared"].extend(to_coco_rows(*of_image)),
    )
    if engine == "ray":
        import ray

        ray.shutdown()
    assert len(rows["alone"]) > 0
    assert rows["shared"] == rows["alone"]
    assert shared.notes == alone.notes
    assert shared.metrics.keys() == alone.metrics.keys()
    for name, value in alone.metrics.items():
        assert shared.metrics[name] == value, name
    assert any("oss" in name for name in alone.metrics)
    assert list(shared.pictures) == list(alone.pictures)
    for name, picture in alone.pictures.items():
        np.testing.assert_array_equal(shared.pictures[name], picture)
