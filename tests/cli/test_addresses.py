"""Commands that write at addresses, against a server whose connections are cut."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest

from tests.cli.test_commands import run, train
from tests.remote_files import open_store

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

        run("evaluate", "--model_dir", folder, "--out", "s3://bucket/eval")
        assert json.loads(store.cat_file("bucket/eval/metrics.json"))["step"] == 3
        pictures = shapes_data / "voc" / "JPEGImages"
        output = run("predict", pictures, "--model_dir", folder, "--out", "s3://bucket/found")
        assert "written to s3://bucket/found" in output.replace("\n", " ")
        assert isinstance(json.loads(store.cat_file("bucket/found/detections.json")), list)
        output = run("export", folder, "s3://bucket/exports/a.safetensors")
        assert "copied to s3://bucket/exports/a.safetensors" in output
        assert "next:" not in output
        assert store.find("bucket/exports") == ["bucket/exports/a.safetensors"]
