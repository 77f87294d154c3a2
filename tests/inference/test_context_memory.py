"""`boxwright context build`: embeddings of best boxes, grouped by camera and time, written and resumed."""

from __future__ import annotations

import json
from dataclasses import replace
from datetime import timedelta
from functools import cache
from pathlib import Path

import numpy as np
import pytest
from PIL import Image
from typer.testing import CliRunner

import boxwright as bw
from boxwright.base.errors import CheckpointError, DataError
from boxwright.base.files import MARKER
from boxwright.cli.main import app
from boxwright.data.tf_example import RecordFields
from boxwright.data.tfrecord_dataset import TFRecordDataset, TFSequenceDataset
from boxwright.inference import context_memory
from boxwright.inference.context_memory import box_embedding, open_embedder, time_embedding
from boxwright.pipeline.load import with_overrides
from tests.camera_traps import CATEGORIES, frames_of, write_frames
from tests.two_stage_models import FASTER_RCNN

CHANNELS = 1024
LENGTH = 11  # of a made-up memory's features
WITH_CONTEXT = RecordFields(context=True, context_image_ids=True)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Two files of frames of two cameras in two months, and a detector that was hardly trained."""
    folder = tmp_path_factory.mktemp("traps")
    frames = frames_of(2, 4, seed=3, side=64)
    moved = [replace(frame, time=frame.time + timedelta(days=31 * (number % 2))) for number, frame in enumerate(frames)]
    write_frames(folder / "a.record", moved[:5])
    write_frames(folder / "b.record", moved[5:])
    config = f"""model {{ {FASTER_RCNN.replace("score_threshold: 0.01", "")} }}
      train_config {{ batch_size: 1 num_steps: 1
        optimizer {{ momentum_optimizer {{ learning_rate {{ constant_learning_rate {{ learning_rate: 0.001 }} }} }} }} }}
      train_input_reader {{ label_map_path: "{folder}/label_map.pbtxt"
        tf_record_input_reader {{ input_path: "{folder}/a.record" }} }}"""
    (folder / "pipeline.config").write_text(config)
    bw.train(folder / "pipeline.config", folder / "run", seed=1)
    return folder


@pytest.fixture(autouse=True)
def _opened_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """Opening the detector takes most of the time of each small build."""
    monkeypatch.setattr(context_memory, "open_embedder", _open_embedder)


_open_embedder = cache(open_embedder)


def build(folder: Path, out: Path, *options: object) -> tuple[int, str]:
    words = ["context", "build", folder / "a.record", folder / "b.record", "--checkpoint", folder / "run"]
    result = CliRunner().invoke(app, [str(word) for word in (*words, "--out", out, *options)])
    if result.exception is not None and not isinstance(result.exception, SystemExit):
        raise result.exception
    return result.exit_code, result.output


def test_records_have_the_embeddings_of_their_camera_and_month(folder: Path, tmp_path: Path) -> None:
    """Each is of the best box: its pooled features, center and size, and the date; computed here by another way."""
    status, output = build(folder, tmp_path / "out", "--output_type", "tf_example", "--banks")
    assert status == 0
    assert "2 memory banks, one per camera" in output
    assert "8 images with context in 2 files" in output
    assert sorted(path.name for path in (tmp_path / "out").iterdir() if path.name[0] != ".") == [
        "_plan.json", "banks", "context.record-00000-of-00002", "context.record-00001-of-00002",
    ]  # fmt: skip
    dataset = TFRecordDataset([tmp_path / "out" / "context.record-*"], CATEGORIES, WITH_CONTEXT)
    samples = {sample.id: sample for sample in (dataset[index] for index in range(len(dataset)))}
    frames = frames_of(2, 4, seed=3, side=64)
    assert list(samples) == [frame.sample.id for frame in frames], "in the order of the input"
    whole = bw.load(folder / "run", config=_with_features(folder)).detector
    for number, frame in enumerate(frames):
        found = samples[frame.sample.id]
        camera, odd = number // 4, number % 2
        assert found.context_image_ids == tuple(f"camera3-{camera}-{n}" for n in (odd, odd + 2))
        assert found.context is not None
        assert found.context.shape == (2, CHANNELS + 9)
        (best,) = whole.detect([frame.sample.image])
        assert best.features is not None
        expected = np.concatenate([
            best.features[0].mean((1, 2)).numpy(),
            box_embedding(best.boxes[0].numpy(), (64, 64)),
            time_embedding(frame.time + timedelta(days=31 * odd)),
        ])  # fmt: skip
        own = found.context_image_ids.index(frame.sample.id)
        np.testing.assert_allclose(found.context[own], expected, rtol=1e-3, atol=1e-4)
        if odd:
            newest = np.load(tmp_path / "out" / "banks" / f"camera3-{camera}.npy")
            assert np.array_equal(newest, found.context), "of its last month"


def _with_features(folder: Path) -> object:
    config = bw.load_config(folder / "pipeline.config")
    return with_overrides(config, ["model.faster_rcnn.output_final_box_features=true"])


def test_clips_hold_the_same(folder: Path, tmp_path: Path) -> None:
    """Sequences of at most two frames, each with the context of its group, whichever output file it is in."""
    assert build(folder, tmp_path / "one", "--output_type", "tf_example", "--time_horizon", "all")[0] == 0
    assert build(folder, tmp_path / "clips", "--clip_length", 3, "--time_horizon", "all")[0] == 0
    single = TFRecordDataset([tmp_path / "one" / "context.record-*"], CATEGORIES, WITH_CONTEXT)
    clips = TFSequenceDataset([tmp_path / "clips" / "context.record-*"], CATEGORIES, WITH_CONTEXT)
    assert len(clips.records) == 4, "two cameras of four images"
    by_id = {sample.id: sample for sample in (single[index] for index in range(len(single)))}
    assert len(clips) == len(by_id) == 8
    for index in range(len(clips)):
        frame = clips[index]
        other = by_id[frame.id]
        assert frame.context is not None
        assert other.context is not None
        np.testing.assert_allclose(frame.context, other.context, rtol=1e-4, atol=1e-5)
        assert frame.context_image_ids == other.context_image_ids
        assert len(frame.context) == 4
        np.testing.assert_allclose(frame.boxes, other.boxes, rtol=1e-6)
        assert np.array_equal(frame.image, other.image)


def test_what_is_remembered(folder: Path, tmp_path: Path) -> None:
    options = ("--output_type", "tf_example", "--time_horizon", "all")
    assert build(folder, tmp_path / "few", *options, "--every_nth", 3)[0] == 0
    few = TFRecordDataset([tmp_path / "few" / "context.record-*"], CATEGORIES, WITH_CONTEXT)
    # By date, those of even numbers come before those of odd ones, which are a month later.
    assert few[0].context_image_ids == ("camera3-0-0", "camera3-0-3")
    status, output = build(folder, tmp_path / "none", *options, "--min_score", 1)
    assert status == 0
    assert "8 of them have none" in output
    none = TFRecordDataset([tmp_path / "none" / "context.record-*"], CATEGORIES, WITH_CONTEXT)
    assert all(none[index].context_image_ids == () for index in range(8))
    assert build(folder, tmp_path / "parts", *options, "--max_features", 3)[0] == 0
    parts = TFRecordDataset([tmp_path / "parts" / "context.record-*"], CATEGORIES, WITH_CONTEXT)
    assert parts[0].context_image_ids == ("camera3-0-0", "camera3-0-2"), "four are divided into two and two"


def test_a_killed_run_is_resumed(folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Files that are there are not computed again; the result is that of one run, byte for byte."""
    assert build(folder, tmp_path / "whole")[0] == 0
    embedded: list[Path] = []
    real = context_memory._embed_file

    def dies(job: context_memory.ContextJob, unit: int, embed: context_memory.Embed) -> int:
        if embedded:
            raise KeyboardInterrupt
        embedded.append(job.embeddings(unit))
        return real(job, unit, embed)

    monkeypatch.setattr(context_memory, "_embed_file", dies)
    with pytest.raises((KeyboardInterrupt, SystemExit)):
        if build(folder, tmp_path / "out")[0]:
            raise KeyboardInterrupt
    assert (tmp_path / "out" / MARKER).exists()
    monkeypatch.setattr(context_memory, "_embed_file", real)
    before = embedded[0].stat().st_mtime_ns

    def keeps(job: context_memory.ContextJob) -> None:
        assert job.embeddings(0).stat().st_mtime_ns == before

    monkeypatch.setattr(context_memory, "remove_embeddings", keeps)
    assert build(folder, tmp_path / "out")[0] == 0
    assert not (tmp_path / "out" / MARKER).exists()
    for name in ("context.record-00000-of-00002", "context.record-00001-of-00002"):
        assert (tmp_path / "out" / name).read_bytes() == (tmp_path / "whole" / name).read_bytes()
    assert "complete since an earlier run" in build(folder, tmp_path / "out")[1]
    with pytest.raises(DataError, match="cannot be resumed, as it was started with other every_nth, time_horizon"):
        build(folder, tmp_path / "out", "--every_nth", 2, "--time_horizon", "day")


def test_what_cannot_be_is_one_line(folder: Path, tmp_path: Path) -> None:
    with pytest.raises(bw.BoxwrightError, match="--time_horizon decade: expected all, year, month"):
        build(folder, tmp_path / "out", "--time_horizon", "decade")
    (tmp_path / "other").mkdir()
    (tmp_path / "other" / "context.record-00000-of-00001").touch()
    with pytest.raises(DataError, match="has context records of something else"):
        build(folder, tmp_path / "other")
    config = json.dumps({"model": {"ssd": {"num_classes": 1}}})
    (tmp_path / "ssd.json").write_text(config)
    with pytest.raises(CheckpointError):
        open_embedder(tmp_path / "ssd.json")


@pytest.mark.slow  # two processes import PyTorch twice
def test_workers_write_the_same(folder: Path, tmp_path: Path) -> None:
    assert build(folder, tmp_path / "one")[0] == 0
    assert build(folder, tmp_path / "two", "--workers", 2)[0] == 0
    one, two = (
        TFSequenceDataset([tmp_path / name / "context.record-*"], CATEGORIES, WITH_CONTEXT) for name in ("one", "two")
    )
    assert len(one) == len(two) == 8
    for index in range(8):
        assert one[index].id == two[index].id
        np.testing.assert_allclose(one[index].context, two[index].context, rtol=1e-4, atol=1e-5)


def test_predict_attends_to_a_memory(folder: Path, tmp_path: Path) -> None:
    """What it writes is what `bw.load(…, context=…)` finds, and not what the detector finds in the picture alone."""
    memory = np.random.default_rng(1).normal(size=(3, LENGTH)).astype(np.float32)
    np.save(tmp_path / "camera.npy", memory)
    text = (folder / "pipeline.config").read_text()
    with_context = f"faster_rcnn {{ context_config {{ context_feature_length: {LENGTH} max_num_context_features: 5 }}"
    text = text.replace("train_input_reader {", "train_input_reader { load_context_features: true")
    (tmp_path / "pipeline.config").write_text(text.replace("faster_rcnn {", with_context, 1))
    bw.train(tmp_path / "pipeline.config", tmp_path / "run", seed=1, workers=0, evaluate=False, preflight=False)
    picture = np.random.default_rng(2).integers(0, 256, (64, 64, 3), np.uint8)
    Image.fromarray(picture).save(tmp_path / "picture.png")
    scores = []
    for options in ((), ("--context", tmp_path / "camera.npy")):
        words = ["predict", tmp_path / "picture.png", "--model_dir", tmp_path / "run", "--out", tmp_path / "out"]
        words += ["--min_score", 0, "--json", *options]
        assert CliRunner().invoke(app, [str(word) for word in words]).exit_code == 0
        rows = json.loads((tmp_path / "out" / "detections.json").read_text())
        scores.append([row["score"] for row in rows])
    (found,) = bw.load(tmp_path / "run", context=tmp_path / "camera.npy").detect([picture])
    assert len(found) > 0
    assert scores[1] == pytest.approx(found.scores.tolist(), abs=1e-4)
    assert scores[0] != pytest.approx(scores[1][: len(scores[0])], abs=1e-4)
