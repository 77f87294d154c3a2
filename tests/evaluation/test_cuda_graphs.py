"""`evaluate --cuda_graphs`: the metrics of an evaluation without, and what has no graphs."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

import boxwright as bw
from boxwright.nn.postprocessing.nms import Nms
from boxwright.weights.open_model import OpenModel
from tests.nn.test_cuda_graphs import Captures


@pytest.fixture
def model(small_config: Path, tmp_path: Path) -> Path:
    config = bw.load_config(small_config, ["train_config.num_steps=2"])
    bw.train(config, tmp_path / "model", bw.RunSettings(workers=0, preflight=False, evaluate=False))
    return tmp_path / "model"


def test_metrics_are_the_same_and_losses_are_left_out(model: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Nms, "without_wait", Nms.in_rounds)  # as on a GPU
    captures = Captures()

    def use(opened: OpenModel, *_: Any, **__: Any) -> None:
        opened.detector.use_cuda_graphs(captures)

    monkeypatch.setattr(OpenModel, "use_cuda_graphs", use)
    plain = bw.evaluate(model, device="cpu")
    graphed = bw.evaluate(model, device="cpu", cuda_graphs=True)
    assert captures.count >= 1
    losses = {name for name in plain if name.startswith("Loss/")}
    assert losses
    assert graphed == {name: value for name, value in plain.items() if name not in losses}


@pytest.mark.parametrize(
    ("options", "why"),
    [
        ({}, "there is no GPU to detect on"),
        ({"multi_scale": "refinedet320-voc"}, "--multi_scale gives inputs of several sizes"),
    ],
)
def test_what_has_no_graphs(model: Path, options: dict[str, Any], why: str) -> None:
    with pytest.raises(bw.ConfigError, match=f"--cuda_graphs: {why}"):
        bw.evaluate(model, device="cpu", cuda_graphs=True, **options)


def test_images_of_their_own_size_have_no_graphs(model: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(OpenModel, "use_cuda_graphs", lambda *_, **__: None)
    with pytest.raises(bw.ConfigError, match="--cuda_graphs: .*force_no_resize gives inputs of several sizes"):
        bw.evaluate(model, device="cpu", cuda_graphs=True, overrides=["eval_config.force_no_resize=true"])
