"""From data to a configuration that trains on them."""

from __future__ import annotations

import shutil
import subprocess
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import pytest
import timm
import torch
from safetensors.torch import save_file

import boxwright as bw
from boxwright.base.read_settings import ReadSettings
from boxwright.config.load import dump_message
from boxwright.evaluation.data import open_evaluation_data
from boxwright.evaluation.settings import EvaluationSettings
from boxwright.pipeline import messages as m
from boxwright.pipeline.input_reader import build_dataset
from boxwright.training import rehearsal
from boxwright.training.autoconfig.choices import InitSettings
from boxwright.training.autoconfig.start import init_config, start_run
from boxwright.training.rehearsal import DryRunReport, fitting_batch
from tests import forked
from tests.training.autoconfig.datasets import coco, roboflow_coco, roboflow_yolo, tfrecords, voc, yolo

QUICK = InitSettings(steps=False)


@pytest.fixture(autouse=True)
def _forked_trials(monkeypatch: pytest.MonkeyPatch) -> None:
    """Try steps in a forked process; `tests/training/preflight/test_doctor.py` starts it as it is started."""
    started = SimpleNamespace(run=forked.run, TimeoutExpired=subprocess.TimeoutExpired)
    monkeypatch.setattr(rehearsal, "subprocess", started)


MADE: dict[str, Callable[[Path], Path]] = {
    "yolo": yolo,
    "roboflow_yolo": roboflow_yolo,
    "roboflow_coco": roboflow_coco,
    "coco": coco,
    "tfrecords": tfrecords,
    "voc": voc,
}


# What reads the other formats is tested in tests/data, and their recognition below.
@pytest.mark.slow
@pytest.mark.parametrize("name", MADE)
def test_what_is_written_trains(name: str, tmp_path: Path) -> None:
    data = MADE[name](tmp_path / "data")
    out = tmp_path / "out" / "pipeline.config"
    started = init_config(data, out, QUICK)
    assert started.files[-1] == started.config == out
    assert all(path.is_file() for path in started.files)
    assert {choice.what for choice in started.choices} - {"", "held out"} == {
        "data", "account", "split", "classes", "model", "input", "augmentation", "anchors", "batch", "length",
    }  # fmt: skip
    config = bw.load_config(out)
    train = build_dataset(config.train_input_reader, "train_input_reader")
    held_out = open_evaluation_data(config, EvaluationSettings(), train.categories).dataset
    counts = (16, 4) if name == "voc" else (20, 6)
    assert (len(train), len(held_out)) == counts
    run = bw.train(
        config,
        tmp_path / "model",
        device="cpu",
        workers=0,
        overrides=["train_config.num_steps=1", "model.ssd.image_resizer.fixed_shape_resizer.height=64"],
    )
    assert run.step == 1
    assert run.metrics


def test_the_same_bytes_twice_and_nothing_overwritten(tmp_path: Path) -> None:
    data = voc(tmp_path / "data")
    out = tmp_path / "pipeline.config"
    first = init_config(data, out, QUICK)
    before = {path: path.read_bytes() for path in first.files}
    assert {path.name for path in before} == {
        "pipeline.config",
        "pipeline.label_map.pbtxt",
        "pipeline.train.txt",
        "pipeline.val.txt",
    }
    init_config(data, out, QUICK)
    assert {path: path.read_bytes() for path in first.files} == before
    out.write_text("my own")
    with pytest.raises(bw.OutputError, match=r"pipeline\.config already exists, with other content; --force"):
        init_config(data, out, QUICK)
    assert out.read_text() == "my own"
    init_config(data, out, QUICK, force=True)
    assert out.read_bytes() == before[out]
    with pytest.raises(bw.OutputError, match="is a folder; name a file in it"):
        init_config(data, tmp_path, QUICK)


def test_requested_settings(tmp_path: Path) -> None:
    data = yolo(tmp_path / "data")
    settings = InitSettings(imgsz="96x64", batch="4", epochs=3, steps=False)
    config = bw.load_config(init_config(data, tmp_path / "a.config", settings).config)
    assert config.model is not None
    assert config.model.ssd is not None
    assert config.model.ssd.image_resizer is not None
    resizer = config.model.ssd.image_resizer.fixed_shape_resizer
    assert resizer is not None
    assert (resizer.height, resizer.width) == (64, 96)
    assert config.model.ssd.num_classes == 4
    assert config.train_config is not None
    # 20 images three times, four a step.
    assert (config.train_config.batch_size, config.train_config.num_steps) == (4, 15)
    for wrong, message in (
        (InitSettings(imgsz="large"), "imgsz large: expected a side in pixels"),
        (InitSettings(imgsz="8"), "minimum 32"),
        (InitSettings(batch="some"), "batch some: expected a number of images, or auto"),
        (InitSettings(model="ssd_mobilenet_v2_fpnlite"), "did you mean ssd_mobilenet_v2_fpnlite_"),
    ):
        with pytest.raises(bw.ConfigError, match=message):
            init_config(data, tmp_path / "b.config", wrong)
    assert not (tmp_path / "b.config").exists()


@pytest.mark.slow_cases("efficientdet_d0")
@pytest.mark.parametrize("model", ["ssd_mobilenet_v2_fpnlite_320", "faster_rcnn_resnet50_v1_640", "efficientdet_d0"])
def test_presets_of_the_zoo(model: str, tmp_path: Path) -> None:
    data = yolo(tmp_path / "data")
    settings = InitSettings(model=model, batch="2", epochs=10, steps=False)
    config = bw.load_config(init_config(data, tmp_path / "a.config", settings).config)
    base = bw.load_config(f"preset:{model}")
    assert config.train_config is not None
    assert base.train_config is not None
    assert (config.train_config.batch_size, config.train_config.num_steps) == (2, 100)
    assert config.train_config.optimizer is not None
    kind = config.train_config.optimizer.which("optimizer")
    rate = getattr(config.train_config.optimizer, str(kind)).learning_rate.cosine_decay_learning_rate
    own = getattr(base.train_config.optimizer, str(kind)).learning_rate.cosine_decay_learning_rate
    assert rate.total_steps == pytest.approx(own.total_steps * 100 / base.train_config.num_steps, abs=1)
    assert rate.learning_rate_base == pytest.approx(own.learning_rate_base * 2 / base.train_config.batch_size, rel=1e-5)
    assert len(config.train_config.data_augmentation_options) == len(base.train_config.data_augmentation_options)
    detector = bw.build_detector(config)
    assert detector.num_classes == 4


def test_a_detector_that_learns_masks_reads_them(tmp_path: Path) -> None:
    """In every format that has masks; a run's own configuration keeps that for other data."""
    for make, extra in ((coco, m.InstanceMaskType.DEFAULT), (tfrecords, m.InstanceMaskType.PNG_MASKS)):
        (tmp_path / make.__name__).mkdir()
        data, out = make(tmp_path / make.__name__), tmp_path / f"{make.__name__}.config"
        settings = InitSettings(model="mask_rcnn_mobilenet_v3_fpn_shapes", batch="2", epochs=1, steps=False)
        config = bw.load_config(init_config(data, out, settings).config)
        readers = [config.train_input_reader, *config.eval_input_reader]
        assert len(readers) == 2
        for reader in readers:
            assert reader is not None
            assert reader.load_instance_masks
            assert reader.has("mask_type") == (extra == m.InstanceMaskType.PNG_MASKS)
            sample = build_dataset(reader, "reader")[0]
            assert sample.masks is not None
            assert sample.masks.any()


def test_a_center_net_without_anchors(tmp_path: Path) -> None:
    data = yolo(tmp_path / "data")
    settings = InitSettings(model="center_net_resnet101_v2_512", imgsz="96x64", batch="2", epochs=10, steps=False)
    started = init_config(data, tmp_path / "a.config", settings)
    assert {choice.what for choice in started.choices if choice.what} == {
        "data",
        "account",
        "held out",
        "split",
        "classes",
        "model",
        "input",
        "batch",
        "length",
    }
    config = bw.load_config(started.config)
    assert config.model is not None
    assert config.model.center_net is not None
    assert config.model.center_net.num_classes == 4
    assert config.model.center_net.image_resizer is not None
    assert config.model.center_net.image_resizer.has("fixed_shape_resizer")
    assert config.train_config is not None
    assert config.train_config.optimizer is not None
    adam = config.train_config.optimizer.adam_optimizer
    assert adam is not None
    assert adam.learning_rate is not None
    manual = adam.learning_rate.manual_step_learning_rate
    assert manual is not None
    # 90,000 and 120,000 of 140,000 steps, stretched to 100.
    assert [row.step for row in manual.schedule] == [64, 86]
    assert "anchor" not in started.config.read_text()
    with torch.device("meta"):
        assert bw.build_detector(config).num_classes == 4


def test_a_preset_that_learns_keypoints_is_refused_before_anything_is_written(tmp_path: Path) -> None:
    settings = InitSettings(model="center_net_resnet50_v2_512_keypoints")
    with pytest.raises(
        bw.ConfigError, match="_512_keypoints learns keypoints, which init does not look for; choose one"
    ):
        init_config(yolo(tmp_path / "data"), tmp_path / "out" / "a.config", settings)
    assert not (tmp_path / "out").exists()


@pytest.mark.slow
def test_a_batch_that_fits_is_tried(tmp_path: Path) -> None:
    started = init_config(yolo(tmp_path / "data"), tmp_path / "a.config", InitSettings(imgsz="64"))
    (batch,) = [choice for choice in started.choices if choice.what == "batch"]
    assert batch.chosen == "5 images"  # a quarter of 20
    assert "fits in the" in batch.why


def test_a_run_starts_from_data_and_is_resumed(tmp_path: Path) -> None:
    data = yolo(tmp_path / "data")
    first = start_run(data, tmp_path / "model", QUICK)
    assert first[0] == tmp_path / "model" / "init.config"
    assert first[1]
    shutil.rmtree(tmp_path / "data" / "images" / "val")  # nothing is read again
    assert start_run(data, tmp_path / "model", QUICK) == (first[0], ())
    for other in (
        InitSettings(model="efficientdet_d0", steps=False),
        replace(QUICK, reading=ReadSettings(ignore_exif=True)),
    ):
        with pytest.raises(bw.ConfigError, match="was written for other data or another preset"):
            start_run(data, tmp_path / "model", other)
    with pytest.raises(bw.ConfigError, match="was written for other data or another preset"):
        start_run(tmp_path / "other", tmp_path / "model", QUICK)


@pytest.mark.slow
def test_train_takes_data(tmp_path: Path) -> None:
    data = yolo(tmp_path / "data")
    small = [f"model.ssd.image_resizer.fixed_shape_resizer.{side}=64" for side in ("height", "width")]
    run = bw.train(data=data, out=tmp_path / "model", epochs=0.2, device="cpu", workers=0, overrides=small)
    assert run.step == 1
    assert run.model().names == ["circle", "square", "triangle", "star"]
    # The schedule is of the run's length: 4 images are a fifth of an epoch, in one step of 5.
    config = bw.load_config(tmp_path / "model" / "init.config")
    assert config.train_config is not None
    assert config.train_config.optimizer is not None
    assert config.train_config.optimizer.adam_optimizer is not None
    rate = config.train_config.optimizer.adam_optimizer.learning_rate
    assert rate is not None
    assert rate.cosine_decay_learning_rate is not None
    assert rate.cosine_decay_learning_rate.total_steps == 1


def test_a_folder_with_another_run_is_left_alone(small_config: Path, tmp_path: Path) -> None:
    data = yolo(tmp_path / "data")
    bw.train(small_config, tmp_path / "model", overrides=["train_config.num_steps=1"], evaluate=False, workers=0)
    with pytest.raises(bw.ConfigError, match="contains a run of another configuration"):
        bw.train(data=data, out=tmp_path / "model", epochs=1)
    assert not (tmp_path / "model" / "init.config").exists()


def test_other_processes_wait_for_the_first(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from boxwright.training.autoconfig import start

    monkeypatch.setenv("RANK", "1")
    monkeypatch.setattr(start, "_PATIENCE", 0.3)
    with pytest.raises(bw.TrainingError, match="the first process has not written it"):
        start_run(yolo(tmp_path / "data"), tmp_path / "model", QUICK)


def test_names_that_text_must_escape(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    Path("C:\\models\\a.tar.gz").touch()
    data = voc(tmp_path / "my data")
    out = tmp_path / 'a "quoted" folder' / "pipeline.config"
    settings = InitSettings(weights="C:\\models\\a.tar.gz", steps=False)
    config = bw.load_config(init_config(data, out, settings).config)
    assert config.train_config is not None
    assert config.train_config.fine_tune_checkpoint == "C:\\models\\a.tar.gz"
    assert len(build_dataset(config.train_input_reader, "train_input_reader")) == 16
    out.write_bytes(b"\xff\xfe")
    with pytest.raises(bw.OutputError, match="already exists"):
        init_config(data, out, settings)


@pytest.mark.slow
def test_minutes_choose_the_length(tmp_path: Path) -> None:
    started = init_config(yolo(tmp_path / "data"), tmp_path / "a.config", InitSettings(imgsz="64", minutes=0.001))
    config = bw.load_config(started.config)
    assert config.train_config is not None
    assert config.train_config.num_steps == 50  # the least
    with pytest.raises(bw.ConfigError, match="epochs and minutes"):
        init_config(tmp_path / "data", tmp_path / "b.config", InitSettings(minutes=1, epochs=1))


@pytest.mark.slow
def test_steps_are_timed_with_the_changes_that_the_run_will_have(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """`train DATA --minutes 2 --set …`: another network has another time, and takes other weights."""
    timed: list[m.TrainEvalPipelineConfig] = []

    def timing(config: m.TrainEvalPipelineConfig, most: int, device: str, *, tried: int) -> tuple[int, DryRunReport]:
        timed.append(config)
        assert tried == most, "the batch that the run will have"
        return fitting_batch(config, most, device, tried=tried)

    monkeypatch.setattr("boxwright.training.autoconfig.start.fitting_batch", timing)
    data, change = yolo(tmp_path / "data"), "model.ssd.feature_extractor.fpn.additional_layer_depth=16"
    settings = InitSettings(imgsz="64", minutes=0.001)
    path, _ = start_run(data, tmp_path / "run", settings, overrides=[change])
    assert [config.model.ssd.feature_extractor.fpn.additional_layer_depth for config in timed] == [16]  # type: ignore[union-attr]
    assert "additional_layer_depth" not in path.read_text()
    bw.train(path, tmp_path / "run", overrides=[change, "train_config.num_steps=1"], workers=0, preflight=False)
    settings = replace(settings, minutes=None, steps=False, weights=str(tmp_path / "run"))
    reasons = []
    for overrides in ([], [change]):
        _, choices = start_run(data, tmp_path / f"from-{len(overrides)}", settings, overrides=overrides)
        reasons += [choice.why for choice in choices if choice.what == "weights"]
    assert reasons[0].startswith("they do not fit this network")
    assert reasons[1].startswith("a detector's")


def test_data_without_an_object(tmp_path: Path) -> None:
    data = yolo(tmp_path / "data")
    for path in (data / "labels" / "train").iterdir():
        path.write_text("")
    with pytest.raises(bw.DataError, match="none of 20 images has an object"):
        init_config(data, tmp_path / "a.config", QUICK)
    assert not (tmp_path / "a.config").exists()


def test_data_that_changed_since_they_were_split(tmp_path: Path) -> None:
    data = voc(tmp_path / "data")
    config = bw.load_config(init_config(data, tmp_path / "a.config", QUICK).config)
    first = sorted((data / "Annotations").iterdir())[0]
    first.unlink()
    with pytest.raises(bw.DataError, match="split them again with boxwright init"):
        dataset = build_dataset(config.train_input_reader, "train_input_reader")
        for number in range(len(dataset)):
            dataset[number]


def test_a_detectors_weights_change_the_recipe(tmp_path: Path) -> None:
    """A quarter of the rate, a cosine to 0, fewer epochs, kept statistics and a backbone that waits; or what is asked."""
    data, settings = yolo(tmp_path / "data"), InitSettings(steps=False, batch="4")
    scratch = bw.load_config(init_config(data, tmp_path / "scratch.config", settings).config)
    bw.train(
        scratch, tmp_path / "run", overrides=["train_config.num_steps=1"], workers=0, evaluate=False, preflight=False
    )
    started = init_config(data, tmp_path / "tuned.config", replace(settings, weights=str(tmp_path / "run")))
    tuned = bw.load_config(started.config)
    first, second = scratch.train_config, tuned.train_config
    assert first is not None
    assert second is not None
    assert base_rate(second) == pytest.approx(base_rate(first) / 4)
    assert second.num_steps < first.num_steps
    assert [(list(one.variables), one.until_step) for one in second.freeze_stage] == [
        (["^backbone\\."], round(second.num_steps / 10))
    ]
    assert tuned.model is not None
    assert tuned.model.ssd is not None
    assert tuned.model.ssd.freeze_batchnorm
    said = {choice.what: choice for choice in started.choices}
    assert said["weights"].why.startswith("a detector's: ")
    assert said["fine-tuning"].why.startswith("rates × 0.25, a cosine to 0, batch normalization keeps")
    fresh = init_config(data, tmp_path / "none.config", replace(settings, weights="none"))
    assert bw.load_config(fresh.config).train_config.num_steps == first.num_steps  # type: ignore[union-attr]


@pytest.mark.parametrize(
    "preset",
    [
        "d_fine_n_coco",
        *(
            pytest.param(name, marks=pytest.mark.slow)
            for name in ("faster_rcnn_resnet50_v1_640", "refinedet_mobilenet_v2_bccd", "center_net_resnet101_v2_512")
        ),
    ],
)
def test_a_recipe_from_weights_in_every_family(preset: str, tmp_path: Path) -> None:
    """D-FINE's constant 8e-4 becomes a cosine from 2e-4; what keeps statistics is written where the family has it."""
    detector = bw.build_detector(bw.load_config(f"preset:{preset}"))
    save_file(detector.network.state_dict(), tmp_path / "weights.safetensors")
    settings = InitSettings(steps=False, batch="4", model=preset, weights=str(tmp_path / "weights.safetensors"))
    config = bw.load_config(init_config(yolo(tmp_path / "data"), tmp_path / "tuned.config", settings).config)
    built = bw.build_detector(config)
    assert config.train_config is not None
    assert config.train_config.freeze_stage
    if preset == "d_fine_n_coco":
        assert built.network.frozen_statistics
        text = dump_message(config.train_config.optimizer or m.Optimizer())
        assert "learning_rate_base: 0.0002" in text
        assert "end_factor: 0" in text


def base_rate(train: m.TrainConfig) -> float:
    assert train.optimizer is not None
    assert train.optimizer.adam_optimizer is not None
    cosine = train.optimizer.adam_optimizer.learning_rate.cosine_decay_learning_rate  # type: ignore[union-attr]
    assert cosine is not None
    return float(cosine.learning_rate_base)


def test_a_classifiers_weights_leave_the_recipe(tmp_path: Path) -> None:
    """As do those that do not fit: the network may still be changed on the command line."""
    data, settings = yolo(tmp_path / "data"), InitSettings(steps=False, batch="4", model="ssd_mobilenet_v2_fpnlite_320")
    body = timm.create_model("mobilenetv2_100")
    save_file(dict(body.state_dict()), tmp_path / "backbone.safetensors")
    resnet = timm.create_model("resnet18")
    save_file(dict(resnet.state_dict()), tmp_path / "other.safetensors")
    plain = bw.load_config(init_config(data, tmp_path / "plain.config", settings).config)
    for name, why in (("backbone", "the backbone's alone: "), ("other", "they do not fit this network: ")):
        weights = str(tmp_path / f"{name}.safetensors")
        started = init_config(data, tmp_path / f"{name}.config", replace(settings, weights=weights))
        found = bw.load_config(started.config).train_config
        assert found is not None
        assert found.optimizer == plain.train_config.optimizer  # type: ignore[union-attr]
        assert next(choice.why for choice in started.choices if choice.what == "weights").startswith(why)
