"""D-FINE imitates a teacher in training as RT-DETRv4 does, and keeps nothing of it for use."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import save_file
from torch import Tensor, nn

import boxwright as bw
from boxwright.base.errors import CheckpointError, ConfigError
from boxwright.families.d_fine.distillation import Distiller, Imitation, Teacher, WeightSchedule, compute_distillation
from tests.d_fines import D_FINE
from tests.training.detrs import check_parts, learner, write_config

TEACHER = "test_vit.r160_in1k"
# Weight before, mean share, weight after, for a band of 0.10 to 0.12 and a default of 20: the far edge t of the band is
# aimed at, by a factor of t (1 - q) / (q (1 - t)), which lies between a tenth and ten.
ADAPTED = {
    "within": (5.0, 0.11, 5.0),
    "below": (5.0, 0.05, 5 * (0.12 * 0.95) / (0.05 * 0.88)),
    "above": (5.0, 0.15, 5 * (0.10 * 0.85) / (0.15 * 0.90)),
    "far below": (5.0, 0.0001, 50.0),
    "far above": (5.0, 0.9, 0.5),
    "none": (5.0, 0.0, 20.0),
}


@pytest.fixture
def teacher_file(tmp_path: Path) -> Path:
    """Weights of timm's small vision transformer, drawn at random."""
    import timm

    path = tmp_path / "teacher.safetensors"
    torch.manual_seed(3)
    save_file(timm.create_model(TEACHER, num_classes=0).state_dict(), path)
    return path


@pytest.fixture
def config(small_config: Path, tmp_path: Path, teacher_file: Path) -> Path:
    block = f'distillation {{ teacher: "timm/{TEACHER}" teacher_checkpoint: "{teacher_file}" adapt_every: 2 }}'
    model = f"{D_FINE.removesuffix('}')} {block} }}"
    return write_config(small_config, model, tmp_path / "distilled.config")


def maps(*columns: tuple[float, float]) -> Tensor:
    """Return a map [1, 2, 1, w] of vectors."""
    return torch.tensor(columns).T[None, :, None]


def test_loss_is_the_mean_distance_of_directions() -> None:
    """The cosines are 24 / 25 and 0, so that the mean of 1 - cosine is 0.52; lengths do not count."""
    student, teacher = maps((3.0, 4.0), (7.0, 0.0)), maps((4.0, 3.0), (0.0, 0.1))
    of_two_images = Imitation(torch.cat([student] * 2), torch.cat([teacher] * 2), torch.tensor(5.0))
    term = compute_distillation(of_two_images)
    assert float(term.total) == pytest.approx(2 * 5 * 0.52)
    assert term.count is not None
    assert float(term.count) == 2


def test_a_teacher_of_another_grid_is_resized() -> None:
    """Half as many columns: each lies between two of the teacher's, and takes their mean."""
    teacher = maps((1.0, 0.0), (0.0, 1.0), (1.0, 0.0), (1.0, 0.0))
    term = compute_distillation(Imitation(maps((1.0, 1.0), (0.0, 2.0)), teacher, torch.tensor(1.0)))
    assert float(term.total) == pytest.approx((0 + 1) / 2, abs=1e-6)


@pytest.mark.parametrize("case", ADAPTED)
def test_weight_follows_the_share(case: str) -> None:
    before, share, after = ADAPTED[case]
    found = WeightSchedule().adapt(torch.tensor(before), torch.tensor(share), 1000)
    assert float(found) == pytest.approx(after, rel=1e-5)


def test_weight_is_the_default_late_and_by_the_letter_in_one_process() -> None:
    weight, share = torch.tensor(5.0), torch.tensor(0.11)
    assert float(WeightSchedule(default_from=1000).adapt(weight, share, 999)) == 5
    assert float(WeightSchedule(default_from=1000).adapt(weight, share, 1000)) == 20
    assert float(WeightSchedule(measures_alone=False).adapt(weight, share, 1000)) == 20


def test_share_is_of_absolute_gradients(teacher_file: Path) -> None:
    """Shares of 3 / 10 and 1 / 2 have a mean of 0.4; a step whose gradients overflowed does not count."""
    distiller = Distiller(4, Teacher(TEACHER, str(teacher_file)), WeightSchedule(start=1.0, every=3))
    attention, other = nn.Parameter(torch.zeros(2)), nn.Parameter(torch.zeros(2))
    for first, second in (([1.0, -2.0], [3.0, 4.0]), ([5.0, 0.0], [-5.0, 0.0]), ([1.0, 1.0], [float("inf"), 0.0])):
        attention.grad, other.grad = torch.tensor(first), torch.tensor(second)
        distiller.observe([attention], [attention, other])
    assert distiller.shares.tolist() == pytest.approx([0.8, 2])
    distiller.begin_step(3)
    assert float(distiller.weight) == pytest.approx((0.10 * 0.6) / (0.4 * 0.90))
    assert distiller.shares.tolist() == [0, 0]
    adapted = float(distiller.weight)
    distiller.begin_step(3)  # as a step that is tried again does
    assert float(distiller.weight) == adapted


def test_a_step_turns_the_coarsest_map_towards_the_teacher(config: Path, teacher_file: Path) -> None:
    import timm

    one, batch = learner(config)
    network = one.state.detector.network
    inputs = one.state.detector.preprocessor.normalize(batch.images, batch.true_sizes)
    seen: dict[str, Tensor] = {}
    attention = network.get_submodule("encoder.encoder.0")
    hook = attention.register_forward_hook(lambda _, __, outputs: seen.update(attended=outputs.detach().clone()))
    weight, bias = (
        network.get_parameter(f"distiller.projector.{kind}").detach().clone() for kind in ("weight", "bias")
    )
    loss = one.step(batch).losses["Loss/distillation_loss"]
    hook.remove()

    body: Any = timm.create_model(
        TEACHER, pretrained=True, pretrained_cfg_overlay={"file": str(teacher_file)}, num_classes=0, img_size=(32, 48)
    ).eval()
    mean, deviation = (torch.tensor(body.pretrained_cfg[key]).view(3, 1, 1) for key in ("mean", "std"))
    halves = nn.functional.interpolate((inputs - mean) / deviation, scale_factor=0.5, mode="area")
    with torch.no_grad():
        wanted = body.forward_features(halves)[:, body.num_prefix_tokens :]  # [B, 6, C], normalized
    student = torch.einsum("bdn,cd->bnc", seen["attended"].flatten(2), weight) + bias
    cosines = (nn.functional.normalize(student, dim=-1) * nn.functional.normalize(wanted, dim=-1)).sum(-1)
    assert loss == pytest.approx(5 * float((1 - cosines).mean()), rel=1e-4)
    assert [name for name, p in network.named_parameters() if p.grad is None] == []
    assert not any("teacher" in name or "body" in name for name in network.state_dict() if name.startswith("distiller"))


def test_share_of_a_step_is_that_of_its_gradients(config: Path) -> None:
    one, batch = learner(config)
    one.step(batch)
    network = one.state.detector.network
    norms = {name: float(p.grad.abs().sum()) for name, p in network.named_parameters() if p.grad is not None}
    part = sum(norm for name, norm in norms.items() if name.startswith("encoder.encoder."))
    shares = network.get_buffer("distiller.shares").tolist()
    assert shares == pytest.approx([part / sum(norms.values()), 1], rel=1e-4)


@pytest.mark.slow
def test_an_interrupted_run_ends_as_one_that_was_not_and_leaves_the_teacher_behind(
    config: Path, tmp_path: Path, teacher_file: Path
) -> None:
    settings = bw.RunSettings(workers=0, preflight=False, evaluate=False)
    for steps in (1, 3):  # the weight changes before the third step
        bw.train(bw.load_config(config, [f"train_config.num_steps={steps}"]), tmp_path / "parts", settings)
    bw.train(bw.load_config(config, ["train_config.num_steps=3"]), tmp_path / "whole", settings)
    first, second = (
        torch.load(tmp_path / name / "ckpt-3.pt", weights_only=True)["network"] for name in ("parts", "whole")
    )
    assert first.keys() == second.keys()
    assert all(torch.equal(value, second[name]) for name, value in first.items())
    assert float(first["distiller.weight"]) != 5
    assert first["distiller.shares"][1] == 1  # of the third step

    teacher_file.unlink()
    detector, _, _ = bw.restore_detector(tmp_path / "parts")
    names = detector.network.state_dict().keys()
    assert names == {name for name in first if not name.startswith("distiller.")}


@pytest.mark.slow  # test_d_fine.py divides the other losses
def test_parts_add_up_to_the_batch(config: Path) -> None:
    assert "Loss/distillation_loss" in check_parts(config, 2)


def test_mistakes_are_named(config: Path, tmp_path: Path) -> None:
    field = "model.d_fine.distillation"
    with pytest.raises(ConfigError, match=r"distillation.teacher timm/vit_huge_patch3: timm has no such network"):
        bw.build_detector(bw.load_config(config, [f"{field}.teacher=timm/vit_huge_patch3"]))
    with pytest.raises(ConfigError, match="leaves no share beside target_share"):
        bw.build_detector(bw.load_config(config, [f"{field}.share_tolerance=0.2"]))
    one, batch = learner(config, f"{field}.teacher_checkpoint={tmp_path / 'nothing.safetensors'}")
    with pytest.raises(CheckpointError, match=r"weights of timm/test_vit\.r160_in1k could not be read from .*nothing"):
        one.step(batch)
    one, batch = learner(config, f"{field}.teacher=timm/vit_large_patch14_224", f"{field}.teacher_checkpoint=")
    with pytest.raises(ConfigError, match="timm has no weights of it; name a file by teacher_checkpoint"):
        one.step(batch)
    one, batch = learner(config, f"{field}.pooling=4")
    with pytest.raises(ConfigError, match="multiples of 16, found 16×24 after a pooling of 4"):
        one.step(batch)
