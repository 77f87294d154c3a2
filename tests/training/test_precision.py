"""The precision of runs: asked for, stored, kept when a run is resumed, and tried by trial steps."""

from __future__ import annotations

import logging
import subprocess
from pathlib import Path
from typing import Any

import pytest
import torch

import boxwright as bw
from boxwright.pipeline import messages as m
from boxwright.training import rehearsal
from boxwright.training.rehearsal import rehearse
from tests.cli.test_commands import run


def train(config: Path, folder: Path, steps: int, **options: Any) -> m.TrainConfig:
    """Train up to a step, and return the stored `train_config`."""
    bw.train(
        config,
        folder,
        overrides=[f"train_config.num_steps={steps}"],
        workers=0,
        device="cpu",
        evaluate=False,
        **options,
    )
    stored = bw.load_config(folder / "pipeline.config").train_config
    assert stored is not None
    return stored


def test_a_run_stores_its_precision_and_keeps_it(
    small_config: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO, "boxwright.run")
    folder = tmp_path / "run"
    assert train(small_config, folder, 1, precision="bfloat16").use_bfloat16
    caplog.clear()
    assert train(small_config, folder, 2).use_bfloat16
    assert "training in bfloat16, as the run began" in caplog.text
    assert "use_bfloat16" not in caplog.text, "a change that the user did not make"
    assert not train(small_config, folder, 3, precision="float32").use_bfloat16
    assert "train_config.use_bfloat16 true → false" in caplog.text


def test_a_precision_is_a_name(small_config: Path, tmp_path: Path) -> None:
    with pytest.raises(bw.TrainingError, match=r"precision: expected float32 or bfloat16 or float16, found 'half'"):
        bw.train(small_config, tmp_path / "run", precision="half")
    assert not (tmp_path / "run").exists()


def test_trial_steps_are_in_the_precision_of_the_run(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    tried: list[bool] = []

    def note(command: list[str], **_: Any) -> Any:
        config = bw.load_config(command[command.index("boxwright.training.rehearsal") + 1])
        assert config.train_config is not None
        tried.append(config.train_config.use_bfloat16)
        raise subprocess.TimeoutExpired(command, 1)

    monkeypatch.setattr(subprocess, "run", note)
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda device: (9, 0))
    monkeypatch.setattr(rehearsal, "usable_device", lambda device: torch.device(device))
    config = bw.load_config("preset:ssd_hgnetv2_fpn_small")
    for device in ("cuda:0", "cpu"):
        with pytest.raises(bw.TrainingError):
            rehearse(config, device)
    assert tried == [True, False]


def test_the_command(small_config: Path, tmp_path: Path) -> None:
    """Over a configuration that says otherwise."""
    run(
        *("train", "--config", small_config, "--model_dir", tmp_path / "run", "--precision", "bfloat16"),
        *("--set", "train_config.use_float16=true", "--num_train_steps", 1, "--workers", 0, "--device", "cpu"),
    )
    stored = bw.load_config(tmp_path / "run" / "pipeline.config").train_config
    assert stored is not None
    assert (stored.use_bfloat16, stored.use_float16) == (True, False)
