"""Models on Hugging Face's hub: its own client, and a server that answers as the hub does."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
import torch
from huggingface_hub import ModelCard, constants
from huggingface_hub.utils import disable_progress_bars

import boxwright as bw
from boxwright.api.push_to_hub import CardContent, model_card
from boxwright.weights.hub import HubAddress, hub_address
from tests.api.hub_server import TOKEN, Hub, hub_server
from tests.api.models import SmallRun

# Of the hub's client, in Git's transfer of large files.
pytestmark = pytest.mark.filterwarnings("ignore:Use 'content=:DeprecationWarning")

FILES = {"README.md", "config.json", "label_map.pbtxt", "model.safetensors", "pipeline.config"}


@pytest.fixture
def hub(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Hub]:
    """The stand-in in the hub's place, an empty cache, and an account's token."""
    disable_progress_bars()
    with hub_server() as hub:
        monkeypatch.setattr(constants, "ENDPOINT", hub.address)
        monkeypatch.setattr(
            constants, "HUGGINGFACE_CO_URL_TEMPLATE", hub.address + "/{repo_id}/resolve/{revision}/{filename}"
        )
        monkeypatch.setattr(constants, "HF_HUB_CACHE", str(tmp_path / "hub"))
        monkeypatch.setattr(constants, "HF_HUB_OFFLINE", False)
        # The hub's own transfer of large files has a server of its own; the older one is Git's.
        monkeypatch.setattr(constants, "HF_HUB_DISABLE_XET", True, raising=False)
        monkeypatch.setenv("HF_TOKEN", TOKEN)
        yield hub


def test_what_is_published_is_what_is_loaded(run: SmallRun, hub: Hub, monkeypatch: pytest.MonkeyPatch) -> None:
    address = bw.push_to_hub(run.folder, "someone/shapes", license="apache-2.0")
    commit = hub.branches["someone/shapes"]["main"]
    assert address == f"{hub.address}/someone/shapes/commit/{commit}"
    files = hub.commits[commit]
    assert set(files) == FILES
    assert str(run.folder) not in repr(files), "paths of this machine"
    assert list(hub.blobs.values()) == [files["model.safetensors"]]
    here, there = bw.load(run.folder, device="cpu", runtime="torch"), bw.load("hf://someone/shapes", device="cpu")
    assert (there.step, there.names) == (here.step, here.names)
    assert there.config.train_input_reader is None
    published = there.detector.network.state_dict()
    for name, value in here.detector.network.state_dict().items():
        # PyTorch's counts of batches, which nothing reads, are not published.
        assert name.endswith("num_batches_tracked") or torch.equal(published[name], value)
    one, other = here(run.picture), there(run.picture)
    np.testing.assert_array_equal(one.boxes, other.boxes)
    np.testing.assert_array_equal(one.scores, other.scores)
    # Without a connection, from the cache.
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", True)
    assert bw.load("hf://someone/shapes", device="cpu").step == here.step


def test_the_card(run: SmallRun, hub: Hub) -> None:
    bw.push_to_hub(run.folder, "someone/shapes", license="apache-2.0")
    text = hub.commits[hub.branches["someone/shapes"]["main"]]["README.md"].decode()
    card = ModelCard(text)
    assert (card.data.library_name, card.data.license, card.data.pipeline_tag) == (
        "boxwright",
        "apache-2.0",
        "object-detection",
    )
    metrics = bw.Run(run.folder).metrics
    found = {one.metric_name: one.metric_value for one in card.data.eval_results or []}
    assert found["DetectionBoxes_Precision/mAP"] == metrics["DetectionBoxes_Precision/mAP"]
    assert "DetectionBoxes_Precision/mAP (large)" not in found, "-1: the data has none"
    assert not any(name.startswith("Loss/") for name in found)
    assert f"| DetectionBoxes\\_Precision/mAP | {metrics['DetectionBoxes_Precision/mAP']:.4f} |" in card.text
    assert "circle, square, triangle, star" in card.text
    assert 'bw.load("hf://someone/shapes")' in card.text


def test_revisions(run: SmallRun, hub: Hub) -> None:
    bw.push_to_hub(run.folder, "someone/shapes", metrics={"AP": 0.5})
    first = hub.branches["someone/shapes"]["main"]
    bw.push_to_hub(run.folder, "someone/shapes", metrics={"AP": 0.75}, revision="better")
    better = hub.commits[hub.branches["someone/shapes"]["better"]]
    assert b"| AP | 0.7500 |" in better["README.md"]
    assert hub.branches["someone/shapes"]["main"] == first
    for revision in ("better", first):
        assert bw.load(f"hf://someone/shapes@{revision}", device="cpu").step == 60
    with pytest.raises(
        bw.CheckpointError, match="hf://someone/shapes@worse: the repository has no branch, tag or commit"
    ):
        bw.load("hf://someone/shapes@worse")


def test_a_card_of_ones_own(run: SmallRun, hub: Hub, tmp_path: Path) -> None:
    (tmp_path / "card.md").write_text("# Mine\n")
    bw.push_to_hub(run.folder, "someone/shapes", card=tmp_path / "card.md")
    assert hub.commits[hub.branches["someone/shapes"]["main"]]["README.md"] == b"# Mine\n"
    with pytest.raises(bw.OutputError, match="nothing.md: No such file"):
        bw.push_to_hub(run.folder, "someone/other", card=tmp_path / "nothing.md")
    assert "someone/other" not in hub.branches


def test_what_the_hub_refuses(run: SmallRun, hub: Hub) -> None:
    with pytest.raises(
        bw.OutputError, match="hf://someone/shapes: the hub refuses it: .*; log in with `hf auth login`"
    ):
        bw.push_to_hub(run.folder, "someone/shapes", token="hf_" + "b" * 34)
    assert hub.branches == {}
    hub.refuse = 403
    with pytest.raises(bw.OutputError, match="hf://someone/shapes: the hub refuses it: .*"):
        bw.push_to_hub(run.folder, "someone/shapes")
    assert hub.commits[hub.branches["someone/shapes"]["main"]] == {}


def test_what_is_not_on_the_hub(hub: Hub, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(
        bw.CheckpointError, match="hf://someone/nothing: no such repository, or it is private: then log in"
    ):
        bw.load("hf://someone/nothing")
    hub.commits["1" * 40] = {"README.md": b"# Words\n"}
    hub.branches["someone/words"] = {"main": "1" * 40}
    with pytest.raises(
        bw.CheckpointError, match="hf://someone/words: has no model.safetensors; expected a model of bw.push_to_hub"
    ):
        bw.load("hf://someone/words")
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", True)
    with pytest.raises(
        bw.CheckpointError, match="hf://someone/else: the hub cannot be reached.*, and .* does not hold it"
    ):
        bw.load("hf://someone/else")


def test_what_arrives_damaged(run: SmallRun, hub: Hub) -> None:
    bw.push_to_hub(run.folder, "someone/shapes")
    files = hub.commits[hub.branches["someone/shapes"]["main"]]
    weights = bytearray(files["model.safetensors"])
    weights[-1] ^= 1
    for name, content, problem in (
        ("model.safetensors", bytes(weights), "damaged: its digest does not hold"),
        ("pipeline.config", b"model { ssd { num_classes: ", "pipeline.config:1"),
        ("config.json", b"{", "config.json: not readable as JSON"),
        ("config.json", b'{"step": -1}', "config.json: expected an object whose step is a whole number"),
        ("label_map.pbtxt", b"item {", "label_map.pbtxt"),
    ):
        number = str(len(hub.commits)) * 40
        hub.commits[number[:40]] = {**files, name: content}
        with pytest.raises(bw.BoxwrightError, match=problem):
            bw.load(f"hf://someone/shapes@{number[:40]}", device="cpu")


def test_sources_that_cannot_be_published(run: SmallRun, tmp_path: Path) -> None:
    with pytest.raises(bw.ExportError, match="is exported; pass the run, or its checkpoint"):
        bw.push_to_hub(run.onnx, "someone/shapes")
    with pytest.raises(bw.CheckpointError, match="no such folder or checkpoint"):
        bw.push_to_hub(tmp_path / "nothing", "someone/shapes")
    with pytest.raises(bw.OutputError, match="'shapes': expected USER/NAME"):
        bw.push_to_hub(run.folder, "shapes")
    with pytest.raises(bw.CheckpointError, match="is on the hub already"):
        bw.push_to_hub("hf://someone/shapes", "someone/shapes")


@pytest.mark.parametrize("text", ["hf://", "hf://name", "hf://a/b/c", "hf://a/b@", "hf://a b/c", "hf://../x@y z"])
def test_addresses_that_are_none(text: str) -> None:
    with pytest.raises(bw.CheckpointError, match="expected hf://USER/NAME or hf://USER/NAME@REVISION"):
        bw.load(text)


def test_addresses() -> None:
    assert hub_address("hf://a/b.c") == HubAddress("a/b.c")
    assert str(hub_address("hf://a/b@refs/pr/1")) == "hf://a/b@refs/pr/1"
    assert hub_address("models/a") is None
    with pytest.raises(bw.CheckpointError, match=r"hf://a/\.\.: "):
        bw.load("hf://a/..")


def test_names_in_a_card_are_no_markup() -> None:
    categories = bw.Categories((bw.Category(0, 1, "<img src=x>|`rm`"),))
    text = model_card(CardContent("a/b", bw.Pipeline(), categories, 3, 5), {})
    assert "\\<img src=x\\>\\|\\`rm\\`" in text
    assert "The run was not evaluated at this step." in text
    assert ModelCard(text).data.eval_results is None
