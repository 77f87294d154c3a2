"""Several metrics at once, and numbers that are none."""

from __future__ import annotations

import json
from pathlib import Path

import boxwright as bw
from boxwright.evaluation.evaluate import run_evaluation
from boxwright.evaluation.evaluator import write_evaluation


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
    bw.train(config, tmp_path / "m", bw.RunSettings(workers=0))
    lines = (tmp_path / "m" / "metrics.jsonl").read_text()
    assert "NaN" not in lines
    assert '"PascalBoxes_PerformanceByCategory/AP@0.5IOU/unicorn": null' in lines
    evaluation = run_evaluation(config, bw.restore_detector(tmp_path / "m")[0])
    assert evaluation.metrics["DetectionBoxes_PerformanceByCategory/mAP/unicorn"] == -1
    assert any("NaN for classes without objects: unicorn" in note for note in evaluation.notes)
    write_evaluation(evaluation, tmp_path / "out")
    written = json.loads((tmp_path / "out" / "metrics.json").read_text())
    assert written["OpenImagesV2_PerformanceByCategory/AP@0.5IOU/unicorn"] is None
    assert written["PascalBoxes_Precision/mAP@0.5IOU"] is not None
