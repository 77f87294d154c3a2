"""From a trained detector to its report: the command, the folder alone, and Python."""

from __future__ import annotations

import contextlib
import io
import json
import shutil
from pathlib import Path
from typing import Any

import pytest
from pycocotools.coco import COCO
from pycocotools.cocoeval import COCOeval

import boxwright as bw
from boxwright.base.errors import ConfigError
from boxwright.report.sources import source_of_evaluation
from boxwright.runtime.thresholds import read_thresholds
from tests.api.models import small_run
from tests.cli.test_commands import run
from tests.report.test_tide import of_tidecv


@pytest.mark.slow
def test_a_report_of_a_run(tmp_path: Path) -> None:
    """The report's average precision is that of the evaluation; it can be written again without the model."""
    model = tmp_path / "model"
    shutil.copytree(small_run().folder, model)
    out = tmp_path / "eval"
    output = run("evaluate", "--model_dir", model, "--out", out, "--report", tmp_path / "r")
    assert f"report: {tmp_path / 'r' / 'index.html'}" in output
    metrics = json.loads((out / "metrics.json").read_text())
    numbers = json.loads((tmp_path / "r" / "report.json").read_text())
    ap = "DetectionBoxes_Precision/mAP"
    assert numbers["metrics"][ap] == metrics[ap]
    # Boxes are rounded to a thousandth of a pixel in the file.
    assert numbers["intervals"]["Precision/mAP"][0] == pytest.approx(metrics[ap], abs=1e-3)
    assert len(list((tmp_path / "r" / "pictures").glob("*.jpg"))) == len(source_of_evaluation(out).tables.ids)
    factors = {part["factor"] for part in numbers["parts"]}
    assert {"size", "aspect", "border", "crowding", "anchors", "class frequency in training"} <= factors
    of_others(out, numbers)
    about = json.loads((out / "evaluation.json").read_text())
    assert about["weights_sha256"] in (tmp_path / "r" / "index.html").read_text()

    shutil.rmtree(model)
    run("report", out)
    again = json.loads((out / "report" / "report.json").read_text())
    assert again == numbers
    if (tmp_path / "r" / "thresholds.json").exists():
        assert read_thresholds(tmp_path / "r" / "thresholds.json").weights_sha256 == about["weights_sha256"]


def of_others(out: Path, numbers: dict[str, Any]) -> None:
    """Of a detector's own detections, errors are tidecv's, and average precisions pycocotools'."""
    content, rows = (json.loads((out / name).read_text()) for name in ("truth.json", "detections.json"))
    number = {image["id"]: index + 1 for index, image in enumerate(content["images"])}
    for image in content["images"]:
        image["id"] = number[image["id"]]
    for row in (*content["annotations"], *rows):
        row["image_id"] = number[row["image_id"]]
    _, gains, counts = of_tidecv(content, [dict(row) for row in rows])
    for name, gain in gains.items():
        assert numbers["errors"][name]["gain"] == pytest.approx(gain, abs=1e-9), name
    assert {name: numbers["errors"][name]["count"] for name in counts} == counts
    assert sum(counts.values()) > 100
    with contextlib.redirect_stdout(io.StringIO()):
        truth = COCO()
        truth.dataset = content
        truth.createIndex()
        evaluator = COCOeval(truth, truth.loadRes(rows), "bbox")
        evaluator.evaluate()
        evaluator.accumulate()
        evaluator.summarize()
    ours = [numbers["intervals"][name][0] for name in ("Precision/mAP", "Precision/mAP@.50IOU", "Precision/mAP@.75IOU")]
    assert ours == pytest.approx(evaluator.stats[:3].tolist(), abs=1e-9)


def test_a_report_in_python(tmp_path: Path) -> None:
    shutil.copytree(small_run().folder, tmp_path / "model")
    index = bw.Run(tmp_path / "model").report(tmp_path / "r", fit_calibration=True)
    assert index == tmp_path / "r" / "index.html"
    assert index.is_file()
    with pytest.raises(ConfigError, match="report has no option 'fit_kalibration'; did you mean fit_calibration?"):
        bw.Run(tmp_path / "model").report(tmp_path / "r", fit_kalibration=True)


def test_following_a_run_makes_no_report(tmp_path: Path) -> None:
    from boxwright.cli.evaluate import evaluate_command
    from boxwright.evaluation.settings import EvaluationSettings, WatchSettings
    from boxwright.report.settings import ReportSettings

    with pytest.raises(ConfigError, match="--report is of one evaluation"):
        evaluate_command(
            EvaluationSettings(), WatchSettings(watch=True), ReportSettings(), tmp_path, report=tmp_path / "r"
        )
