"""D-FINE in pictures, tiles, videos with tracks, and a server: by PyTorch and exported, with the same answers."""

from __future__ import annotations

import csv
import json
from pathlib import Path

import numpy as np
import pytest

import boxwright as bw
from boxwright.config.load import parse_message
from boxwright.data.image_io import encode_picture
from boxwright.exporters.export import export
from boxwright.inference.video import open_video_for_writing
from boxwright.pipeline import messages as m
from boxwright.weights.export_weights import write_transformers
from tests.cli.test_commands import run
from tests.d_fines import D_FINE
from tests.exporters.small_detectors import build, pictures
from tests.inference.serving.test_server import b64, client_of, png

FRAMES = 4


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """One detector as weights that PyTorch opens without a configuration, and as an export."""
    folder = tmp_path_factory.mktemp("d_fine")
    detector = build(D_FINE)
    config = parse_message(f"model {{ {D_FINE} }}", m.TrainEvalPipelineConfig)
    export(detector, folder / "detector.onnx", images=pictures())
    return {"torch": write_transformers(detector, config, folder / "hub"), "onnx": folder / "detector.onnx"}


@pytest.mark.slow
def test_pictures_tiles_and_a_tracked_video(files: dict[str, Path], tmp_path: Path) -> None:
    photos = tmp_path / "photos"
    photos.mkdir()
    for number, picture in enumerate(pictures()[:2]):
        (photos / f"{number}.png").write_bytes(encode_picture(picture, ".png"))
    with open_video_for_writing(tmp_path / "video.mp4") as video:
        for number in range(FRAMES):
            video.write(pictures()[0], number / 10)
    found: dict[str, list[list[dict[str, object]]]] = {}
    for name, file in files.items():
        for kind, more in (("whole", ()), ("tiled", ("--tile", 64))):
            out = tmp_path / f"{name}-{kind}"
            run("predict", photos, "--model_dir", file, "--out", out, "--min_score", 0.05, *more)
            found.setdefault(kind, []).append(json.loads((out / "detections.json").read_text()))
        out = tmp_path / f"{name}-video"
        words = ("--track", "--save-video", "--csv", "--min_score", 0.05)
        run("predict", tmp_path / "video.mp4", "--model_dir", file, "--out", out, *words)
        rows = list(csv.DictReader((out / "detections.csv").read_text().splitlines()))
        tracks = [row["track"] for row in rows if row["track"]]
        assert tracks, "frames that are alike have objects that stay"
        assert len(set(tracks)) < len(tracks)
        assert (out / "video.mp4").is_file()
    for kind, (one, other) in found.items():
        assert len(one) == len(other) > 10, kind
        scores = [sorted(float(row["score"]) for row in rows) for rows in (one, other)]  # type: ignore[arg-type]
        np.testing.assert_allclose(*scores, atol=2e-4)
    assert len(found["tiled"][0]) != len(found["whole"][0])


@pytest.mark.slow
def test_a_server_answers_what_the_file_predicts(files: dict[str, Path]) -> None:
    image = pictures()[0]
    wanted = bw.load(files["onnx"])(image).to_coco()
    assert len(wanted) == 80  # 20 queries of four classes
    for client in client_of(files["onnx"]):
        answer = client.post("/detect?min_score=0", content=png(image)).json()["detections"]
        np.testing.assert_allclose([one["score"] for one in answer], [one["score"] for one in wanted], atol=1e-4)
        drawn = client.post("/detect?min_score=0.1", content=png(image), headers={"Accept": "image/png"})
        assert drawn.headers["content-type"] == "image/png"
        (row,) = client.post("/v1/models/detector:predict", json={"instances": [b64(image)]}).json()["predictions"]
        assert row["num_detections"] == 80
        np.testing.assert_allclose(row["detection_scores"][:80], [one["score"] for one in wanted], atol=1e-4)
