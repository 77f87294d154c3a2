"""D-FINE trains, resumes to the bit, is evaluated and predicts as others do; a batch in parts is the batch."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from torch import Tensor

import boxwright as bw
from boxwright.nn.criteria.criterion import TOTAL
from boxwright.weights.export_weights import weights_sha256
from tests.cli.test_commands import run
from tests.d_fines import D_FINE
from tests.training.detrs import (
    OBJECTS,
    check_parts,
    check_step,
    learn_by_heart,
    learner,
    with_objects,
    write_config,
)
from tests.training.test_distributed import lines, run_two

OWN_INITIALIZERS = True


@pytest.fixture
def d_fine_config(small_config: Path, tmp_path: Path) -> Path:
    return write_config(small_config, D_FINE, tmp_path / "d_fine.config")


@pytest.mark.slow
@pytest.mark.parametrize("parts", [2, 4])
def test_parts_add_up_to_the_batch(d_fine_config: Path, parts: int) -> None:
    """Counts of objects, of the union's pairs and of others divide; noise follows from each image's key."""
    assert len(check_parts(d_fine_config, parts)) == 14  # twelve terms, regularization and the total


def test_a_step_describes_its_objects(d_fine_config: Path) -> None:
    one, batch = learner(d_fine_config)
    said = one.step(
        with_objects(batch, torch.tensor([[8.0, 8, 40, 40], [2, 2, 9, 9]]), torch.tensor([0, 1])), describe=True
    )
    assert said.description is not None
    assert said.description.scalars == {"AvgNumGroundtruthBoxesPerImage": 2 / len(batch)}


def test_noise_follows_from_the_key_alone(d_fine_config: Path) -> None:
    one, batch = learner(d_fine_config)
    network = one.state.detector.network
    assert batch.targets.keys is not None
    turned = replace(
        batch.targets,
        **{name: value.flip(0) for name, value in vars(batch.targets).items() if isinstance(value, Tensor)},
    )
    denoiser = network.denoiser  # type: ignore[attr-defined]
    plain, other = denoiser(batch.targets, (64, 96), 20), denoiser(turned, (64, 96), 20)
    for name in ("labels", "references", "objects"):
        assert torch.equal(getattr(plain, name), getattr(other, name).flip(0)), name
    assert torch.equal(plain.blocked, other.blocked)
    torch.manual_seed(9)
    assert torch.equal(denoiser(batch.targets, (64, 96), 20).references, plain.references)
    keys = replace(batch.targets, keys=batch.targets.keys + 1)
    assert not torch.equal(denoiser(keys, (64, 96), 20).references, plain.references)


def test_noise_is_as_published(d_fine_config: Path) -> None:
    """A quarter of labels are random; corners move by less than half a side, or by half to a whole one."""
    one, batch = learner(d_fine_config)
    denoiser = replace(one.state.detector.network.denoiser, num_queries=800)  # type: ignore[type-var, call-overload]
    boxes, labels = torch.tensor([[32.0, 16.0, 64.0, 48.0]]), torch.tensor([1])
    noisy = denoiser(with_objects(batch, boxes, labels).targets, (64, 96), 20)
    assert noisy.groups == 800
    assert noisy.blocked.shape == (1620, 1620)
    # One query and its opposite per group; other images have padding alone, whose label is that of no class.
    assert noisy.labels[1:].unique().tolist() == [4]
    assert noisy.objects.unique().tolist() == [-1, 0]
    other = float((noisy.labels[0] != 1).float().mean())
    assert other == pytest.approx(3 / 16, abs=0.04)
    middle, sides = noisy.references[0].sigmoid().split(2, -1)
    corners = torch.cat([middle - sides / 2, middle + sides / 2], -1) * torch.tensor([96.0, 64.0, 96.0, 64.0])
    moved = ((corners - boxes[0]).abs() / 32).view(800, 2, 4)
    assert moved[:, 0].max() <= 0.501
    # Corners may pass each other, which turns them; most of those that are not cut off at the border are outside.
    assert 0.3 < float(moved[:, 1].mean()) < 0.8
    assert moved[:, 1].max() <= 1.001


@pytest.mark.slow_except("more0-none")
@pytest.mark.parametrize("objects", OBJECTS)
@pytest.mark.parametrize("more", [(), ("train_config.use_bfloat16=true",)])
def test_a_step_of_any_objects(d_fine_config: Path, objects: str, more: tuple[str, ...]) -> None:
    """More objects than queries, too; and without any, every weight has a gradient all the same."""
    losses = check_step(d_fine_config, objects, *more)
    if objects == "none":
        assert losses["Loss/l1_loss"] == 0
        assert losses["Loss/ddf_loss/pairs"] == 0


@pytest.mark.slow
def test_the_order_of_objects_and_padding_change_nothing(d_fine_config: Path) -> None:
    boxes, labels = OBJECTS["300"][0][:6], OBJECTS["300"][1][:6]
    found = []
    for order in (torch.arange(6), torch.tensor([3, 1, 5, 0, 2, 4])):
        one, batch = learner(d_fine_config, "model.d_fine.denoising.num_queries=0")
        found.append(one.step(with_objects(batch, boxes[order], labels[order])).losses)
    one, batch = learner(d_fine_config, "model.d_fine.denoising.num_queries=0")
    padded = with_objects(batch, boxes, labels)
    found.append(one.step(replace(padded, targets=padded.targets.padded_to(11))).losses)
    assert found[1] == pytest.approx(found[0], rel=1e-5)
    assert found[2] == pytest.approx(found[0], rel=1e-5)


def test_one_image_alone_and_in_a_batch(d_fine_config: Path) -> None:
    one, batch = learner(d_fine_config)
    detector = one.state.detector.eval()
    inputs = detector.preprocessor.normalize(batch.images, batch.true_sizes)
    with torch.no_grad():
        together, alone = detector.predict(inputs), detector.predict(inputs[1:2])
    for name in ("logits", "boxes"):
        ours, other = getattr(together.queries.layers[-1], name)[1], getattr(alone.queries.layers[-1], name)[0]
        torch.testing.assert_close(ours, other, rtol=1e-4, atol=1e-5)


@pytest.mark.slow
def test_train_go_on_evaluate_predict(d_fine_config: Path, shapes_data: Path, tmp_path: Path) -> None:
    model_dir = tmp_path / "m"
    shared = ("--config", d_fine_config, "--model_dir", model_dir, "--workers", 0, "--log_every_n", 1)
    assert "evaluation at step 2" in run("train", *shared, "--num_train_steps", 2)
    assert "resuming from" in run("train", *shared, "--num_train_steps", 3, "--no-evaluate")
    log = [json.loads(line) for line in (model_dir / "metrics.jsonl").read_text().splitlines()]
    assert {"Loss/classification_loss", "Loss/fgl_loss", "Loss/denoising/l1_loss", TOTAL} <= set(log[-1])
    assert run("evaluate", "--model_dir", model_dir, "--out", tmp_path / "e").strip().splitlines()[-2].startswith("AP ")
    hub = tmp_path / "hub"
    assert f"{hub / 'model.safetensors'}" in run("export", model_dir, hub, "--format", "transformers").replace("\n", "")
    theirs, ours = bw.load(hub / "model.safetensors", device="cpu"), bw.load(model_dir, device="cpu")
    assert theirs.detector.categories is not None
    assert [one.name for one in theirs.detector.categories] == [one.name for one in ours.detector.categories or ()]
    assert weights_sha256(theirs.detector) == weights_sha256(ours.detector)
    image = next((shapes_data / "voc" / "JPEGImages").glob("*.jpg"))
    predict = ("predict", image, "--model_dir", model_dir, "--min_score", 0, "--out")
    for number, more in enumerate(((), ("--tile", 48))):
        assert "in 1 image" in run(*predict, tmp_path / f"p{number}", *more)
        assert json.loads((tmp_path / f"p{number}" / "detections.json").read_text())


@pytest.mark.slow  # test_train.py resumes; what is drawn depends on keys alone
def test_an_interrupted_run_ends_as_one_that_was_not(d_fine_config: Path, tmp_path: Path) -> None:
    settings = bw.RunSettings(workers=0, preflight=False, evaluate=False)
    for steps in (2, 4):
        bw.train(bw.load_config(d_fine_config, [f"train_config.num_steps={steps}"]), tmp_path / "parts", settings)
    bw.train(bw.load_config(d_fine_config, ["train_config.num_steps=4"]), tmp_path / "whole", settings)
    first, second = (bw.restore_detector(tmp_path / name)[0].network.state_dict() for name in ("parts", "whole"))
    assert all(torch.equal(value, second[name]) for name, value in first.items())


@pytest.mark.slow  # test_distributed.py runs two processes; a batch in parts has the same divisors
def test_two_processes_are_one_with_the_whole_batch(d_fine_config: Path, tmp_path: Path) -> None:
    path = tmp_path / "sync.config"
    # AdamW's first step is its rate times the gradient's sign, which rounding turns where a gradient is nearly 0: with
    # a high rate the second step would choose other queries.
    text = d_fine_config.read_text().replace("learning_rate: 1e-3", "learning_rate: 1e-5")
    path.write_text(text.replace("denoising {", "sync_batch_norm: true denoising {"))
    shared = bw.RunSettings(workers=0, preflight=False, evaluate=False, log_every_n=1)
    bw.train(bw.load_config(path, ["train_config.num_steps=2"]), tmp_path / "one", shared)
    text = path.read_text().replace("num_steps: 6", "num_steps: 2")
    path.write_text(text)
    run_two(path, tmp_path / "two")
    for one, two in zip(lines(tmp_path / "one"), lines(tmp_path / "two"), strict=False):
        for name in (key for key in one if key.startswith("Loss/")):
            assert two[name] == pytest.approx(one[name], rel=2e-3, abs=1e-4), name


@pytest.mark.slow
def test_learns_eight_images_by_heart(tmp_path: Path) -> None:
    """AP at an overlap of a half is 0.9 and more on the images that it is trained on, within 400 steps."""
    metrics = learn_by_heart("d_fine { num_classes: 4 decoder { num_queries: 60 }", 1e-3, tmp_path)
    assert metrics["DetectionBoxes_Precision/mAP@.50IOU"] >= 0.9, metrics
