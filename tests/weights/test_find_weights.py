"""Where weights to start from are: found, or refused before data are read."""

from __future__ import annotations

from pathlib import Path

import pytest

import boxwright as bw
from boxwright.training.autoconfig.choices import InitSettings
from boxwright.training.autoconfig.start import init_config
from boxwright.weights.find_weights import find_weights

MESSAGES = {
    "hf://name": "hf://name: expected hf://USER/NAME",
    "https://example.com/a/model.pth": "https://example.com/a/model.pth: weights are not fetched from there; download",
    "az://bucket/model.pth": "not fetched from there; .*, or at s3:// or gs://",
    "https://huggingface.co/timm/resnet18.a1_in1k/tree/main": "use the hub's own address: hf://timm/resnet18.a1_in1k",
    "nowhere.pth": "nowhere.pth: no such checkpoint",
}


@pytest.mark.parametrize("named", MESSAGES)
def test_before_the_data_are_read(tmp_path: Path, named: str) -> None:
    """The folder of data is missing, which would be said first."""
    with pytest.raises(bw.CheckpointError, match=MESSAGES[named]):
        init_config(tmp_path / "no data", tmp_path / "run" / "pipeline.config", InitSettings(weights=named))
    assert not (tmp_path / "run").exists()


@pytest.mark.parametrize("named", list(MESSAGES)[:4])
def test_load_says_the_same(named: str) -> None:
    with pytest.raises(bw.CheckpointError, match=MESSAGES[named]):
        bw.load(named)


def test_what_is_there(tmp_path: Path) -> None:
    (tmp_path / "model.pth").touch()
    assert find_weights(str(tmp_path / "model.pth")) == (str(tmp_path / "model.pth"), "")
    found, note = find_weights("/elsewhere/model.pth", str(tmp_path))
    assert found == str(tmp_path / "model.pth")
    assert "does not exist; using" in note


def test_the_hub_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("boxwright.weights.find_weights.fetch_model", lambda address: tmp_path / address.repository)
    assert find_weights("hf://timm/resnet18.a1_in1k")[0] == str(tmp_path / "timm" / "resnet18.a1_in1k")


@pytest.mark.parametrize(
    ("name", "why"), [("extremenet", "not opened yet"), ("resnet50_v2_torchvision", "a backbone's weights")]
)
def test_what_cannot_be_opened_is_not_fetched(monkeypatch: pytest.MonkeyPatch, name: str, why: str) -> None:
    """It was downloaded before that was said, or was to be carried there by hand."""
    monkeypatch.setenv("BOXWRIGHT_OFFLINE", "1")  # with which fetching would be another error
    with pytest.raises(bw.CheckpointError, match=f"{name}: {why}"):
        bw.load(name)


def test_weights_to_start_from_may_be_a_backbones(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("BOXWRIGHT_OFFLINE", "1")
    with pytest.raises(bw.CheckpointError, match="could not be fetched: BOXWRIGHT_OFFLINE is set"):
        find_weights("resnet50_v2_torchvision")
    with pytest.raises(bw.CheckpointError, match="extremenet: not opened yet"):
        find_weights("extremenet")
