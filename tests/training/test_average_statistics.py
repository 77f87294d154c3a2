"""Batch normalization's statistics among the averages: evaluated during a run and after it, kept, and started late."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch

import boxwright as bw
from boxwright.base.errors import ConfigError
from boxwright.pipeline.training import build_training
from boxwright.weights.initial_shares import AVERAGE_SHARES, SHARES
from boxwright.weights.store import read_checkpoint

AVERAGE = [
    "train_config.optimizer.use_moving_average=true",
    "train_config.optimizer.average_statistics=true",
    "eval_config.use_moving_averages=true",
]
LOSS = "Loss/total_loss"


def evaluated(model_dir: Path) -> float:
    lines = [json.loads(line) for line in (model_dir / "metrics.jsonl").read_text().splitlines()]
    return float(next(line[LOSS] for line in lines if "evaluation" in line))


def test_what_is_evaluated_during_a_run_and_after_it(small_config: Path, tmp_path: Path) -> None:
    # Fast statistics, which differ from their average.
    fast = "model.ssd.feature_extractor.conv_hyperparams.batch_norm.decay=0.3"
    found = {}
    for name, more in (("with", AVERAGE), ("without", [AVERAGE[0], AVERAGE[2]])):
        bw.train(
            bw.load_config(small_config, [fast, "train_config.num_steps=3", *more]),
            tmp_path / name,
            bw.RunSettings(workers=0, preflight=False),
        )
        found[name] = evaluated(tmp_path / name)
        config = bw.load_config(tmp_path / name / "pipeline.config")
        assert bw.evaluate(config, tmp_path / name)[LOSS] == pytest.approx(found[name], rel=1e-6)
    assert found["with"] != pytest.approx(found["without"], rel=5e-6)
    content = read_checkpoint(tmp_path / "with" / "ckpt-3.pt")
    name = next(name for name in content["average"] if name.endswith("running_mean"))
    assert not torch.equal(content["average"][name], content["network"][name]), "training goes on with its own"
    layer = name.removesuffix(".running_mean")
    for average, wanted, shares in ((True, "average", AVERAGE_SHARES), (False, "network", SHARES)):
        detector = bw.restore_detector(tmp_path / "with", use_average=average)[0]
        without_start = content[wanted][name] / (1 - content[shares][layer])
        torch.testing.assert_close(detector.network.get_buffer(name), without_start)


def test_a_run_that_asks_for_them_later_starts_at_their_values(small_config: Path, tmp_path: Path) -> None:
    settings = bw.RunSettings(workers=0, evaluate=False, preflight=False)
    bw.train(bw.load_config(small_config, [AVERAGE[0], "train_config.num_steps=1"]), tmp_path, settings)
    bw.train(bw.load_config(small_config, [*AVERAGE, "train_config.num_steps=2"]), tmp_path, settings)
    first, second = (read_checkpoint(tmp_path / f"ckpt-{step}.pt") for step in (1, 2))
    for name in (name for name in second["average"] if name not in first["average"]):
        # Of the second update: (1 + 2) / (10 + 2) of the average so far.
        wanted = first["network"][name] * 0.25 + second["network"][name] * 0.75
        torch.testing.assert_close(second["average"][name], wanted)


def test_statistics_without_an_average_are_refused(small_config: Path) -> None:
    config = bw.load_config(small_config, [AVERAGE[1], "train_config.optimizer.use_moving_average=false"])
    with pytest.raises(ConfigError, match="average_statistics: there is no average; set use_moving_average"):
        build_training(config)
