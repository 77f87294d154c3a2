"""Evaluating by several workers."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

import boxwright as bw
from boxwright.evaluation.evaluate import evaluate_by_workers, open_evaluation
from boxwright.evaluation.settings import EvaluationSettings
from boxwright.evaluation.write import rows_of
from tests.evaluation.evaluate import evaluate_detector


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
        keep=lambda *of_image: rows["alone"].extend(rows_of(*of_image)),
    )
    settings = EvaluationSettings(workers=0, engine=engine, shares=2, device="cpu")
    shared = evaluate_by_workers(
        tmp_path / "m",
        config,
        open_evaluation(tmp_path / "m", config, settings),
        lambda *of_image: rows["shared"].extend(rows_of(*of_image)),
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
