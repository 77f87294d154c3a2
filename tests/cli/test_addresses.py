"""Commands that write at addresses, against a server whose connections are cut."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest

import boxwright as bw
from boxwright.weights.store import read_checkpoint
from tests.cli.test_commands import run, train
from tests.remote_files import open_store
from tests.training.checkpoints import same
from tests.training.test_shards import shards_of

OWN_INITIALIZERS = True

RUN = "s3://bucket/runs/one"


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore")  # of the clients and the server
def test_a_run_and_its_results_at_an_address(small_config: Path, shapes_data: Path, tmp_path: Path) -> None:
    with open_store(tmp_path / "cache") as (store, cutting):
        cutting.requests_to_cut = 3
        train(small_config, RUN, 2, "--checkpoint_every_n", 1)
        assert not cutting.requests_to_cut
        names = {path.removeprefix("bucket/runs/one/") for path in store.find("bucket/runs/one")}
        assert {"ckpt-1.pt", "ckpt-2.pt", "metrics.jsonl", "pipeline.config"} <= names
        (folder,) = (tmp_path / "cache" / "runs").iterdir()
        shutil.rmtree(folder)
        cutting.answers_to_cut = 3
        train(small_config, RUN, 3)
        assert not cutting.answers_to_cut
        assert store.exists("bucket/runs/one/ckpt-3.pt")

        run("evaluate", "--model_dir", RUN, "--out", "s3://bucket/eval")
        assert json.loads(store.cat_file("bucket/eval/metrics.json"))["step"] == 3
        pictures = shapes_data / "voc" / "JPEGImages"
        cutting.answers_to_cut = 2
        shutil.rmtree(tmp_path / "cache" / "models")
        output = run("predict", pictures, "--model_dir", RUN, "--out", "s3://bucket/found")
        assert not cutting.answers_to_cut
        assert "written to s3://bucket/found" in output.replace("\n", " ")
        assert isinstance(json.loads(store.cat_file("bucket/found/detections.json")), list)
        output = run("export", RUN, "s3://bucket/exports/a.safetensors")
        assert "copied to s3://bucket/exports/a.safetensors" in output
        assert "next:" not in output
        assert store.find("bucket/exports") == ["bucket/exports/a.safetensors"]
        whole, weights = bw.load(RUN, device="cpu"), bw.load("s3://bucket/runs/one/ckpt-3.pt", device="cpu")
        assert whole.step == weights.step == 3
        assert whole.path != weights.path
        with pytest.raises(bw.CheckpointError, match=r"^s3://bucket/none: no such run, checkpoint or exported file$"):
            bw.load("s3://bucket/none")


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore")  # of the clients and the server
@pytest.mark.parametrize("ending", ["tar", "parquet"])
def test_data_are_converted_to_an_address_looked_at_and_trained_on(
    ending: str, shapes_data: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    with open_store(tmp_path / "cache") as (store, cutting):
        cutting.requests_to_cut = 2
        run("convert", shapes_data / "voc", f"s3://bucket/data/train.{ending}", "--shard_size", 5)
        assert not cutting.requests_to_cut
        names = [path.removeprefix("bucket/data/") for path in store.find("bucket/data")]
        assert len(names) > 2
        assert names[0] == "label_map.pbtxt"
        assert all(name.endswith(f".{ending}") for name in names[1:])
        cutting.answers_to_cut = 2
        output = run("inspect", "s3://bucket/data")
        assert not cutting.answers_to_cut
        count = len(list((shapes_data / "voc" / "JPEGImages").iterdir()))
        assert f"{count} images, " in output
        assert Path("contact-sheet.png").is_file()
        train_words = ("--model_dir", "m", "--epochs", 1, "--weights", "none", "--device", "cpu", "--imgsz", 64)
        run("train", "s3://bucket/data", *train_words, "--batch", 2)
        assert f"s3://bucket/data/train-?????-of-0000{len(names) - 1}.{ending}" in Path("m", "init.config").read_text()
        run("convert", "s3://bucket/data", "back/a.json")
        assert len(json.loads(Path("back/a.json").read_text())["images"]) == count


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore")  # of the clients and the server
@pytest.mark.parametrize("reader", ["web_dataset", "parquet"])
def test_data_and_run_at_an_address_are_those_of_the_disk(reader: str, shapes_data: Path, tmp_path: Path) -> None:
    """With workers, which are forked while the run is copied, and connections that are cut."""
    text = shards_of(shapes_data, tmp_path, reader)
    here, there = tmp_path / "here.config", tmp_path / "there.config"
    here.write_text(text)
    there.write_text(text.replace(f"{tmp_path}/a-", "s3://bucket/data/a-"))
    with open_store(tmp_path / "cache") as (store, cutting):
        for path in (*tmp_path.glob("a-*.tar"), *tmp_path.glob("a-*.parquet")):
            store.put_file(str(path), f"bucket/data/{path.name}")
        train(here, tmp_path / "m", 4)
        cutting.answers_to_cut = cutting.requests_to_cut = 2
        train(there, RUN, 4, "--workers", 2, "--checkpoint_every_n", 1)
        assert not cutting.answers_to_cut
        assert not cutting.requests_to_cut
        store.get_file("bucket/runs/one/ckpt-4.pt", str(tmp_path / "there.pt"))
    whole = read_checkpoint(tmp_path / "m" / "ckpt-4.pt")
    assert same(whole["network"], read_checkpoint(tmp_path / "there.pt")["network"])
