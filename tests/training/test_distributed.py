"""Many processes: the same numbers as one, one that writes, all stop together."""

from __future__ import annotations

import json
import os
import shutil
import signal
import socket
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
import torch

import boxwright as bw
from boxwright.base.distributed import Processes
from boxwright.config.load import dump_message
from boxwright.data.convert import write_tfrecords
from boxwright.data.image_io import decode_image
from boxwright.data.shapes import ShapesDataset
from boxwright.pipeline.training import build_training
from boxwright.training.train import _check_processes
from boxwright.types import Sample
from boxwright.weights.store import CheckpointStore, read_checkpoint
from tests import forked
from tests.d_fines import D_FINE, DEIM
from tests.remote_files import open_store
from tests.training.detrs import write_config
from tests.training.every_resizer import RESIZERS

OWN_INITIALIZERS = True

SMOOTH = [
    # Smooth throughout, and normalized over all processes: what is left between runs is rounding.
    "model.ssd.feature_extractor.conv_hyperparams.activation=SWISH",
    "model.ssd.box_predictor.weight_shared_convolutional_box_predictor.conv_hyperparams.activation=SWISH",
]


def smooth_config(small_config: Path, folder: Path, *more: str) -> Path:
    """Write a configuration whose normalization is over all processes' batches."""
    text = small_config.read_text().replace("batch_norm {", "sync_batch_norm {")
    assert text.count("sync_batch_norm") == 2
    path = folder / "smooth.config"
    path.write_text(text)
    from boxwright.config.load import dump_message

    path.write_text(dump_message(bw.load_config(path, [*SMOOTH, *more])))
    return path


def torchrun(count: int, config: Path, model_dir: Path, *arguments: str, restarts: int = 0) -> subprocess.Popen[str]:
    """Start a run of some processes, each with one thread."""
    command = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", str(count)]
    command += ["--max-restarts", str(restarts)]
    command += ["-m", "boxwright", "train", "--pipeline_config_path", str(config), "--model_dir", str(model_dir)]
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    command += ["--log_every_n", "1", "--workers", "0", *arguments]
    return subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, env=environment, start_new_session=True
    )


def finish(process: subprocess.Popen[str]) -> str:
    output, _ = process.communicate(timeout=180)
    assert process.returncode == 0, output
    return output


def run_two(config: Path, model_dir: Path, *arguments: str) -> str:
    """Run two processes as torchrun starts them, but with PyTorch imported; return what both wrote."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port)}
    command = [sys.executable, "-m", "boxwright", "train", "--pipeline_config_path", str(config)]
    command += ["--model_dir", str(model_dir), "--log_every_n", "1", "--workers", "0", *arguments]

    def start(rank: int) -> str:
        place = {"WORLD_SIZE": "2", "RANK": str(rank), "LOCAL_RANK": str(rank)}
        done = forked.run(command, env=environment | place, timeout=180)
        assert done.returncode == 0, done.stdout + done.stderr
        return done.stdout + done.stderr

    with ThreadPoolExecutor(2) as pool:
        return "".join(pool.map(start, range(2)))


def kill_all(process: subprocess.Popen[str], model_dir: Path) -> None:
    """Kill torchrun and, as they would go on without it, the processes that it started."""
    os.killpg(process.pid, signal.SIGKILL)
    subprocess.run(["pkill", "-9", "-f", str(model_dir)], check=False)
    process.communicate()


def lines(model_dir: Path) -> list[dict[str, Any]]:
    """Read the log, without what depends on the clock."""
    rows = [json.loads(line) for line in (model_dir / "metrics.jsonl").read_text().splitlines()]
    return [{name: value for name, value in row.items() if name != "steps_per_sec"} for row in rows]


def test_two_processes_are_one_with_the_whole_batch(mobilenet_config: Path, tmp_path: Path) -> None:
    """Losses, to 1e-5, of statistics after four steps to 5e-5; evaluation of an odd number of images, each once."""
    config = smooth_config(mobilenet_config, tmp_path, "train_config.num_steps=4", "eval_config.batch_size=4")
    output = run_two(config, tmp_path / "two")
    bw.train(bw.load_config(config), tmp_path / "one", bw.RunSettings(workers=0, log_every_n=1))
    one, two = lines(tmp_path / "one"), lines(tmp_path / "two")
    assert [row["step"] for row in two] == [1, 2, 3, 4, 4]
    for first, second in zip(one, two, strict=True):
        terms = [name for name in first if name.startswith("Loss/")]
        assert len(terms) == 4
        assert [second[name] for name in terms] == pytest.approx(
            [first[name] for name in terms], rel=5e-5 if "evaluation" in first else 1e-5
        )
    assert output.count("saved ") == 1
    whole, shared = (read_checkpoint(tmp_path / name / "ckpt-4.pt")["network"] for name in ("one", "two"))
    moved = {name for name in whole if whole[name].is_floating_point()}
    distance = sum(float((whole[name] - shared[name]).square().sum()) for name in moved) ** 0.5
    assert distance < 1e-4 * sum(float(whole[name].square().sum()) for name in moved) ** 0.5
    # The same weights, evaluated by one process and by two: the same detections.
    metrics = bw.evaluate(bw.load_config(config), tmp_path / "two")
    assert metrics == pytest.approx({name: two[-1][name] for name in metrics}, rel=1e-5, abs=1e-6)


@pytest.mark.slow
def test_two_processes_of_deim_mix_and_restart_alike(small_config: Path, tmp_path: Path) -> None:
    """A batch's parts are blended, both restart from the best state, and a resumed run has the same bits."""
    config = write_config(small_config, DEIM, tmp_path / "deim.config")
    changes = [
        "train_config.num_steps=5",
        "train_config.batch_mixup={ probability: 1 }",
        "train_config.restart_from_best_step=3",
        "train_config.optimizer.use_moving_average=true",
        "eval_config.use_moving_averages=true",
    ]
    config.write_text(dump_message(bw.load_config(config, changes)))
    shared = ("--evaluate_every_n", "2", "--checkpoint_every_n", "1", "--best_metric", "Loss/total_loss")
    output = run_two(config, tmp_path / "whole", *shared)
    assert "step 3: training goes on from the best state, of step 2" in output
    run_two(config, tmp_path / "parts", *shared, "--num_train_steps", "4")
    run_two(config, tmp_path / "parts", *shared, "--num_train_steps", "5")
    whole, parts = (read_checkpoint(tmp_path / name / "ckpt-5.pt") for name in ("whole", "parts"))
    for part in ("network", "average"):
        assert whole[part].keys() == parts[part].keys()
        assert all(torch.equal(whole[part][name], parts[part][name]) for name in whole[part]), part
    # Blended images are others: so are the losses of the first step.
    config.write_text(dump_message(bw.load_config(config, ["train_config.batch_mixup.probability=0"])))
    run_two(config, tmp_path / "plain", "--num_train_steps", "1", "--no-evaluate")
    losses = [lines(tmp_path / name)[0]["Loss/total_loss"] for name in ("whole", "plain")]
    assert losses[0] != pytest.approx(losses[1], rel=1e-3)


@pytest.mark.slow
def test_two_processes_are_taught_as_one(small_config: Path, tmp_path: Path) -> None:
    """The teacher's loss and the weight that follows from gradients' shares; a resumed run has the same bits."""
    import timm

    torch.manual_seed(3)
    teacher = "test_vit.r160_in1k"
    torch.save(timm.create_model(teacher, num_classes=0).state_dict(), tmp_path / "teacher.pth")
    block = f'distillation {{ teacher: "timm/{teacher}" teacher_checkpoint: "{tmp_path}/teacher.pth" adapt_every: 2 }}'
    model = D_FINE.removesuffix("}") + f"{block} sync_batch_norm: true }}"
    config = write_config(small_config, model, tmp_path / "taught.config")
    config.write_text(dump_message(bw.load_config(config, ["train_config.num_steps=3"])))
    run_two(config, tmp_path / "parts", "--no-evaluate", "--num_train_steps", "1")
    settings = bw.RunSettings(workers=0, log_every_n=1, evaluate=False)
    bw.train(bw.load_config(config, ["train_config.num_steps=1"]), tmp_path / "one", settings)
    # Afterwards other queries may be the best, by rounding.
    losses = [lines(tmp_path / name)[0]["Loss/distillation_loss"] for name in ("one", "parts")]
    assert losses[1] == pytest.approx(losses[0], rel=1e-5)
    shares = [
        read_checkpoint(tmp_path / name / "ckpt-1.pt")["network"]["distiller.shares"].tolist()
        for name in ("one", "parts")
    ]
    assert shares[1] == pytest.approx(shares[0], rel=1e-3)
    assert shares[0][0] > 0

    run_two(config, tmp_path / "parts", "--no-evaluate")  # the weight changes before the third
    run_two(config, tmp_path / "whole", "--no-evaluate")
    whole, parts = (read_checkpoint(tmp_path / name / "ckpt-3.pt")["network"] for name in ("whole", "parts"))
    assert whole.keys() == parts.keys()
    assert all(torch.equal(value, parts[name]) for name, value in whole.items())
    assert float(whole["distiller.weight"]) != 5


class TwoSizes(ShapesDataset):
    """Images of two sizes, two by two: the processes of a batch of four have inputs of other sizes than each other."""

    def __getitem__(self, index: int) -> Sample:
        return self._of_size(index)[index]

    def encoded(self, index: int) -> tuple[bytes, str]:
        return self._of_size(index).encoded(index)

    def _of_size(self, index: int) -> ShapesDataset:
        return ShapesDataset(len(self), seed=7, size=(64, 80) if index // 2 % 2 else (112, 64))


@pytest.mark.slow
def test_two_processes_of_every_resizer_are_one(small_config: Path, tmp_path: Path) -> None:
    """With the preflight, whose look at anchors of each size is the leader's alone; anchors are no part of the exchange."""
    write_tfrecords(TwoSizes(12, seed=7), tmp_path / "two_sizes.record")
    sizes = [decode_image(TwoSizes(12).encoded(index)[0], "").shape for index in range(4)]
    assert sizes == [(112, 64, 3)] * 2 + [(64, 80, 3)] * 2
    config = tmp_path / "two_sizes.config"
    reader = f"train_input_reader.tf_record_input_reader.input_path={tmp_path}/two_sizes.record"
    config.write_text(dump_message(bw.load_config(small_config, [reader, "train_input_reader.shuffle=false"])))
    text = " ".join(config.read_text().split())
    config.write_text(text)
    command = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2"]
    command += ["-m", "tests.training.every_resizer", str(config), str(tmp_path)]
    done = subprocess.run(
        command, capture_output=True, text=True, env={**os.environ, "OMP_NUM_THREADS": "1"}, check=False
    )
    assert done.returncode == 0, done.stderr[-3000:]
    found = json.loads(done.stdout.splitlines()[-1])
    assert found.keys() == RESIZERS.keys()
    assert len(found) == 6
    for name, result in found.items():
        assert result["steps"] == 2
        assert len(result["alone"]) > 60
        assert result["together"] == pytest.approx(result["alone"], rel=1e-3, abs=1e-5), name


@pytest.mark.slow
def test_a_failure_of_one_stops_all(small_config: Path, shapes_data: Path, tmp_path: Path) -> None:
    data = bytearray((shapes_data / "val.record").read_bytes())
    data[-200] ^= 1
    (tmp_path / "bad.record").write_bytes(data)
    config = smooth_config(
        small_config,
        tmp_path,
        f"train_input_reader.tf_record_input_reader.input_path={tmp_path}/bad.record",
        "train_input_reader.shuffle=false",
        "train_config.batch_size=2",
    )
    process = torchrun(2, config, tmp_path / "m", "--no-evaluate")
    output, _ = process.communicate(timeout=120)
    assert process.returncode != 0
    assert "record 5 at byte" in output
    assert "another process failed" in output
    assert [path.name for path in CheckpointStore(tmp_path / "m").paths()] == ["ckpt-2.pt"], "nothing is lost"


@pytest.mark.slow
def test_sigterm_to_torchrun_saves_first(small_config: Path, tmp_path: Path) -> None:
    config = smooth_config(small_config, tmp_path, "train_config.num_steps=100000")
    process = torchrun(2, config, tmp_path / "m", "--no-evaluate", "--checkpoint_every_n", "2", "--workers", "1")
    deadline = time.monotonic() + 120
    while not CheckpointStore(tmp_path / "m").paths():
        assert process.poll() is None, process.communicate()[0]
        assert time.monotonic() < deadline
        time.sleep(0.05)
    process.send_signal(signal.SIGTERM)
    output, _ = process.communicate(timeout=60)
    newest = CheckpointStore(tmp_path / "m").paths()[-1]
    assert f"interrupted: stopped after {read_checkpoint(newest)['step']} of" in output


@pytest.mark.slow
@pytest.mark.parametrize("kill_at", [1, 3, 5])
def test_sigkill_of_two_leaves_a_run_that_goes_on_exactly(small_config: Path, tmp_path: Path, kill_at: int) -> None:
    """Weights, average and logged losses are those of a run that was not killed, to the bit."""
    config = smooth_config(
        small_config, tmp_path, "train_config.num_steps=7", "train_config.optimizer.use_moving_average=true"
    )
    finish(torchrun(2, config, tmp_path / "whole", "--no-evaluate", "--checkpoint_every_n", "1"))
    process = torchrun(2, config, tmp_path / "killed", "--no-evaluate", "--checkpoint_every_n", "1")
    deadline = time.monotonic() + 120
    while not (tmp_path / "killed" / f"ckpt-{kill_at}.pt").exists():
        assert process.poll() is None, process.communicate()[0]
        assert time.monotonic() < deadline
        time.sleep(0.005)
    kill_all(process, tmp_path / "killed")
    assert not (tmp_path / "killed" / "ckpt-7.pt").exists(), "killed on its way"
    finish(torchrun(2, config, tmp_path / "killed", "--no-evaluate", "--checkpoint_every_n", "1"))
    whole, killed = (read_checkpoint(tmp_path / name / "ckpt-7.pt") for name in ("whole", "killed"))
    for part in ("network", "average"):
        assert whole[part].keys() == killed[part].keys()
        assert all(torch.equal(whole[part][name], killed[part][name]) for name in whole[part]), part
    assert lines(tmp_path / "whole") == lines(tmp_path / "killed")


@pytest.mark.slow
def test_a_step_that_is_not_finite_is_written_down_by_one_while_others_wait(small_config: Path, tmp_path: Path) -> None:
    """With normalization over all processes, which the one that does the step again has to do without."""
    rate = "train_config.optimizer.momentum_optimizer.learning_rate.constant_learning_rate.learning_rate=1e30"
    config = smooth_config(small_config, tmp_path, rate)
    process = torchrun(2, config, tmp_path / "m", "--no-evaluate", "--workers", "1")
    output, _ = process.communicate(timeout=180)
    assert process.returncode != 0
    assert "is not finite" in output
    assert "another process is gone" not in output
    (report,) = (tmp_path / "m").glob("not-finite-*/report.json")
    content = json.loads(report.read_text())
    assert {image["process"] for image in content["images"]} == {0, 1}
    assert len(content["images"]) == 4
    assert content["found"]["first"].startswith("process 0: ")
    assert CheckpointStore(tmp_path / "m").paths(), "the steps before are saved"


@pytest.mark.slow
def test_elastic_restart_goes_on_from_the_last_checkpoint(small_config: Path, tmp_path: Path) -> None:
    """One of two processes is killed; torchrun starts both again, and the end is that of a run left alone."""
    config = smooth_config(small_config, tmp_path, "train_config.num_steps=7")
    finish(torchrun(2, config, tmp_path / "whole", "--no-evaluate", "--checkpoint_every_n", "1"))
    process = torchrun(2, config, tmp_path / "m", "--no-evaluate", "--checkpoint_every_n", "1", restarts=1)
    deadline = time.monotonic() + 120
    while not (tmp_path / "m" / "ckpt-2.pt").exists():
        assert process.poll() is None, process.communicate()[0]
        assert time.monotonic() < deadline
        time.sleep(0.005)
    children = subprocess.run(["pgrep", "-P", str(process.pid)], capture_output=True, text=True, check=True)
    workers = [int(pid) for pid in children.stdout.split()]
    assert len(workers) == 2
    os.kill(workers[1], signal.SIGKILL)
    output = finish(process)
    assert "resuming from" in output
    whole, other = (read_checkpoint(tmp_path / name / "ckpt-7.pt")["network"] for name in ("whole", "m"))
    assert all(torch.equal(whole[name], other[name]) for name in whole)
    assert lines(tmp_path / "whole") == lines(tmp_path / "m")


def test_batch_must_be_shared_evenly(small_config: Path) -> None:
    plan = build_training(bw.load_config(small_config, ["train_config.batch_size=3"]))
    with pytest.raises(bw.TrainingError, match="batch_size 3 cannot be shared evenly by 2 processes"):
        _check_processes(plan, Processes(0, 2))


@pytest.mark.slow
def test_a_ray_cluster_starts_the_processes(small_config: Path, tmp_path: Path) -> None:
    """The documentation's script: two processes, one run, which goes on where it stopped."""
    pytest.importorskip("ray.train", exc_type=ImportError)
    script = Path(__file__).parents[2] / "docs" / "train_on_ray.py"
    # A busy machine starts workers slowly.
    environment = {
        **os.environ,
        "RAY_TRAIN_WORKER_GROUP_START_TIMEOUT_S": "600",
        "PYTHONPATH": os.pathsep.join(sys.path),
    }
    for steps in (2, 3):
        config = smooth_config(small_config, tmp_path, f"train_config.num_steps={steps}")
        command = [sys.executable, str(script), str(config), str(tmp_path / "m"), "2"]
        done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
        assert done.returncode == 0, done.stdout + done.stderr
        assert read_checkpoint(CheckpointStore(tmp_path / "m").paths()[-1])["step"] == steps


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore")  # of the clients and the server
def test_a_ray_cluster_trains_a_run_at_an_address(small_config: Path, tmp_path: Path) -> None:
    """It goes on where nothing of it is left on this machine."""
    pytest.importorskip("ray.train", exc_type=ImportError)
    script = Path(__file__).parents[2] / "docs" / "train_on_ray.py"
    with open_store(tmp_path / "cache") as (store, _):
        waiting = {"RAY_TRAIN_WORKER_GROUP_START_TIMEOUT_S": "600", "PYTHONPATH": os.pathsep.join(sys.path)}
        for steps in (2, 3):
            config = smooth_config(small_config, tmp_path, f"train_config.num_steps={steps}")
            command = [sys.executable, str(script), str(config), "s3://bucket/run", "2"]
            done = subprocess.run(command, env={**os.environ, **waiting}, capture_output=True, text=True, check=False)
            assert done.returncode == 0, done.stdout + done.stderr
            assert store.exists(f"bucket/run/ckpt-{steps}.pt")
            shutil.rmtree(tmp_path / "cache" / "runs")
        assert store.exists("bucket/run/ckpt-2.pt")
