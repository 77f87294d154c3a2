"""Weights spread over processes: the same run as with all of them in each, and the same files."""

from __future__ import annotations

import copy
import json
import os
import shutil
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.fsdp import FSDPModule
from torch.distributed.tensor import DTensor

import boxwright as bw
from boxwright.base.distributed import Processes, gathered
from boxwright.nn.regularization import add_penalty_gradients
from boxwright.pipeline.training import build_training
from boxwright.training.losses import LossModule, recompute_blocks
from boxwright.training.sharding import shard_state, whole_weights
from boxwright.training.state import new_state
from boxwright.training.train import _check_shards
from boxwright.types import Targets
from boxwright.types.masks import InstanceMasks
from boxwright.weights.store import CheckpointStore, read_checkpoint
from tests.exporters.small_detectors import FAMILIES, build, very_few_first
from tests.training.checkpoints import near, same
from tests.training.test_distributed import finish, kill_all, lines, smooth_config, torchrun
from tests.training.test_step import FROZEN

OWN_INITIALIZERS = True

# Unclipped: the norm of all gradients is summed in another order.
EXACT = ("train_config.optimizer.use_moving_average=true", "train_config.gradient_clipping_by_norm=0")
PARTS = ("network", "optimizer", "average", "selection")


@pytest.mark.slow
def test_the_run_is_that_of_whole_weights(small_config: Path, tmp_path: Path) -> None:
    """Weights, slots and averages agree to rounding: a map's gradients are summed in another order across blocks.

    Batches are learnt from in two parts, the neck learns from the third step on, averages are evaluated. Normalization
    over the few values of a small batch would make much of rounding.
    """
    config = smooth_config(
        small_config,
        tmp_path,
        *EXACT,
        FROZEN,
        "train_config.num_steps=4",
        "train_config.freeze_stage={until_step: 2 variables: 'neck'}",
        "train_config.gradient_accumulation_steps=2",
        "eval_config.use_moving_averages=true",
    )
    finish(torchrun(2, config, tmp_path / "whole", "--checkpoint_every_n", "2"))
    finish(torchrun(2, config, tmp_path / "spread", "--checkpoint_every_n", "2", "--shard"))
    files = ("ckpt-2.pt", "ckpt-4.pt", "best.pt")
    whole, spread = ([read_checkpoint(tmp_path / folder / name) for name in files] for folder in ("whole", "spread"))
    for name, one, other in zip(files, whole, spread, strict=True):
        assert [part for part in PARTS if not near(one[part], other[part], 1e-5)] == [], name
    necks = [name for name in whole[0]["network"] if name.startswith("neck") and name.endswith("weight")]
    assert any(not same(whole[0]["network"][name], whole[1]["network"][name]) for name in necks), "it thawed"
    first, second = lines(tmp_path / "whole"), lines(tmp_path / "spread")
    assert [row["step"] for row in first] == [1, 2, 2, 3, 4, 4]
    for one, other in zip(first, second, strict=True):
        evaluation = one.pop("evaluation", {})
        assert other.pop("evaluation", {}) == pytest.approx(evaluation, abs=1e-4)
        assert other == pytest.approx(one, rel=1e-5)


@pytest.fixture
def one_process() -> Iterator[None]:
    """A group of processes that is this one alone."""
    dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
    try:
        yield
    finally:
        dist.destroy_process_group()


def step_of(losses: LossModule) -> tuple[dict[str, Tensor], dict[str, Tensor]]:
    """Return the losses and gradients of a made-up batch."""
    detector = losses.detector
    height, width = detector.preprocessor.resizer.output_size or (96, 96)
    channels = next(one.in_channels for one in detector.network.modules() if isinstance(one, nn.Conv2d))
    generator = torch.Generator().manual_seed(1)
    images = torch.randint(0, 256, (2, channels, height, width), generator=generator, dtype=torch.uint8)
    boxes = torch.tensor([[4.0, 4, 30, 40], [20, 10, 60, 60]]).expand(2, 2, 4)
    mask = np.zeros((2, height, width), np.uint8)
    mask[:, 10:40, 20:30] = 1
    ones = torch.ones(2, 2)
    targets = Targets(
        boxes,
        torch.tensor([[0, 3], [1, 2]]),
        ones,
        ones > 0,
        keypoints=torch.full((2, 2, 2, 2), 20.0),
        masks=InstanceMasks.stack([mask, mask], 2, (height, width)) if detector.network.learns_masks else None,
    )
    torch.manual_seed(3)
    found = losses(images, torch.tensor([[height, width]] * 2), targets).losses()
    torch.autograd.backward(sum(found.values(), torch.zeros(())))
    add_penalty_gradients(detector.network)
    gradients = {name: one.grad for name, one in detector.network.named_parameters() if one.grad is not None}
    return {name: one.detach() for name, one in found.items()}, gradients


@pytest.mark.slow_except("mask_rcnn, paper")
@pytest.mark.usefixtures("one_process")
@pytest.mark.parametrize("family", very_few_first(FAMILIES))
def test_every_family_finds_its_weights_whole(family: str, small_config: Path) -> None:
    """Wherever a network or a penalty reads a weight, it is there, and its gradient arrives.

    Where more than two layers read a map their gradients may be summed in another order than without blocks.
    """
    plan = build_training(bw.load_config(small_config))
    detector = build(FAMILIES[family]).train()
    for module in detector.modules():
        if isinstance(module, nn.BatchNorm2d):  # over the few values of a small batch it makes much of rounding
            module.eval()
    plain, spread = LossModule(detector, plan), LossModule(copy.deepcopy(detector), plan)
    state = new_state(spread.detector, plan)
    shard_state(spread, state, 1)
    assert all(isinstance(one, DTensor) for one in spread.parameters())
    (losses, gradients), (others, rows) = step_of(plain), step_of(spread)
    assert same(losses, others)
    assert gradients.keys() == rows.keys()
    assert len(rows) > 10
    assert [name for name, one in gradients.items() if not near(one, gathered(rows[name]), 2e-5)] == []
    assert len(weights_of_blocks(spread)) > 2


def weights_of_blocks(spread: LossModule) -> list[int]:
    """Return how many weights each block has that is gathered by itself; together they are all."""
    blocks = [one for one in spread.modules() if isinstance(one, FSDPModule) and one is not spread]
    counts = [sum(weight.numel() for weight in block.parameters()) for block in blocks]
    assert sum(counts) == sum(weight.numel() for weight in spread.parameters())
    return counts


@pytest.mark.usefixtures("one_process")
def test_blocks_are_whole_while_they_compute_alone(small_config: Path) -> None:
    """Each time that a block begins few others are whole; within `whole_weights` all are, and stay so."""
    plan = build_training(bw.load_config(small_config))
    spread = LossModule(build(FAMILIES["ssd"]).train(), plan)
    shard_state(spread, new_state(spread.detector, plan), 1)
    blocks = [one for one in spread.modules() if isinstance(one, FSDPModule) and one is not spread]
    whole: list[int] = []

    def is_whole(block: nn.Module) -> bool:
        return not any(isinstance(one, DTensor) for one in block.parameters())

    for block in blocks:
        block.register_forward_hook(lambda *_: whole.append(sum(map(is_whole, blocks))))
    step_of(spread)
    assert len(blocks) > 15
    assert len(whole) == len(blocks)
    assert max(whole) <= 2
    assert not any(map(is_whole, blocks))
    whole.clear()
    with whole_weights(spread), torch.no_grad():
        assert all(map(is_whole, blocks))
        for _ in range(2):
            spread.detector.network(torch.zeros(1, 3, 96, 96), torch.tensor([[96, 96]]))
            assert all(map(is_whole, blocks))
    assert whole == [len(blocks)] * 2 * len(blocks)
    assert not any(map(is_whole, blocks))
    whole.clear()
    step_of(spread)
    assert max(whole) <= 2, "after an evaluation, too"


@pytest.mark.slow
@pytest.mark.usefixtures("one_process")
def test_blocks_that_compute_maps_again_have_their_weights_there(small_config: Path) -> None:
    plan = build_training(bw.load_config(small_config))
    plain = LossModule(build(FAMILIES["ssd, grey"]).train(), plan)
    spread = LossModule(copy.deepcopy(plain.detector), plan)
    assert recompute_blocks(spread.detector.network.get_submodule("backbone")) > 10
    shard_state(spread, new_state(spread.detector, plan), 1)
    (losses, gradients), (others, rows) = step_of(plain), step_of(spread)
    assert same(losses, others)
    assert gradients.keys() == rows.keys()
    assert [name for name, one in gradients.items() if not near(one, gathered(rows[name]), 1e-3)] == []


SHARES = """
import json, os, sys
from pathlib import Path
import torch
import boxwright as bw
from boxwright.pipeline.detector import build_detector
from boxwright.pipeline.input_reader import build_dataset
from boxwright.pipeline.training import build_training
from boxwright.data.loader import training_batches
from boxwright.base.distributed import join_processes
from boxwright.training.examples import training_examples
from boxwright.base.distributed import gathered, local
from boxwright.training.state import new_state
from boxwright.training.step import NotFiniteError, check_step
from boxwright.training.step import Learner

config = bw.load_config(sys.argv[1])
with join_processes() as processes:
    plan = build_training(config, workers=0)
    dataset = build_dataset(config.train_input_reader, "train_input_reader")
    torch.manual_seed(0)
    detector = build_detector(config, dataset.categories)
    state = new_state(detector, plan)
    learner = Learner(state, plan, processes)
    learner.shard()
    examples = training_examples(config, dataset, detector, 0, skip_bad=False)
    batches = iter(training_batches(examples, plan.stream, 0, processes))
    learner.step(next(batches))
    def everything():
        slots = [one for slots in state.optimizer.state.values() for one in slots.values()]
        return [*detector.network.parameters(), *slots, *state.average.shadow.values()]
    before = [gathered(one).clone() for one in everything()]
    plain = learner.losses.forward
    def not_finite(*given):
        found = plain(*given)
        for term in found.terms.values():
            term.total.mul_(float("nan"))
        return found
    learner.losses.forward = not_finite
    report = learner.step(next(batches), wait=False)
    spoilt = sum(int(not gathered(one).isfinite().all()) for one in everything())
    try:
        check_step(report, state)
        undone = False
    except NotFiniteError:
        undone = all(torch.equal(gathered(one), kept) for one, kept in zip(everything(), before, strict=True))
    report = {
        "rows": sum(local(one).numel() for one in everything()),
        "whole": sum(one.numel() for one in everything()),
        "spoilt": spoilt,
        "undone": undone,
        "step": state.step,
    }
    Path(sys.argv[2], f"{processes.rank}.json").write_text(json.dumps(report))
"""


@pytest.mark.slow
def test_each_keeps_its_rows_and_leaves_out_a_step_that_is_not_finite(small_config: Path, tmp_path: Path) -> None:
    """Weights, slots and averages of three processes are those of one, no process has much more than a third."""
    config = smooth_config(small_config, tmp_path, *EXACT, "train_config.batch_size=6")
    script = tmp_path / "shares.py"
    script.write_text(SHARES)
    command = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "3"]
    ended = subprocess.run(
        [*command, str(script), str(config), str(tmp_path)],
        check=False,
        env={**os.environ, "OMP_NUM_THREADS": "1"},
        capture_output=True,
        text=True,
        timeout=300,
    )
    assert ended.returncode == 0, ended.stderr
    found = [json.loads((tmp_path / f"{rank}.json").read_text()) for rank in range(3)]
    assert sum(one["rows"] for one in found) == found[0]["whole"] > 100_000
    assert max(one["rows"] for one in found) < 0.45 * found[0]["whole"]
    assert [one["spoilt"] for one in found] == [0] * 3
    assert [one["undone"] for one in found] == [True] * 3
    assert [one["step"] for one in found] == [1] * 3


@pytest.mark.slow
def test_sigkill_leaves_a_run_that_goes_on_exactly(small_config: Path, tmp_path: Path) -> None:
    """It goes on with weights spread as the run that nobody killed; and with whole ones."""
    config = smooth_config(small_config, tmp_path, *EXACT, "train_config.num_steps=12")
    every = ("--no-evaluate", "--checkpoint_every_n", "1", "--max_to_keep", "50")
    finish(torchrun(2, config, tmp_path / "straight", *every, "--shard"))
    process = torchrun(2, config, tmp_path / "killed", *every, "--shard")
    deadline = time.monotonic() + 120
    while not (tmp_path / "killed" / "ckpt-2.pt").exists():
        assert process.poll() is None, process.communicate()[0]
        assert time.monotonic() < deadline
        time.sleep(0.005)
    kill_all(process, tmp_path / "killed")
    done = int(CheckpointStore(tmp_path / "killed").paths()[-1].stem[5:])
    assert done < 12, "killed on its way"
    shutil.copytree(tmp_path / "killed", tmp_path / "whole")
    finish(torchrun(2, config, tmp_path / "killed", *every, "--shard"))
    finish(torchrun(2, config, tmp_path / "whole", *every))
    straight, killed, whole = (
        read_checkpoint(tmp_path / name / "ckpt-12.pt") for name in ("straight", "killed", "whole")
    )
    assert [part for part in PARTS if not same(straight[part], killed[part])] == []
    assert [row["step"] for row in lines(tmp_path / "killed")] == list(range(1, 13))
    assert near(straight["network"]["head.classes.1.bias"], whole["network"]["head.classes.1.bias"], 1e-2)


@pytest.mark.slow
def test_a_step_that_is_not_finite_is_written_down_whole(small_config: Path, tmp_path: Path) -> None:
    rate = "train_config.optimizer.momentum_optimizer.learning_rate.constant_learning_rate.learning_rate=1e30"
    config = smooth_config(small_config, tmp_path, rate)
    process = torchrun(2, config, tmp_path / "m", "--no-evaluate", "--shard")
    output, _ = process.communicate(timeout=180)
    assert process.returncode != 0
    assert "is not finite" in output
    assert "another process is gone" not in output
    (report,) = (tmp_path / "m").glob("not-finite-*/report.json")
    assert json.loads(report.read_text())["found"]["first"].startswith("process 0: ")
    newest = CheckpointStore(tmp_path / "m").paths()[-1]
    detector, _, step = bw.restore_detector(newest)
    assert step > 0
    assert next(detector.network.parameters()).shape == next(iter(read_checkpoint(newest)["network"].values())).shape


@pytest.mark.parametrize(
    ("count", "changes", "why"),
    [
        (1, [], "one process has nobody to share with"),
        (2, ["train_config.use_float16=true"], "float16"),
        (2, ["train_config.summarize_gradients=true"], "summarize_gradients"),
    ],
)
def test_what_it_cannot_do(small_config: Path, count: int, changes: list[str], why: str) -> None:
    plan = build_training(bw.load_config(small_config, changes))
    with pytest.raises(bw.TrainingError, match=f"--shard: .*{why}"):
        _check_shards(plan, Processes(0, count))


def test_not_together_with_compiling() -> None:
    with pytest.raises(bw.TrainingError, match="--shard: a network that is compiled"):
        bw.RunSettings(shard=True, compile=True)
