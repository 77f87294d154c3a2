"""Weights that timm fetches: from a cache as the hub keeps it, with every way to the network shut."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path

import pytest
import timm
import torch
from safetensors.torch import save_file

from boxwright.base.errors import ConfigError
from boxwright.config.load import parse_message
from boxwright.pipeline import messages as m
from boxwright.pipeline.training import build_training
from tests.conftest import SMALL_MODEL, small_config_text

NAME = "test_resnet.r160_in1k"
# Runs commands, one a line, in one process in which nobody reaches the network; says how each ended.
SHUT = """
import socket, sys

def shut(event, arguments):
    network = event in ("socket.getaddrinfo", "socket.gethostbyname")
    if network or (event == "socket.connect" and arguments[0].family in (socket.AF_INET, socket.AF_INET6)):
        print("NETWORK", event, arguments[1:], flush=True)
        raise OSError("the network is shut")

sys.addaudithook(shut)
from boxwright.cli.main import main
for line in sys.stdin.read().splitlines():
    sys.argv = ["boxwright", *line.split()]
    try:
        code = main()
    except SystemExit as end:
        code = end.code
    print("ENDED", sys.argv[1], code or 0, flush=True)
"""


def hub(folder: Path) -> Mapping[str, torch.Tensor]:
    """Make a cache as Hugging Face's hub keeps it, with made-up weights of the network; return them."""
    torch.manual_seed(3)
    weights = timm.create_model(NAME, pretrained=False).state_dict()
    repository = folder / "hub" / f"models--timm--{NAME}"
    (repository / "refs").mkdir(parents=True)
    (repository / "refs" / "main").write_text("0" * 40)
    (repository / "snapshots" / ("0" * 40)).mkdir(parents=True)
    save_file(dict(weights), repository / "snapshots" / ("0" * 40) / "model.safetensors")
    return weights


def config_text(shapes_data: Path) -> str:
    text = small_config_text(shapes_data, SMALL_MODEL).replace("ssd_mobilenet_v2_fpn_keras", f"timm/{NAME}")
    text = text.replace("override_base_feature_extractor_hyperparams: true", "pretrained: true").replace(
        "num_steps: 6", "num_steps: 1"
    )
    return text.replace("depth_multiplier: 0.25", "").replace("use_depthwise: true", "", 1).replace("min_depth: 8", "")


def shut_run(commands: list[str], home: Path, tmp_path: Path, **environment: str) -> str:
    finished = subprocess.run(
        [sys.executable, "-c", SHUT],
        input="\n".join(commands),
        capture_output=True,
        text=True,
        check=False,
        cwd=tmp_path,
        env={
            "PATH": "/usr/bin:/bin",
            "HOME": str(tmp_path),
            "HF_HOME": str(home),
            "OMP_NUM_THREADS": "1",
            **environment,
        },
    )
    return finished.stdout + finished.stderr


@pytest.mark.slow
def test_only_a_fresh_start_fetches(shapes_data: Path, tmp_path: Path) -> None:
    path = tmp_path / "pipeline.config"
    path.write_text(config_text(shapes_data))
    home = tmp_path / "home"
    weights = hub(home)
    begun = shut_run([f"train --config {path} --model_dir {tmp_path}/run --workers 0 --no_evaluate"], home, tmp_path)
    assert "ENDED train 0" in begun, begun
    assert f"weights of timm/{NAME} from Hugging Face's hub" in begun
    content = torch.load(tmp_path / "run" / "ckpt-1.pt", weights_only=True)
    network = content["network"]
    name = next(name for name in network if name.endswith("body.conv1.0.weight"))
    assert (network[name] - weights["conv1.0.weight"]).abs().max() < 0.01, "after one step"
    image = next(shapes_data.rglob("*.jpg"))
    nowhere = tmp_path / "nowhere"
    rest = shut_run(
        [
            f"train --config {path} --model_dir {tmp_path}/run --workers 0 --no_evaluate --set train_config.num_steps=2",
            f"evaluate --model_dir {tmp_path}/run",
            f"predict {image} --model_dir {tmp_path}/run --out {tmp_path}/out",
            f"export {tmp_path}/run {tmp_path}/weights.safetensors",
            f"config check {path}",
            f"train --config {path} --model_dir {tmp_path}/other --workers 0 --no_evaluate "
            f"--set train_config.fine_tune_checkpoint={tmp_path}/run --set train_config.fine_tune_checkpoint_type=full",
        ],
        nowhere,
        tmp_path,
    )
    ended = [line for line in rest.splitlines() if line.startswith("ENDED")]
    assert ended == [
        "ENDED train 0",
        "ENDED evaluate 0",
        "ENDED predict 0",
        "ENDED export 0",
        "ENDED config 0",
        "ENDED train 0",
    ], rest
    assert "NETWORK" not in rest
    assert not nowhere.exists()


@pytest.mark.slow
def test_what_cannot_be_fetched_is_one_line(shapes_data: Path, tmp_path: Path) -> None:
    path = tmp_path / "pipeline.config"
    path.write_text(config_text(shapes_data))
    # Told to be offline: else the hub's library tries for most of a minute.
    said = shut_run(
        [f"train --config {path} --model_dir {tmp_path}/run --workers 0 --no_evaluate"],
        tmp_path / "home",
        tmp_path,
        HF_HUB_OFFLINE="1",
    )
    assert "ENDED train 1" in said, said
    line = " ".join(said.partition("error:")[2].split())
    assert f"the weights of timm/{NAME} could not be fetched" in line
    assert "connect to huggingface.co once, or copy the cache of a machine that has them" in line
    assert "Traceback" not in said
    assert not list((tmp_path / "run").glob("ckpt-*"))


@pytest.mark.parametrize("kind", ["ssd_mobilenet_v2_fpn_keras", "ssd_resnet50_v1_fpn_keras"])
def test_only_timm_has_weights_to_fetch(shapes_data: Path, kind: str) -> None:
    text = config_text(shapes_data).replace(f"timm/{NAME}", kind)
    with pytest.raises(ConfigError, match=f"nobody keeps weights of {kind} to fetch; only of timm/NAME"):
        build_training(parse_message(text, m.TrainEvalPipelineConfig))
