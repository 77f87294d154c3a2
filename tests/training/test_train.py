"""Runs: that they resume exactly, survive kills, and stop with one clear error."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import boxwright as bw
from boxwright.weights.store import CheckpointStore, read_checkpoint
from tests.conftest import Silent, small_config_text
from tests.training.checkpoints import same
from tests.training.test_step import FROZEN

OWN_INITIALIZERS = True

QUIET = {"evaluate": False, "workers": 0, "preflight": False}


def weights(model_dir: Path) -> dict[str, torch.Tensor]:
    found = CheckpointStore(model_dir).latest()
    assert found is not None
    return dict(found[1]["network"])


def test_resumed_run_ends_with_the_same_bits(small_config: Path, tmp_path: Path) -> None:
    optimizer = "train_config.optimizer"
    ema = [f"{optimizer}.{field}" for field in ("use_moving_average=true", "average_statistics=true")]
    ema.append(f"{optimizer}.moving_average_ramp_steps=4")
    config = bw.load_config(small_config, ema)
    assert bw.train(config, tmp_path / "whole", bw.RunSettings(**QUIET)).step == 6
    part = bw.load_config(small_config, [*ema, "train_config.num_steps=2"])
    bw.train(part, tmp_path / "parts", bw.RunSettings(**QUIET))
    bw.train(config, tmp_path / "parts", bw.RunSettings(**QUIET, log_every_n=1))
    assert same(weights(tmp_path / "whole"), weights(tmp_path / "parts"))
    whole, parts = (read_checkpoint(tmp_path / name / "ckpt-6.pt") for name in ("whole", "parts"))
    assert same(whole["average"], parts["average"])
    assert any(name.endswith("running_var") for name in whole["average"])


@pytest.mark.slow  # tests/data/test_augmentation_and_batches.py compares the batches that workers make
def test_workers_change_nothing(small_config: Path, tmp_path: Path) -> None:
    config = bw.load_config(small_config, ["train_config.num_steps=3"])
    for workers in (0, 2):
        bw.train(config, tmp_path / str(workers), bw.RunSettings(evaluate=False, workers=workers))
    assert same(weights(tmp_path / "0"), weights(tmp_path / "2"))


def test_run_leaves_log_configuration_and_metrics(small_config: Path, tmp_path: Path) -> None:
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    config = bw.load_config(small_config)
    messages: list[str] = []
    first: list[str] = []

    class Listener(Silent):
        def on_event(self, step: int, event: Any) -> None:
            if step == 1:
                first.append(type(event).__name__)
            super().on_event(step, event)

        def message(self, text: str) -> None:
            messages.append(text)

        def evaluated(self, step: int, evaluation: Any) -> None:
            messages.append(f"evaluated at {step}: {evaluation.metrics['DetectionBoxes_Precision/mAP']:.2f}")

    bw.train(
        config,
        tmp_path / "m",
        bw.RunSettings(workers=0, preflight=False, log_every_n=2, checkpoint_every_n=4),
        {"test": Listener()},
    )
    assert bw.load_config(tmp_path / "m" / "pipeline.config") == config
    lines = [json.loads(line) for line in (tmp_path / "m" / "metrics.jsonl").read_text().splitlines()]
    assert [line["step"] for line in lines] == [1, 2, 4, 4, 6, 6]
    events = EventAccumulator(str(tmp_path / "m" / "train")).Reload()
    wanted = {"Loss/localization_loss", "Loss/classification_loss", "Loss/regularization_loss", "Loss/total_loss"}
    anchors = {f"AvgNum{what}PerImage" for what in ("GroundtruthBoxes", "GroundtruthBoxesMatched")}
    anchors |= {f"AvgNum{what}AnchorsPerImage" for what in ("Positive", "Negative", "Ignored")}
    wanted |= {f"TargetAssignment/Loss/TargetAssignment/{name}" for name in anchors}
    wanted |= {"learning_rate", "steps_per_sec", "global_norm/gradient_norm"}
    assert wanted == set(events.Tags()["scalars"])
    assert {"Loss/PositiveAnchorLossCDF", "Loss/NegativeAnchorLossCDF"} < set(events.Tags()["images"])
    assert "train_input_images/0" in events.Tags()["images"]
    evaluated = EventAccumulator(str(tmp_path / "m" / "eval")).Reload()
    assert {"DetectionBoxes_Precision/mAP", "Loss/total_loss"} < set(evaluated.Tags()["scalars"])
    assert "eval_side_by_side_0_0" in evaluated.Tags()["images"]
    summary = json.loads((tmp_path / "m" / "performance_summary.json").read_text())
    assert set(summary["metrics"]) == {"steps_per_sec", "steps_per_sec_p50", "steps_per_sec_max", "last_batch_loss"}
    assert summary["metrics"]["last_batch_loss"] == lines[-2]["Loss/total_loss"]
    assert summary["mixed_precision"] == "fp32"
    assert [text[:14] for text in messages if text.startswith("evaluated")] == ["evaluated at 4", "evaluated at 6"]
    assert first == ["Scalars", "Described", "Inputs"]  # the numbers before pictures are drawn
    assert [path.name for path in CheckpointStore(tmp_path / "m").paths()] == ["ckpt-4.pt", "ckpt-6.pt"]
    metrics = bw.evaluate(config, tmp_path / "m")
    assert set(metrics) >= {"DetectionBoxes_Precision/mAP", "DetectionBoxes_Recall/AR@100"}


@pytest.mark.slow
def test_learns_a_handful_of_images(small_config: Path, tmp_path: Path) -> None:
    """A detector that is right reaches near perfection on the images it is trained on."""
    config = bw.load_config(
        small_config,
        [
            "train_config.num_steps=350",
            "train_config.batch_size=6",
            "train_config.data_augmentation_options=[]",
            "train_config.optimizer={adam_optimizer{learning_rate{cosine_decay_learning_rate{"
            "learning_rate_base:0.004 total_steps:350 warmup_steps:20 warmup_learning_rate:0.001}}} use_moving_average: false}",
        ],
    )
    reader = config.eval_input_reader[0]
    assert config.train_input_reader is not None
    config.train_input_reader.tf_record_input_reader = reader.tf_record_input_reader
    bw.train(config, tmp_path / "m", bw.RunSettings(**QUIET))
    metrics = bw.evaluate(config, tmp_path / "m")
    assert metrics["DetectionBoxes_Precision/mAP@.50IOU"] > 0.95


@pytest.mark.slow_cases("1")
@pytest.mark.parametrize("workers", [0, 1])
def test_a_damaged_record_is_one_clear_error(
    small_config: Path, shapes_data: Path, tmp_path: Path, workers: int
) -> None:
    data = bytearray((shapes_data / "val.record").read_bytes())
    data[200] ^= 1
    (tmp_path / "bad.record").write_bytes(data)
    path = f"train_input_reader.tf_record_input_reader.input_path={tmp_path}/bad.record"
    with pytest.raises(bw.DataError, match="record 0 at byte 0: checksum") as caught:
        bw.train(bw.load_config(small_config, [path]), tmp_path / "m", bw.RunSettings(evaluate=False, workers=workers))
    assert "\n" not in str(caught.value)


@pytest.mark.slow
def test_an_error_on_the_way_keeps_the_steps_so_far(small_config: Path, shapes_data: Path, tmp_path: Path) -> None:
    """Of six records the last is damaged; batches of two, in order: two steps are good."""
    data = bytearray((shapes_data / "val.record").read_bytes())
    data[-200] ^= 1
    (tmp_path / "bad.record").write_bytes(data)
    overrides = [
        f"train_input_reader.tf_record_input_reader.input_path={tmp_path}/bad.record",
        "train_input_reader.shuffle=false",
        "train_config.batch_size=2",
    ]
    with pytest.raises(bw.DataError, match="record 5 at byte"):
        bw.train(bw.load_config(small_config, overrides), tmp_path / "m", bw.RunSettings(**QUIET))
    assert [path.name for path in CheckpointStore(tmp_path / "m").paths()] == ["ckpt-2.pt"]


@pytest.mark.slow_cases("model.ssd.feature_extractor.depth_multiplier=0.5-another network .*; use another model_dir")
@pytest.mark.parametrize(
    ("override", "wanted"),
    [
        ("model.ssd.feature_extractor.depth_multiplier=0.5", "another network .*; use another model_dir"),
        ("train_config.optimizer.adam_optimizer={learning_rate{constant_learning_rate{}}}", "used Momentum, .* Adam"),
    ],
)
def test_a_run_does_not_go_on_as_another(small_config: Path, tmp_path: Path, override: str, wanted: str) -> None:
    config = bw.load_config(small_config, ["train_config.num_steps=1"])
    bw.train(config, tmp_path / "m", bw.RunSettings(**QUIET))
    with pytest.raises(bw.CheckpointError, match=wanted):
        bw.train(bw.load_config(small_config, [override]), tmp_path / "m", bw.RunSettings(**QUIET))
    assert bw.load_config(tmp_path / "m" / "pipeline.config") == config, "the refused configuration is not kept"


def test_resuming_follows_the_configuration(small_config: Path, tmp_path: Path) -> None:
    """A momentum or an average that is changed on the way is what counts from there on."""
    from boxwright.nn.optimization.optimizers import Momentum
    from boxwright.pipeline.training import build_training
    from boxwright.training.state import new_state

    bw.train(bw.load_config(small_config, ["train_config.num_steps=1"]), tmp_path / "m", bw.RunSettings(**QUIET))
    found = CheckpointStore(tmp_path / "m").latest()
    assert found is not None
    changed = bw.load_config(
        small_config,
        [
            "train_config.optimizer.momentum_optimizer.momentum_optimizer_value=0.5",
            "train_config.optimizer.use_moving_average=true",
        ],
    )
    state = new_state(bw.build_detector(changed), build_training(changed))
    state.restore(found[1])
    assert state.optimizer.rule == Momentum(0.5)
    assert state.average is not None
    assert same(state.average.shadow, {k: v for k, v in found[1]["network"].items() if k in state.average.shadow})


@pytest.mark.slow
def test_resume_is_exact_with_dropout(small_config: Path, tmp_path: Path) -> None:
    dropout = ["model.ssd.box_predictor.weight_shared_convolutional_box_predictor.use_dropout=true"]
    config = bw.load_config(small_config, [*dropout, "train_config.num_steps=4"])
    settings = bw.RunSettings(**QUIET)
    bw.train(config, tmp_path / "whole", settings)
    bw.train(bw.load_config(small_config, [*dropout, "train_config.num_steps=2"]), tmp_path / "parts", settings)
    bw.train(config, tmp_path / "parts", settings)
    assert same(weights(tmp_path / "whole"), weights(tmp_path / "parts"))


def test_mistakes_in_evaluation_show_at_the_start(small_config: Path, tmp_path: Path) -> None:
    for override, wanted in (
        ("eval_config.metrics_set=no_such_metrics", "'no_such_metrics' is not known"),
        ("eval_input_reader.tf_record_input_reader.input_path=/none", "no file matches"),
        ("eval_config { metrics_set: 'coco_panoptic_metrics' }", "metrics_set: refused"),
    ):
        with pytest.raises(bw.BoxwrightError, match=wanted):
            bw.train(
                bw.load_config(small_config, [override]), tmp_path / "m", bw.RunSettings(workers=0, preflight=False)
            )
    assert not (tmp_path / "m").exists()


@pytest.mark.slow
def test_every_evaluation_reader_is_evaluated(small_config: Path, shapes_data: Path, tmp_path: Path) -> None:
    more = f'eval_input_reader {{ voc_input_reader {{ root: "{shapes_data}/voc" }} label_map_path: "{shapes_data}/label_map.pbtxt" }}'
    config = bw.load_config(small_config, [more, "train_config.num_steps=1"])
    bw.train(config, tmp_path / "m", bw.RunSettings(workers=0, preflight=False))
    assert (tmp_path / "m" / "eval").is_dir()
    assert (tmp_path / "m" / "eval" / "1").is_dir()


@pytest.mark.slow
def test_time_limit_saves_and_says_so(small_config: Path, tmp_path: Path) -> None:
    config = bw.load_config(small_config, ["train_config.num_steps=100000"])
    done = bw.train(config, tmp_path / "m", bw.RunSettings(**QUIET, max_seconds=0.5)).step
    assert 0 < done < 100000
    assert (tmp_path / "m" / f"ckpt-{done}.pt").is_file()


def start(small_config: Path, model_dir: Path, *arguments: str) -> subprocess.Popen[str]:
    command = [sys.executable, "-m", "boxwright", "train", "--pipeline_config_path", str(small_config)]
    command += ["--model_dir", str(model_dir), *([] if "--evaluate" in arguments else ["--no-evaluate"]), *arguments]
    return subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, env={**os.environ})


def wait_for_checkpoint(model_dir: Path, process: subprocess.Popen[str], count: int = 1) -> None:
    deadline = time.monotonic() + 120
    while len(CheckpointStore(model_dir).paths()) < count:
        assert process.poll() is None, process.communicate()[0]
        assert time.monotonic() < deadline
        time.sleep(0.02)


@pytest.mark.slow
def test_ctrl_c_saves_first(small_config: Path, tmp_path: Path) -> None:
    process = start(small_config, tmp_path / "m", "--num_train_steps", "100000", "--checkpoint_every_n", "3")
    wait_for_checkpoint(tmp_path / "m", process)
    process.send_signal(signal.SIGINT)
    output, _ = process.communicate(timeout=60)
    assert process.returncode == 130, output
    assert "interrupted: stopped after" in output
    assert "Traceback" not in output
    newest = CheckpointStore(tmp_path / "m").paths()[-1]
    assert f"stopped after {read_checkpoint(newest)['step']} of" in output


def test_a_signal_is_asked_for_before_each_step(
    small_config: Path, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    class Interrupter(Silent):
        def step(self, step: int) -> None:
            signal.raise_signal(signal.SIGINT)

    before = signal.getsignal(signal.SIGINT)
    settings = bw.RunSettings(evaluate=False, workers=0, preflight=False, log_every_n=1)
    with pytest.raises(KeyboardInterrupt) as raised:
        bw.train(bw.load_config(small_config), tmp_path / "m", settings, {"test": Interrupter()})
    assert raised.value.__notes__ == [
        f"the run is saved in {tmp_path / 'm'} at step 1: train it again to go on, or open it with Run"
    ]
    assert "stopping after this step or evaluation" in capfd.readouterr().err
    assert [path.name for path in CheckpointStore(tmp_path / "m").paths()] == ["ckpt-1.pt"]
    assert signal.getsignal(signal.SIGINT) is before


def test_a_handler_of_the_callers_gets_the_signal_after_the_checkpoint(small_config: Path, tmp_path: Path) -> None:
    """It decides what the signal means; where it returns, `train` does."""
    received: list[list[str]] = []
    # An assertion that fails in a listener would disable the listener, and not fail the test.
    received_in_step: list[int] = []

    class Interrupter(Silent):
        def step(self, step: int) -> None:
            signal.raise_signal(signal.SIGUSR1)
            received_in_step.append(len(received))

    def handle(number: int, _: object) -> None:
        received.append([path.name for path in CheckpointStore(tmp_path / "m").paths()])

    before = signal.signal(signal.SIGUSR1, handle)
    try:
        run = bw.train(
            bw.load_config(small_config),
            tmp_path / "m",
            bw.RunSettings(evaluate=False, workers=0, preflight=False, log_every_n=1),
            {"test": Interrupter()},
        )
    finally:
        signal.signal(signal.SIGUSR1, before)
    assert run.step == 1
    assert received_in_step == [0]
    assert received == [["ckpt-1.pt"]]


SCRIPT = """
import signal, sys
import boxwright as bw
def interrupt(step, numbers):
    signal.raise_signal(int(sys.argv[3]))
bw.train(sys.argv[1], sys.argv[2], evaluate=False, workers=0, preflight=False, log_every_n=1, listeners=interrupt)
print("trained")
"""


@pytest.mark.slow
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_script_does_not_go_on_after_a_signal(small_config: Path, tmp_path: Path, number: signal.Signals) -> None:
    command = [sys.executable, "-c", SCRIPT, str(small_config), str(tmp_path / "m"), str(int(number))]
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=120)
    assert done.returncode == -number, done.stderr
    assert "trained" not in done.stdout
    assert [path.name for path in CheckpointStore(tmp_path / "m").paths()] == ["ckpt-1.pt"]


def logged(model_dir: Path) -> list[dict[str, Any]]:
    """Read the log, without what depends on the clock."""
    rows = [json.loads(line) for line in (model_dir / "metrics.jsonl").read_text().splitlines()]
    return [{name: value for name, value in row.items() if name != "steps_per_sec"} for row in rows]


EXACT = ["train_config.optimizer.use_moving_average=true", "train_config.num_steps=24"]


@pytest.fixture(scope="module")
def uninterrupted(shapes_data: Path, tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    """A configuration, and the folder of a run of it that nobody stopped."""
    folder = tmp_path_factory.mktemp("uninterrupted")
    path = folder / "pipeline.config"
    path.write_text(small_config_text(shapes_data))
    settings = bw.RunSettings(workers=1, log_every_n=1, checkpoint_every_n=1, evaluate_every_n=8)
    bw.train(bw.load_config(path, EXACT), folder / "whole", settings)
    return path, folder / "whole"


@pytest.mark.slow
@pytest.mark.parametrize(
    ("checkpoints", "delay"),
    [(2, 0.0), (3, 0.017), (5, 0.05), (8, 0.0), (9, 0.031), (14, 0.11), (20, 0.003), (24, 0.03)],
)
def test_sigkill_leaves_a_run_that_goes_on_exactly(
    uninterrupted: tuple[Path, Path], tmp_path: Path, checkpoints: int, delay: float
) -> None:
    """Weights, average, and every line of the log are those of a run that was not killed.

    Checkpoints are written at every step, so that the kill may well fall into one; some kills fall
    into the evaluation at step 8.
    """
    config, whole = uninterrupted
    model_dir = tmp_path / "killed"
    process = start(config, model_dir, *EVERY_STEP)
    wait_for_step(model_dir, process, checkpoints)
    time.sleep(delay)
    process.kill()
    process.communicate()
    for path in CheckpointStore(model_dir).paths():
        read_checkpoint(path)
    process = start(config, model_dir, *EVERY_STEP)
    output, _ = process.communicate(timeout=120)
    assert process.returncode == 0, output
    first, second = (read_checkpoint(folder / "ckpt-24.pt") for folder in (whole, model_dir))
    assert same(first["network"], second["network"])
    assert same(first["average"], second["average"])
    assert first["selection"] == second["selection"]
    assert logged(whole) == logged(model_dir)
    assert same(read_checkpoint(whole / "best.pt")["network"], read_checkpoint(model_dir / "best.pt")["network"])


EVERY_STEP = ("--checkpoint_every_n", "1", "--log_every_n", "1", "--evaluate_every_n", "8", "--evaluate")
EVERY_STEP += tuple(word for change in EXACT for word in ("--set", change))


def wait_for_step(model_dir: Path, process: subprocess.Popen[str], step: int) -> None:
    deadline = time.monotonic() + 120
    while not (paths := CheckpointStore(model_dir).paths()) or int(paths[-1].stem[5:]) < step:
        assert process.poll() is None, process.communicate()[0]
        assert time.monotonic() < deadline
        time.sleep(0.002)


@pytest.mark.slow
def test_damaged_newest_checkpoint_falls_back(small_config: Path, tmp_path: Path) -> None:
    config = bw.load_config(small_config)
    bw.train(config, tmp_path / "m", bw.RunSettings(**QUIET, checkpoint_every_n=3))
    newest = tmp_path / "m" / "ckpt-6.pt"
    newest.write_bytes(newest.read_bytes()[:5000])
    with pytest.warns(UserWarning, match="using the previous one"):
        assert bw.train(config, tmp_path / "m", bw.RunSettings(**QUIET)).step == 6
    assert read_checkpoint(newest)["step"] == 6


def test_not_finite_loss_stops_before_the_step(small_config: Path, tmp_path: Path) -> None:
    rate = "train_config.optimizer.momentum_optimizer.learning_rate.constant_learning_rate.learning_rate=1e30"
    config = bw.load_config(small_config, [rate])
    with pytest.raises(bw.TrainingError, match=r"step \d: the loss is not finite: .*images") as caught:
        bw.train(config, tmp_path / "m", bw.RunSettings(**QUIET))
    assert "learning rate 1e+30" in str(caught.value)


def test_other_classes_are_refused(small_config: Path, shapes_data: Path, tmp_path: Path) -> None:
    config = bw.load_config(small_config, ["train_config.num_steps=1"])
    bw.train(config, tmp_path / "m", bw.RunSettings(**QUIET))
    text = (shapes_data / "label_map.pbtxt").read_text().replace("circle", "ring").replace("star", "sun")
    (tmp_path / "other.pbtxt").write_text(text.replace('"square"', '"box"').replace('"triangle"', '"wedge"'))
    other = bw.load_config(small_config, [f"train_input_reader.label_map_path={tmp_path}/other.pbtxt"])
    with pytest.raises(bw.BoxwrightError, match="was trained on other classes"):
        bw.train(other, tmp_path / "m", bw.RunSettings(**QUIET))
    evaluation = bw.load_config(small_config, [f"eval_input_reader.label_map_path={tmp_path}/other.pbtxt"])
    with pytest.raises(bw.ConfigError, match="is this the right label map"):
        bw.evaluate(evaluation, tmp_path / "m")


@pytest.mark.parametrize(
    ("override", "wanted"),
    [
        (
            "train_config { num_steps: 0 optimizer { momentum_optimizer { learning_rate { "
            "cosine_decay_learning_rate { } } } } }",
            "train_config.num_steps: how long to train; .*a cosine ends at its total_steps",
        ),
        ("train_config.batch_size=0", "greater than or equal to 1"),
        (
            "model.ssd.num_classes=2",
            "the data have 4 classes, with ids 1 to 4 \\(circle, square, triangle, …\\); set it to 4",
        ),
        ("model.ssd.num_classes=0", "model.ssd.num_classes: how many classes"),
        ("train_input_reader.label_map_path=", "records name classes by number"),
        ("train_input_reader.label_map_path=/none", "no such file"),
        ("train_input_reader.tf_record_input_reader.input_path=/none", "no file matches"),
        ("train_config.freeze_variables=.*", "nothing is left to train"),
        ("model.ssd.feature_extractor.type=ssd_inception_v4", "did you mean ssd_inception_v"),
        ("model.ssd.feature_extractor.type=timm/no_such_net", "timm/no_such_net"),
        ("train_config.fine_tune_checkpoint=/none/ckpt", "no such checkpoint"),
        ("train_config.fine_tune_checkpoint_type=half", "'half' is not known"),
    ],
)
def test_unusable_configurations(small_config: Path, tmp_path: Path, override: str, wanted: str) -> None:
    with pytest.raises(bw.BoxwrightError, match=wanted):
        bw.train(bw.load_config(small_config, [override]), tmp_path / "m", bw.RunSettings(**QUIET))


def test_fine_tuning_restores_and_reports(small_config: Path, tmp_path: Path) -> None:
    config = bw.load_config(small_config, ["train_config.num_steps=2"])
    bw.train(config, tmp_path / "first", bw.RunSettings(**QUIET))
    detector, _, step = bw.restore_detector(tmp_path / "first")
    assert step == 2
    more = bw.load_config(small_config, ["model.ssd.num_classes=7"])
    other = bw.build_detector(more)
    with pytest.raises(bw.CheckpointError, match="scope 'full'"):
        bw.load_weights(other, tmp_path / "first")
    report = bw.load_weights(other, tmp_path / "first", scope="transfer")
    # A predictor is restored whole or not at all: its depthwise kernel would fit.
    assert set(report.kept) == {"head.classes.0.weight", "head.classes.1.weight", "head.classes.1.bias"}
    assert "shape" in str(report)
    assert torch.equal(
        other.network.state_dict()["head.boxes.1.weight"], detector.network.state_dict()["head.boxes.1.weight"]
    )
    report = bw.load_weights(other, tmp_path / "first" / "ckpt-2.pt", scope="classification")
    assert all(name.startswith("backbone.") for name in report.restored)
    tuned = bw.load_config(
        small_config,
        [f"train_config.fine_tune_checkpoint={tmp_path}/first", "train_config.fine_tune_checkpoint_type=full"],
    )
    bw.train(tuned, tmp_path / "second", bw.RunSettings(**QUIET))


@pytest.mark.slow
@pytest.mark.parametrize("order", ["RGB", "BGR"])
def test_fine_tuning_turns_weights_that_take_blue_first(small_config: Path, tmp_path: Path, order: str) -> None:
    from safetensors.torch import save_file

    torch.manual_seed(7)
    state = bw.build_detector(bw.load_config(small_config)).network.state_dict()
    save_file({k: v.contiguous() for k, v in state.items()}, tmp_path / "w.safetensors")
    changes = [
        f"train_config.fine_tune_checkpoint={tmp_path}/w.safetensors",
        "train_config.fine_tune_checkpoint_type=full",
        f"train_config.fine_tune_checkpoint_channels={order}",
        "train_config.optimizer.momentum_optimizer.learning_rate.constant_learning_rate.learning_rate=0",
    ]
    bw.train(bw.load_config(small_config, changes), tmp_path / "m", bw.RunSettings(**QUIET))
    trained = bw.build_detector(bw.load_config(small_config))
    bw.load_weights(trained, tmp_path / "m")
    first = next(name for name, value in state.items() if value.ndim == 4)
    wanted = state[first] if order == "RGB" else state[first][:, [2, 1, 0]]
    assert torch.equal(trained.network.state_dict()[first], wanted)


def test_safetensors(small_config: Path, tmp_path: Path) -> None:
    from safetensors.torch import save_file

    detector = bw.build_detector(bw.load_config(small_config))
    save_file({k: v.contiguous() for k, v in detector.network.state_dict().items()}, tmp_path / "w.safetensors")
    other = bw.build_detector(bw.load_config(small_config))
    report = bw.load_weights(other, tmp_path / "w.safetensors")
    assert not report.kept
    (tmp_path / "bad.safetensors").write_bytes(b"no")
    with pytest.raises(bw.CheckpointError, match="not readable as safetensors"):
        bw.load_weights(other, tmp_path / "bad.safetensors")


def test_full_disk_keeps_what_was_there(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    store = CheckpointStore(tmp_path)
    whole: dict[str, Any] = {part: {} for part in ("network", "optimizer", "average", "scaler", "selection")}
    whole |= {"seed": 1, "samples": 1, "parts": 1, "optimizer_kind": "", "config": "", "began": 0.0, "categories": []}
    store.save(1, {**whole, "x": torch.ones(3)})

    def full(*_: Any) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(bw.CheckpointError, match="No space left on device; earlier ones are intact"):
        store.save(2, {"x": torch.ones(3)})
    assert [path.name for path in tmp_path.iterdir()] == ["ckpt-1.pt"]
    found = store.latest()
    assert found is not None
    assert found[1]["x"].tolist() == [1, 1, 1]


def test_store_keeps_the_newest(tmp_path: Path) -> None:
    store = CheckpointStore(tmp_path, keep=2)
    for step in (5, 10, 100):
        store.save(step, {})
    assert [path.name for path in store.paths()] == ["ckpt-10.pt", "ckpt-100.pt"]
    for path in store.paths():
        path.write_bytes(b"")
    with (
        pytest.warns(UserWarning, match="using the previous one"),
        pytest.raises(bw.CheckpointError, match="no checkpoint is readable"),
    ):
        store.latest()
    assert CheckpointStore(tmp_path / "none").latest() is None
    np.save(tmp_path / "a.npy", np.zeros(1))
    with pytest.raises(bw.CheckpointError, match="not a readable checkpoint"):
        read_checkpoint(tmp_path / "a.npy")


def test_unwritable_model_dir(small_config: Path, tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(bw.OutputError, match="this folder cannot be created: File exists"):
        bw.train(bw.load_config(small_config), tmp_path / "file", bw.RunSettings(**QUIET))


def test_a_checkpoint_at_the_start(small_config: Path, tmp_path: Path) -> None:
    """The start can be evaluated and compared; the run is the same as without."""
    config = bw.load_config(small_config, ["train_config.num_steps=2"])
    for name, at_start in (("with", True), ("without", False)):
        bw.train(
            config,
            tmp_path / name,
            bw.RunSettings(workers=0, preflight=False, device="cpu", checkpoint_at_start=at_start),
        )
    assert not (tmp_path / "without" / "ckpt-0.pt").exists()
    first, last, plain = (
        read_checkpoint(tmp_path / name) for name in ("with/ckpt-0.pt", "with/ckpt-2.pt", "without/ckpt-2.pt")
    )
    assert (first["step"], last["step"]) == (0, 2)
    assert all(torch.equal(last["network"][name], value) for name, value in plain["network"].items())
    assert any(not torch.equal(last["network"][name], value) for name, value in first["network"].items())
    rows = [json.loads(line) for line in (tmp_path / "with" / "metrics.jsonl").read_text().splitlines()]
    evaluated = [row["step"] for row in rows if any("Precision" in name for name in row)]
    assert evaluated == [0, 2]
    assert bw.load(tmp_path / "with" / "ckpt-0.pt").step == 0


@pytest.mark.slow_cases("ends1")
@pytest.mark.parametrize("ends", [{"max_seconds": 1.0}, {"patience": 1, "checkpoint_every_n": 2}])
def test_a_run_without_a_number_of_steps_ends_by_time_or_patience(
    small_config: Path, tmp_path: Path, ends: dict[str, Any], caplog: pytest.LogCaptureFixture
) -> None:
    """With a constant rate of 0 no evaluation is better than the first."""
    zero = "train_config.optimizer.momentum_optimizer.learning_rate.constant_learning_rate.learning_rate=0"
    config = bw.load_config(small_config, ["train_config.num_steps=0", zero, FROZEN])
    settings = {"workers": 0, "device": "cpu", "evaluate": "patience" in ends, **ends}
    with caplog.at_level("INFO", logger="boxwright.run"):
        run = bw.train(config, tmp_path / "m", bw.RunSettings(**settings))
    assert run.step >= 1
    assert (tmp_path / "m" / f"ckpt-{run.step}.pt").exists()
    assert "train_config.num_steps is not set: training lasts until it is stopped" in caplog.text
    assert ("the time is up" in caplog.text) == ("max_seconds" in ends)
