"""Training on a GPU: exact going on, copies on a stream of their own, half precision, profile."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
import torch
from PIL import Image
from torchvision.ops import box_iou

import boxwright as bw
from boxwright.config.load import parse_message
from boxwright.data.batch import Batch
from boxwright.nn.drop_path import StochasticDepth
from boxwright.pipeline import messages as m
from boxwright.training.state import placed
from boxwright.training.step import Learner, check_step
from boxwright.types.context_features import ContextFeatures
from boxwright.weights.store import read_checkpoint
from tests.center_nets import KEYPOINT_LABEL_MAP, with_every_task
from tests.cli.test_commands import run
from tests.cuda.families import ALL, configuration, learner_from, learner_of
from tests.cuda.test_center_net import OTHER_TASKS, TRAINING, labeled
from tests.cuda.test_families import TWO_STAGE
from tests.exporters.small_detectors import CATEGORIES, FAMILIES, build, pictures
from tests.exporters.test_context import CONTEXT_RCNN, LENGTH

pytestmark = [
    # PyTorch 2.11's own: of its graphs, its profiler, the mode that finds waits, and forks where CUDA has threads.
    pytest.mark.filterwarnings("default"),
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="no GPU: nothing here shows that training on one works"),
]


@pytest.fixture(autouse=True)
def _exact() -> Iterator[None]:
    """Let nothing round to TF32, as what a GPU computes is compared with the CPU."""
    matmul, convolutions = torch.backends.cuda.matmul.allow_tf32, torch.backends.cudnn.allow_tf32
    torch.backends.cuda.matmul.allow_tf32 = torch.backends.cudnn.allow_tf32 = False
    yield
    torch.backends.cuda.matmul.allow_tf32 = matmul
    torch.backends.cudnn.allow_tf32 = convolutions


def totals(learner: Learner, batch: Batch, steps: int) -> list[float]:
    """Take steps that are not waited for; return the total loss of each."""
    report, found = None, []
    for _ in range(steps):
        report = learner.step(batch, report, wait=False)
        found.append(report.losses["Loss/total_loss"])
    check_step(report, learner.state)
    return found


@pytest.mark.parametrize("use_bfloat16", ["false", "true"])
def test_cuda_graphs_give_the_same_losses(small_config: Path, use_bfloat16: str) -> None:
    from boxwright.training.losses import GraphedLosses
    from tests.training.test_step import FROZEN, learner

    found = []
    for graphed in (False, True):
        one, batch = learner(small_config, FROZEN, f"train_config.use_bfloat16={use_bfloat16}", device="cuda")
        if graphed:
            one.module = GraphedLosses(one.losses)
        there = batch.to("cuda")
        found.append(totals(one, there, 6))
    assert found[1] == pytest.approx(found[0], rel=1e-2)


@pytest.mark.parametrize("family", ["faster_rcnn", "mask_rcnn"])
def test_a_first_stage_that_is_replayed_gives_the_same_losses(family: str) -> None:
    from boxwright.training.losses import graphed

    found = []
    for captured in (False, True):
        one, batch, plan = learner_of(family, "fixed_shape", device="cuda")
        if captured:
            one.module = graphed(one.losses, plan)
        there = batch.to("cuda")
        found.append(totals(one, there, 3))
    assert found[1] == pytest.approx(found[0], rel=5e-2)


@pytest.mark.parametrize("change", ["", "train_config.use_bfloat16=true", "train_config.use_float16=true"])
def test_trains_saves_and_goes_on(
    small_config: Path, tmp_path: Path, change: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    # Otherwise sums in any order, of batches of two that are normalized, move weights by more than is allowed here.
    monkeypatch.setattr(torch.backends.cudnn, "deterministic", True)
    changes = [change] if change else []
    config = bw.load_config(small_config, changes)
    settings = bw.RunSettings(workers=1, device="cuda", log_every_n=1)
    assert bw.train(config, tmp_path / "whole", settings).step == 6
    bw.train(bw.load_config(small_config, [*changes, "train_config.num_steps=3"]), tmp_path / "parts", settings)
    assert bw.train(config, tmp_path / "parts", settings).step == 6
    whole, parts = (read_checkpoint(tmp_path / name / "ckpt-6.pt")["network"] for name in ("whole", "parts"))
    for name in whole:
        assert torch.allclose(whole[name], parts[name], rtol=1e-2, atol=1e-3), name


def test_batches_arrive_whole(small_config: Path, tmp_path: Path) -> None:
    from boxwright.data.batch import collate, to_input
    from boxwright.data.shapes import ShapesDataset
    from boxwright.nn.preprocessing import FixedShapeResizer
    from boxwright.training.examples import on_device

    dataset = ShapesDataset(24, seed=0)
    batches = [collate([to_input(dataset[n], FixedShapeResizer(256, 256))]).pin_memory() for n in range(24)]
    arrived = [batch.images.clone() for batch in on_device(batches, torch.device("cuda", 0))]
    assert len(arrived) == 24
    assert all(torch.equal(a.cpu(), b.images) for a, b in zip(arrived, batches, strict=True))


def test_profile(small_config: Path, tmp_path: Path) -> None:
    config = bw.load_config(small_config, ["train_config.num_steps=100"])
    bw.train(config, tmp_path / "m", bw.RunSettings(workers=1, device="cuda", profile=True))
    assert (tmp_path / "m" / "profile" / "trace.json").is_file()


def test_network_criterion_and_gradients_wait_for_nothing() -> None:
    """Nothing between the inputs and the gradients asks the GPU for a number."""
    from boxwright.nn.criteria.criterion import LossTerm
    from boxwright.types import Targets
    from tests.conftest import SMALL_MODEL

    detector = bw.build_detector(parse_message(SMALL_MODEL, m.TrainEvalPipelineConfig)).to("cuda").train()
    optimizer = torch.optim.SGD([one for one in detector.parameters() if one.requires_grad], 1e-3)
    inputs = torch.rand(2, 3, 64, 64, device="cuda")
    sizes = torch.full((2, 2), 64, device="cuda")
    boxes = torch.tensor([[[4.0, 4, 30, 40], [10, 20, 60, 50]]] * 2)
    ones = torch.ones(2, 2)
    targets = Targets(boxes, torch.tensor([[0, 1], [2, 3]]), ones, ones > 0).to("cuda")
    for mode in ("default", "error"):  # the first step may wait: libraries choose their algorithms
        torch.cuda.synchronize()
        torch.cuda.set_sync_debug_mode(mode)
        try:
            loss = LossTerm.sum(detector.criterion(detector.predict(inputs, sizes, targets), targets))
            torch.autograd.backward(loss)
            optimizer.step()
        finally:
            torch.cuda.set_sync_debug_mode("default")
    assert torch.isfinite(loss)


def test_a_step_waits_for_nothing(small_config: Path) -> None:
    """Losses, gradients, update, and the look at the step before: nothing asks the GPU for a number."""
    from tests.training.test_step import learner

    one, batch = learner(small_config, device="cuda")
    there = batch.to("cuda")
    report = None
    for _ in range(2):  # libraries choose their algorithms, slots are made
        report = one.step(there, report, wait=False)
    torch.cuda.synchronize()
    torch.cuda.set_sync_debug_mode("error")
    try:
        found = one.step(there, report, wait=False)
    finally:
        torch.cuda.set_sync_debug_mode("default")
    check_step(found, one.state)
    assert found.finite


def drawn_on_the_cpu(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let samplers draw the same numbers on every device."""
    rand = torch.rand
    monkeypatch.setattr(torch, "rand", lambda *shape, device="cpu", **how: rand(*shape, **how).to(device))
    monkeypatch.setattr(torch, "rand_like", lambda tensor: rand(tensor.shape).to(tensor.device))


def drop_nothing(network: torch.nn.Module) -> None:
    """Turn off dropout, whose masks each device draws by its own generator."""
    for module in network.modules():
        if isinstance(module, torch.nn.Dropout | StochasticDepth):
            module.p = 0.0


@pytest.mark.parametrize("family", ALL)
def test_a_step_computes_what_it_computes_on_the_cpu(family: str, monkeypatch: pytest.MonkeyPatch) -> None:
    drawn_on_the_cpu(monkeypatch)
    norms, losses = [], []
    for device in ("cpu", "cuda"):
        one, batch, _ = learner_of(family, device=device)
        network = one.state.detector.network
        drop_nothing(network)
        losses.append(one.step(batch.to(device)).losses)
        norms.append({name: float(p.grad.norm()) for name, p in network.named_parameters() if p.grad is not None})
    assert losses[1] == pytest.approx(losses[0], rel=1e-3, abs=1e-6)
    assert len(norms[0]) > 10
    # Weights changed by a millionth move norms by up to 8 % on the CPU: batches of two normalize by very few values.
    assert norms[1] == pytest.approx(norms[0], rel=0.15, abs=1e-4)


@pytest.mark.parametrize("task", ["every task of keypoints", *OTHER_TASKS])
def test_a_task_of_center_net_computes_what_it_computes_on_the_cpu(
    task: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    drawn_on_the_cpu(monkeypatch)
    path = tmp_path / "keypoints.pbtxt"
    path.write_text(KEYPOINT_LABEL_MAP)
    text = with_every_task(path) if task not in OTHER_TASKS else OTHER_TASKS[task][0]
    losses, found = [], []
    for device in ("cpu", "cuda"):
        torch.manual_seed(0)
        config = parse_message(f"model {{ {text} }}{TRAINING}", m.TrainEvalPipelineConfig)
        one, batch, _ = learner_from(config, CATEGORIES, (64, 96), device)
        found.append(one.state.detector.eval().detect(pictures(2)))
        one.state.detector.train()
        losses.append(one.step(labeled(batch).to(device)).losses)
    assert losses[1] == pytest.approx(losses[0], rel=1e-3, abs=1e-5)
    for here, there in zip(*found, strict=True):
        assert len(here.scores) > 0
        assert torch.allclose(there.scores, here.scores, atol=1e-3)


def test_context_rcnn_detects_what_it_detects_on_the_cpu() -> None:
    detector = build(CONTEXT_RCNN)
    images = pictures(2)
    memory = torch.rand(len(images), 3, LENGTH, generator=torch.Generator().manual_seed(1))
    context = ContextFeatures(memory, torch.arange(len(images)) % 3 + 1)
    here = detector.detect(images, context=context)
    there = detector.to("cuda").detect(images, context=context)
    for one, other in zip(here, there, strict=True):
        assert len(one.scores) > 0
        same = (box_iou(one.boxes, other.boxes) > 0.98) & (one.labels[:, None] == other.labels)
        same &= (one.scores[:, None] - other.scores).abs() < 1e-3
        assert float(same.any(1).float().mean()) > 0.7  # as below: proposals that tie


HALF = [
    (family, precision)
    for family in ALL
    for precision in ("bfloat16", "float16")
    # Its untrained ResNet-101 with frozen statistics reaches 115,000, and float16 ends at 65,504.
    if (family, precision) != ("rfcn", "float16")
]


@pytest.mark.parametrize(("family", "precision"), HALF)
def test_steps_in_half_precision_stay_near_those_of_float32(
    family: str, precision: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    drawn_on_the_cpu(monkeypatch)
    found = []
    for use in ("float32", f"use_{precision}: true"):
        one, batch, _ = learner_of(family, precision=use, device="cuda")
        drop_nothing(one.state.detector.network)
        found.append(one.step(batch.to("cuda")).losses["Loss/total_loss"])
    # Proposals are suppressed and sampled by scores: their rounding chooses other regions to learn from.
    assert found[1] == pytest.approx(found[0], rel=0.3 if family in TWO_STAGE else 0.05)


@pytest.mark.parametrize("family", FAMILIES)
def test_detections_are_those_of_the_cpu(family: str) -> None:
    detector = build(FAMILIES[family])
    here = detector.detect(pictures())
    there = detector.to("cuda").detect(pictures())
    # Many proposals of these detectors score exactly 1, and a GPU takes other ones of them.
    share = 0.7 if family in TWO_STAGE else 0.97
    assert sum(len(one.scores) for one in here) > 0
    for one, other in zip(here, there, strict=True):
        assert other.boxes.device.type == "cpu"
        same = (box_iou(one.boxes, other.boxes) > 0.98) & (one.labels[:, None] == other.labels)
        same &= (one.scores[:, None] - other.scores).abs() < 1e-3
        assert float(same.any(1).float().mean()) > share


@pytest.mark.parametrize("family", ["ssd", "efficientdet", "d_fine", "rf_detr"])
def test_graphs_detect_what_the_detector_does(family: str) -> None:
    torch.manual_seed(0)
    detector = placed(bw.build_detector(configuration(family, "own", "float32"), CATEGORIES), torch.device("cuda"))
    detector.optimize()
    expected = [detector.detect(pictures()[:count]) for count in (1, 2, 1)]
    detector.use_cuda_graphs()
    assert sum(len(one.scores) for some in expected for one in some) > 0
    for some, count in zip(expected, (1, 2, 1), strict=True):
        for one, other in zip(some, detector.detect(pictures()[:count]), strict=True):
            assert torch.equal(one.labels, other.labels)
            torch.testing.assert_close(other.boxes, one.boxes, atol=1e-2, rtol=1e-4)
            torch.testing.assert_close(other.scores, one.scores, atol=1e-4, rtol=1e-4)


@pytest.mark.parametrize("family", ["faster_rcnn", "ssd, soft"])
def test_what_waits_has_no_graph(family: str) -> None:
    detector = placed(
        bw.build_detector(configuration(family, "fixed_shape", "float32"), CATEGORIES), torch.device("cuda")
    )
    detector.optimize().use_cuda_graphs()
    with pytest.raises(bw.ConfigError, match="cannot be one graph"):
        detector.detect(pictures())


def test_train_evaluate_and_predict(small_config: Path, tmp_path: Path) -> None:
    model, photos = tmp_path / "model", tmp_path / "photos"
    photos.mkdir()
    for number, picture in enumerate(pictures()):
        Image.fromarray(picture).save(photos / f"{number}.png")
    run("train", "--pipeline_config_path", small_config, "--model_dir", model, "--device", "cuda", "--workers", "1")
    run("evaluate", "--pipeline_config_path", small_config, "--model_dir", model, "--device", "cuda", "--tf32")
    run("predict", photos, "--model_dir", model, "--device", "cuda:0", "--out", tmp_path / "found")
    assert (tmp_path / "found" / "detections.json").is_file()


def test_doctor(small_config: Path) -> None:
    run("doctor", small_config, "--device", "cuda")


def test_benchmark(small_config: Path) -> None:
    run("benchmark", small_config, "--device", "cuda", "--precision", "bfloat16", "--train", "--rounds", "3")


def test_one_process_of_torchrun(small_config: Path, tmp_path: Path) -> None:
    """One GPU shows that NCCL starts and ends; NCCL refuses two processes on one GPU."""
    from tests.training.test_distributed import finish, torchrun

    finish(torchrun(1, small_config, tmp_path / "model", "--device", "cuda"))
    assert (tmp_path / "model" / "ckpt-6.pt").exists()
