"""Following a run: TF2's continuous evaluation, under our flags and under those of model_main_tf2.py."""

from __future__ import annotations

import json
import threading
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator
from typer.testing import CliRunner

import boxwright as bw
from boxwright.cli.main import app, from_absl
from boxwright.data.convert import write_tfrecords
from boxwright.data.shapes import ShapesDataset
from boxwright.evaluation import watch as watching
from boxwright.evaluation.data import open_evaluation_data
from boxwright.evaluation.results import Evaluation
from boxwright.evaluation.settings import EvaluationSettings, WatchSettings
from boxwright.evaluation.watch import watch
from boxwright.evaluation.write import to_coco_rows
from boxwright.types import Categories, Category, Sample
from tests.evaluation.evaluate import evaluate_detector
from tests.exporters.small_detectors import with_few_layers

FIRST = EvaluationSettings(workers=0)
FAST = bw.RunSettings(evaluate=False, workers=0, checkpoint_every_n=3)


@pytest.fixture
def few_layers(small_config: Path) -> Path:
    """The small configuration with few layers, for what is not of the network's detections."""
    small_config.write_text(with_few_layers(small_config.read_text()))
    return small_config


def test_it_waits_evaluates_and_ends_with_the_last_step(few_layers: Path, tmp_path: Path) -> None:
    config = bw.load_config(few_layers)
    heard: list[tuple[int, bool, str]] = []

    def on_event(step: int, evaluation: Evaluation | None, text: str) -> None:
        heard.append((step, evaluation is not None, text))

    def train_later() -> None:
        time.sleep(1.0)
        bw.train(bw.load_config(few_layers), tmp_path / "m", FAST)

    thread = threading.Thread(target=train_later)
    thread.start()
    count = watch(config, tmp_path / "m", tmp_path / "m", FIRST, WatchSettings(wait_interval=0, timeout=60), on_event)
    thread.join()
    assert heard[-1] == (6, False, "step 6 of 6 is evaluated: done")
    assert count == len(heard) - 1
    events = EventAccumulator(str(tmp_path / "m" / "eval")).Reload()
    assert {"DetectionBoxes_Precision/mAP", "Loss/total_loss"} <= set(events.Tags()["scalars"])
    assert "eval_side_by_side_0_0" in events.Tags()["images"]
    assert events.Scalars("Loss/total_loss")[-1].step == 6


def test_it_ends_when_nothing_comes(few_layers: Path, tmp_path: Path) -> None:
    bw.train(bw.load_config(few_layers, ["train_config.num_steps=2"]), tmp_path / "m", FAST)
    heard: list[str] = []
    count = watch(
        bw.load_config(few_layers),
        tmp_path / "m",
        tmp_path,
        FIRST,
        WatchSettings(timeout=0),
        lambda _, __, text: heard.append(text),
    )
    assert count == 1
    assert heard == ["", "no new checkpoint in 0 s: done"]
    with pytest.raises(bw.CheckpointError, match="no checkpoint in 0 s"):
        watch(bw.load_config(few_layers), tmp_path / "no", tmp_path, FIRST, WatchSettings(timeout=0), lambda *_: None)
    with pytest.raises(bw.ConfigError, match=r"eval_input_reader\[3\] is missing"):
        watch(
            bw.load_config(few_layers),
            tmp_path,
            tmp_path,
            EvaluationSettings(eval_index=3),
            WatchSettings(),
            lambda *_: None,
        )


@pytest.mark.slow
def test_reader_names_its_folder(few_layers: Path, tmp_path: Path) -> None:
    config = bw.load_config(few_layers, ["eval_input_reader.name=night", "train_config.num_steps=1"])
    bw.train(config, tmp_path / "m", bw.RunSettings(workers=0))
    assert list((tmp_path / "m" / "eval" / "night").glob("events*"))
    of_training = EvaluationSettings(eval_on_train_data=True)
    assert open_evaluation_data(config, of_training, None).name == "eval_on_train"
    assert open_evaluation_data(config, of_training, None).plan.every_nth == 5


@pytest.mark.slow
def test_class_agnostic_counts_objects(small_config: Path, tmp_path: Path) -> None:
    least = "model.ssd.post_processing.batch_non_max_suppression.score_threshold=0"  # one step has learned no scores
    changes = ["train_config.num_steps=1", "eval_config.include_metrics_per_category=true", least]
    config = bw.load_config(small_config, changes)
    bw.train(config, tmp_path / "m", FAST)
    detector, _, _ = bw.restore_detector(tmp_path / "m")
    plain = evaluate_detector(config, detector)
    rows: list[Any] = []
    merged = evaluate_detector(
        config,
        detector,
        EvaluationSettings(class_agnostic=True),
        keep=lambda *of_image: rows.extend(to_coco_rows(*of_image)),
    )
    assert {n: v for n, v in merged.metrics.items() if "Loss" in n} == {
        n: v for n, v in plain.metrics.items() if "Loss" in n
    }, "losses are of the classes as they are"
    classes = [[n for n in e.metrics if "PerformanceByCategory" in n] for e in (plain, merged)]
    assert (len(classes[0]), len(classes[1])) == (4, 1)
    assert classes[1][0].endswith("object")
    assert {row["category_id"] for row in rows} == {1}


class Objects:
    """Images of shapes, all of which are labeled "object"."""

    name = "objects"
    categories = Categories((Category(0, 1, "object"),))

    def __init__(self, shapes: ShapesDataset) -> None:
        self.shapes = shapes

    def __len__(self) -> int:
        return len(self.shapes)

    def __getitem__(self, index: int) -> Sample:
        sample = self.shapes[index]
        return replace(sample, labels=np.zeros_like(sample.labels), masks=None)

    def encoded(self, index: int) -> tuple[bytes, str]:
        return self.shapes.encoded(index)


def test_data_without_classes_are_counted_without_them(mobilenet_config: Path, tmp_path: Path) -> None:
    write_tfrecords(Objects(ShapesDataset(6, seed=6, size=(64, 80))), tmp_path / "objects.record")
    (tmp_path / "objects.pbtxt").write_text('item { id: 1 name: "object" }')
    changes = [
        f"eval_input_reader.label_map_path={tmp_path}/objects.pbtxt",
        f"eval_input_reader.tf_record_input_reader.input_path={tmp_path}/objects.record",
        "train_config.num_steps=1",
        "eval_config.include_metrics_per_category=true",
    ]
    config = bw.load_config(mobilenet_config, changes)
    run = bw.train(config, tmp_path / "m", workers=0)
    detector, _, _ = bw.restore_detector(tmp_path / "m")
    # The same images with their classes, merged, have the same metrics.
    merged = evaluate_detector(
        bw.load_config(mobilenet_config, changes[2:]), detector, EvaluationSettings(class_agnostic=True)
    )
    precision = {name: value for name, value in merged.metrics.items() if not name.startswith("Loss/")}
    assert run.metrics == pytest.approx(precision, abs=1e-6)
    assert any(value > 0 for value in precision.values())
    (tmp_path / "objects.pbtxt").write_text('item { id: 1 name: "dog" }')
    with pytest.raises(bw.ConfigError, match="label 0 is 'dog' in the data"):
        evaluate_detector(config, detector)


@pytest.mark.slow
def test_step_and_learning_rate_stand_beside_the_metrics(few_layers: Path, tmp_path: Path) -> None:
    rate = """train_config { optimizer { momentum_optimizer { learning_rate { exponential_decay_learning_rate {
        initial_learning_rate: 0.02 decay_steps: 1 decay_factor: 0.5 staircase: true } } } } }"""
    bw.train(bw.load_config(few_layers, [rate, "train_config.num_steps=2"]), tmp_path / "m", workers=0)
    # Halved at each step: 0.02 × 0.5².
    lines = [json.loads(line) for line in (tmp_path / "m" / "metrics.jsonl").read_text().splitlines()]
    assert [(line["step"], line["learning_rate"]) for line in lines if "evaluation" in line] == [
        (2, pytest.approx(0.005))
    ]
    assert "learning_rate" not in bw.Run(tmp_path / "m").metrics
    events = EventAccumulator(str(tmp_path / "m" / "eval")).Reload()
    assert [(event.step, event.value) for event in events.Scalars("learning_rate")] == [(2, pytest.approx(0.005))]
    output = invoke("evaluate", "--model_dir", tmp_path / "m", "--out", tmp_path / "e", "--workers", 0)
    assert "evaluation at step 2, learning rate 0.005" in output
    written = json.loads((tmp_path / "e" / "metrics.json").read_text())
    assert (written["step"], written["learning_rate"]) == (2, pytest.approx(0.005))
    config = bw.load_config(tmp_path / "m" / "pipeline.config")
    watch(config, tmp_path / "m", tmp_path / "w", FIRST, WatchSettings(timeout=0), lambda *_: None)
    events = EventAccumulator(str(tmp_path / "w" / "eval")).Reload()
    assert [(event.step, event.value) for event in events.Scalars("learning_rate")] == [(2, pytest.approx(0.005))]


def invoke(*arguments: object) -> str:
    found = CliRunner().invoke(app, [str(argument) for argument in arguments])
    assert found.exit_code == 0, (found.output, found.exception)
    return found.output


def test_flags_of_model_main_tf2(few_layers: Path, tmp_path: Path) -> None:
    """Every flag of model_main_tf2.py is taken, or refused with a reason."""
    model_dir = tmp_path / "m"
    common = ("train", "--pipeline_config_path", few_layers, "--model_dir", model_dir)
    invoke(*common, "--num_train_steps", 2, "--checkpoint_every_n", 1, "--norecord_summaries", "--num_workers", 1)
    assert (model_dir / "ckpt-1.pt").is_file()
    tags = EventAccumulator(str(model_dir / "train")).Reload().Tags()
    assert tags["images"] == []
    assert "Loss/total_loss" in tags["scalars"]
    follow = (*common, "--checkpoint_dir", model_dir, "--num_train_steps", 2, "--eval_timeout", 1)
    output = invoke(*follow, "--sample_1_of_n_eval_examples", 2)
    assert "step 2 of 2 is evaluated" in output
    output = invoke(*follow, "--eval_on_train_data", "--sample_1_of_n_eval_on_train_examples", 6)
    assert "step 2 of 2 is evaluated" in output
    assert (model_dir / "eval" / "eval_on_train").is_dir()
    for flags, wanted in (
        (("--use_tpu",), "there is no TPU support"),
        (("--tpu_name", "x"), "there is no TPU support"),
        (("--num_workers", "4"), "on each machine run torchrun --nnodes 4 --nproc-per-node GPUS "),
        (("--engine", "ray"), "or, on a Ray cluster, by its TorchTrainer, as docs/train_on_ray.py does"),
        (("--eval_on_train_data",), "needs --checkpoint_dir"),
    ):
        found = CliRunner().invoke(app, [str(a) for a in (*common, *flags)])
        assert isinstance(found.exception, bw.ConfigError)
        assert flags[0] in str(found.exception)
        assert wanted in str(found.exception)


def test_absls_forms() -> None:
    given = ["train", "--use_tpu=false", "--record_summaries=True", "--alsologtostderr", "--set", "a=b", "--workers=2"]
    assert from_absl(given) == ["train", "--nouse_tpu", "--record_summaries", "--set", "a=b", "--workers=2"]
    assert from_absl(["--eval_on_train_data", "--eval_timeout=5"]) == ["--eval_on_train_data", "--eval_timeout=5"]


@pytest.mark.slow
def test_what_comes_while_it_waits_is_not_missed(few_layers: Path, tmp_path: Path) -> None:
    """The interval is longer than the timeout: a checkpoint that came meanwhile is evaluated all the same."""
    first = bw.load_config(few_layers, ["train_config.num_steps=2"])
    bw.train(first, tmp_path / "m", FAST)
    heard: list[int] = []

    def on_event(step: int, evaluation: Evaluation | None, _: str) -> None:
        if evaluation is not None:
            heard.append(step)
            bw.train(bw.load_config(few_layers), tmp_path / "m", FAST)

    waiting = WatchSettings(wait_interval=3, timeout=1)
    watch(bw.load_config(few_layers), tmp_path / "m", tmp_path, FIRST, waiting, on_event)
    assert heard == [2, 6]


@pytest.mark.slow
def test_damaged_newest_checkpoint_is_evaluated_once(few_layers: Path, tmp_path: Path) -> None:
    bw.train(bw.load_config(few_layers), tmp_path / "m", FAST)
    newest = tmp_path / "m" / "ckpt-6.pt"
    newest.write_bytes(newest.read_bytes()[:3000])
    heard: list[int] = []
    with pytest.warns(UserWarning, match="using the previous one"):
        count = watch(
            bw.load_config(few_layers),
            tmp_path / "m",
            tmp_path,
            FIRST,
            WatchSettings(wait_interval=0, timeout=2),
            lambda step, evaluation, _: heard.append(step) if evaluation else None,
        )
    assert (count, heard) == (1, [3])


@pytest.mark.slow
def test_checkpoint_that_appears_while_one_is_opened_is_evaluated_once(
    few_layers: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    bw.train(bw.load_config(few_layers, ["train_config.num_steps=3"]), tmp_path / "m", FAST)
    listed = iter([1])  # before ckpt-3.pt appears
    found = watching._newest_step
    monkeypatch.setattr(watching, "_newest_step", lambda folder: next(listed, None) or found(folder))
    heard: list[int] = []
    watch(
        bw.load_config(few_layers),
        tmp_path / "m",
        tmp_path,
        FIRST,
        WatchSettings(wait_interval=0, timeout=1),
        lambda step, evaluation, _: heard.append(step) if evaluation else None,
    )
    assert heard == [3]


@pytest.mark.slow
def test_flags_of_evaluate(few_layers: Path, tmp_path: Path) -> None:
    model_dir = tmp_path / "m"
    bw.train(bw.load_config(few_layers, ["train_config.num_steps=1"]), model_dir, FAST)
    output = invoke("evaluate", "--model_dir", model_dir, "--class_agnostic", "--sample_1_of_n_eval_examples", 3)
    assert "total loss" in output
    watching = (
        "evaluate",
        "--watch",
        "--model_dir",
        model_dir,
        "--eval_index",
        0,
        "--wait_interval",
        0,
        "--timeout",
        0,
    )
    output = invoke(*watching, "--pipeline_config_path", few_layers)
    assert "no new checkpoint in 0 s: done" in output
    found = CliRunner().invoke(app, [str(a) for a in watching])
    assert "add --pipeline_config_path" in str(found.exception)
