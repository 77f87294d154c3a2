"""One step: in parts as at once, in any precision, frozen as asked."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

import boxwright as bw
from boxwright.base.distributed import ALONE
from boxwright.data.augmentation.transform import Chain
from boxwright.data.batch import Batch
from boxwright.data.loader import TrainingExamples, training_batches
from boxwright.nn.criteria.criterion import TOTAL
from boxwright.nn.drop_path import DropPath
from boxwright.pipeline.input_reader import build_dataset
from boxwright.pipeline.training import build_training
from boxwright.training.state import new_state, placed
from boxwright.training.step import Learner, NotFiniteError, check_step
from tests.conftest import Silent

FROZEN = "model.ssd.freeze_batchnorm=true"
ADAM = "train_config.optimizer.adam_optimizer={learning_rate { constant_learning_rate { learning_rate: 0.01 } } epsilon: 1e-3}"


def learner(config_path: Path, *overrides: str, device: str = "cpu") -> tuple[Learner, Batch]:
    config = bw.load_config(config_path, list(overrides))
    torch.manual_seed(0)
    assert config.train_input_reader is not None
    dataset = build_dataset(config.train_input_reader, "train_input_reader")
    detector = placed(bw.build_detector(config, dataset.categories), torch.device(device)).train()
    plan = build_training(config, workers=0)
    examples = TrainingExamples(dataset, Chain(), detector.preprocessor.resizer, 0)
    batch = next(iter(training_batches(examples, plan.stream)))
    return Learner(new_state(detector, plan), plan, ALONE), batch


def gradients(one: Learner) -> dict[str, torch.Tensor]:
    return {n: p.grad.clone() for n, p in one.state.detector.network.named_parameters() if p.grad is not None}


@pytest.mark.slow_except("false-2")
@pytest.mark.parametrize("parts", [2, 3, 4])
@pytest.mark.parametrize("normalize", ["true", "false"])
def test_parts_add_up_to_the_batch(mobilenet_config: Path, parts: int, normalize: str) -> None:
    """With statistics frozen nothing else joins the images of a batch."""
    more = (FROZEN, f"model.ssd.normalize_loss_by_num_matches={normalize}")
    whole, batch = learner(mobilenet_config, *more)
    split, _ = learner(mobilenet_config, *more, f"train_config.gradient_accumulation_steps={parts}")
    once, twice = whole.step(batch), split.step(batch)
    assert twice.losses == pytest.approx(once.losses, rel=1e-5)
    first, second = gradients(whole), gradients(split)
    assert first.keys() == second.keys()
    assert len(first) > 50
    for name, gradient in first.items():
        assert torch.allclose(gradient, second[name], rtol=1e-3, atol=1e-5 * float(gradient.abs().max()) + 1e-7), name


@pytest.mark.slow
def test_memory_that_is_too_small_splits_the_batch(mobilenet_config: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    heard: list[str] = []

    class Listener(Silent):
        def message(self, text: str) -> None:
            heard.append(text)

    Listener()
    whole, batch = learner(mobilenet_config, FROZEN)
    small, _ = learner(mobilenet_config, FROZEN)
    forward, statistics = small.losses.forward, [b.clone() for b in small.state.detector.network.buffers()]

    def out_of_memory(images: Any, *others: Any) -> Any:
        result = forward(images, *others)
        if len(images) > 1:
            raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2.00 GiB")
        return result

    monkeypatch.setattr(small.losses, "forward", out_of_memory)
    found = small.step(batch)
    assert small.state.parts == 4
    assert small._parts(batch.split(2)[0]) == 2, "never more parts than images"
    assert [text.split(" in ")[1] for text in heard] == ["2 parts from here on", "4 parts from here on"]
    assert found.losses == pytest.approx(whole.step(batch).losses, rel=1e-5)
    assert all(torch.equal(a, b) for a, b in zip(statistics, small.state.detector.network.buffers(), strict=True))
    content = small.state.content("")
    assert content["parts"] == 4, "a resumed run learns in as many parts"


def oom(*_: Any, **__: Any) -> Any:
    raise RuntimeError("CUDA error: out of memory\nCUDA kernel errors might be reported later")


def whole_state(one: Learner) -> list[torch.Tensor]:
    """Return copies of weights, statistics, slots and averages."""
    state = one.state
    slots = [value for some in state.optimizer.state.values() for value in some.values()]
    averages = [] if state.average is None else list(state.average.shadow.values())
    network = state.detector.network
    return [value.detach().clone() for value in (*network.parameters(), *network.buffers(), *slots, *averages)]


def not_a_number(batch: Batch) -> Batch:
    return replace(batch, images=torch.full_like(batch.images.float(), torch.nan))


@pytest.mark.slow
@pytest.mark.parametrize("in_time", [True, False], ids=["looked for", "found by the next step"])
@pytest.mark.parametrize("optimizer", [(), (ADAM,)], ids=["momentum", "adam"])
def test_a_step_that_is_not_finite_changes_nothing(
    mobilenet_config: Path, optimizer: tuple[str, ...], in_time: bool
) -> None:
    """Not waited for, it is left out by the device, and the steps after it are those of a run that never saw it."""
    averaged = "train_config.optimizer.use_moving_average=true"
    plain, batch = learner(mobilenet_config, averaged, *optimizer)
    one, _ = learner(mobilenet_config, averaged, *optimizer)
    plain.step(batch)
    one.step(batch)
    before = whole_state(one)
    report = one.step(not_a_number(batch), wait=False)
    assert one.state.step == 2, "not known yet"
    with pytest.raises(NotFiniteError, match="step 2: the loss is not finite"):
        check_step(report, one.state) if in_time else one.step(batch, report, wait=False)
    assert (one.state.step, one.state.samples) == (1, plain.state.samples)
    assert all(torch.equal(*both) for both in zip(before, whole_state(one), strict=True))
    following = None
    for _ in range(2):
        following = one.step(batch, following, wait=False)
        assert following.losses == plain.step(batch).losses
    check_step(following, one.state)
    assert one.state.step == 3
    assert all(torch.equal(*both) for both in zip(whole_state(plain), whole_state(one), strict=True))
    assert len(before) > 200


def test_a_first_step_that_is_not_finite_changes_nothing(mobilenet_config: Path) -> None:
    one, batch = learner(mobilenet_config, ADAM)
    before = [value.detach().clone() for value in one.state.detector.network.state_dict().values()]
    report = one.step(not_a_number(batch), wait=False)
    with pytest.raises(NotFiniteError, match="step 1"):
        check_step(report, one.state)
    assert not one.state.updating
    assert one.state.step == 0
    after = one.state.detector.network.state_dict().values()
    assert all(torch.equal(*both) for both in zip(before, after, strict=True))
    assert all(not value.any() for some in one.state.optimizer.state.values() for value in some.values())
    assert one.state.optimizer.param_groups[0]["count"] == 0


@pytest.mark.parametrize("wait", [True, False])
def test_an_update_that_does_not_fit_is_said_and_the_state_counts_as_broken(
    mobilenet_config: Path, monkeypatch: pytest.MonkeyPatch, wait: bool
) -> None:
    one, batch = learner(mobilenet_config, ADAM, FROZEN)
    one.step(batch, wait=wait)
    real = torch._foreach_addcdiv_

    def half(parameters: list[torch.Tensor], *others: Any, **more: Any) -> None:
        real([parameters[0]], [others[0][0]], [others[1][0]], **more)
        oom()

    monkeypatch.setattr(torch, "_foreach_addcdiv_", half)
    with pytest.raises(bw.TrainingError, match=r"step 2: not enough memory to update the weights \(CUDA error: out of"):
        one.step(batch, wait=wait)
    assert one.state.updating
    assert one.state.step == 1


def test_a_step_that_is_interrupted_changes_nothing(mobilenet_config: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Neither the statistics of normalization, which forward has moved by then, nor what counts."""
    one, batch = learner(mobilenet_config, ADAM)
    one.step(batch)
    before = whole_state(one)

    def interrupted(*_: Any) -> Any:
        raise KeyboardInterrupt

    monkeypatch.setattr(torch.autograd, "backward", interrupted)
    with pytest.raises(KeyboardInterrupt):
        one.step(batch)
    assert not one.state.updating
    assert one.state.step == 1
    assert all(torch.equal(*both) for both in zip(before, whole_state(one), strict=True))


def test_one_image_too_large_is_an_error(mobilenet_config: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    one, batch = learner(mobilenet_config)

    def out_of_memory(*_: Any) -> Any:
        raise RuntimeError("[enforce fail at alloc_cpu.cpp:117] DefaultCPUAllocator: can't allocate memory")

    monkeypatch.setattr(one.losses, "forward", out_of_memory)
    with pytest.raises(bw.TrainingError, match="not enough memory: one image is too much"):
        one.step(batch)


@pytest.mark.slow_cases("use_float16")
@pytest.mark.parametrize("precision", ["use_bfloat16", "use_float16"])
def test_half_precision_is_near(mobilenet_config: Path, precision: str) -> None:
    full, batch = learner(mobilenet_config)
    half, _ = learner(mobilenet_config, f"train_config.{precision}=true")
    one, other, overflows = full.step(batch), half.step(batch), 0
    while other.skipped:
        overflows += 1
        assert overflows < 12
        other = half.step(batch)
    assert other.losses == pytest.approx(one.losses, rel=0.03)
    # The smallest network there is, with maps of 2×2: its gradients are no better conditioned than that.
    assert other.gradient_norm == pytest.approx(one.gradient_norm, rel=0.5)
    assert half.state.scaler.is_enabled() == (precision == "use_float16")
    assert all(p.dtype == torch.float32 for p in half.state.detector.network.parameters())


def test_overflow_of_float16_leaves_the_step_out_and_lowers_the_scale(mobilenet_config: Path) -> None:
    one, batch = learner(mobilenet_config, "train_config.use_float16=true")
    one.state.scaler = torch.amp.GradScaler("cpu", init_scale=2.0**60)
    before = {n: p.detach().clone() for n, p in one.state.detector.network.named_parameters()}
    found = one.step(batch)
    assert found.skipped
    assert one.state.step == 1
    assert one.state.scaler.get_scale() == 2.0**59
    assert all(torch.equal(before[n], p) for n, p in one.state.detector.network.named_parameters())


def test_clipping_of_each_gradient_is_by_its_own_norm(mobilenet_config: Path) -> None:
    """As tf.clip_by_norm: those within the limit stay, the others have it as their norm."""
    free, batch = learner(mobilenet_config)
    each = "train_config.gradient_clipping=EACH"
    clipped, _ = learner(mobilenet_config, "train_config.gradient_clipping_by_norm=0.05", each)
    unlimited, _ = learner(mobilenet_config, each)
    assert free.step(batch).gradient_norm == pytest.approx(clipped.step(batch).gradient_norm)
    unlimited.step(batch)
    plain, found, same = gradients(free), gradients(clipped), gradients(unlimited)
    norms = {name: float(gradient.norm()) for name, gradient in plain.items()}
    assert min(norms.values()) < 0.05 < max(norms.values())
    for name, norm in norms.items():
        assert torch.allclose(found[name], plain[name] * min(0.05 / max(norm, 1e-12), 1.0), rtol=1e-5, atol=1e-8), name
        assert torch.equal(same[name], plain[name]), name


@pytest.mark.slow
def test_clipping_is_by_the_norm_of_all(mobilenet_config: Path) -> None:
    free, batch = learner(mobilenet_config)
    clipped, _ = learner(mobilenet_config, "train_config.gradient_clipping_by_norm=0.5")
    norm = free.step(batch).gradient_norm
    assert clipped.step(batch).gradient_norm == pytest.approx(norm)
    assert norm > 0.5
    ratio = {n: float(g.norm() / gradients(free)[n].norm()) for n, g in gradients(clipped).items() if g.norm() > 1e-6}
    assert len(ratio) > 50
    assert list(ratio.values()) == pytest.approx([0.5 / norm] * len(ratio), rel=1e-3)


def test_bias_multiplier_is_for_biases_of_convolutions(mobilenet_config: Path) -> None:
    plain, batch = learner(mobilenet_config)
    tripled, _ = learner(mobilenet_config, "train_config.bias_grad_multiplier=3")
    plain.step(batch)
    tripled.step(batch)
    first, second = gradients(plain), gradients(tripled)
    shapes = dict(plain.state.detector.network.named_parameters())
    hit = {n for n in first if float(first[n].norm()) > 1e-4 and torch.allclose(second[n], 3 * first[n], rtol=1e-3)}
    wanted = {n for n in first if n.endswith(".bias") and shapes[n[:-4] + "weight"].ndim == 4}
    assert hit == {name for name in wanted if float(first[name].norm()) > 1e-4}
    assert len(hit) >= 2


def test_what_is_frozen_stays(mobilenet_config: Path) -> None:
    one, batch = learner(
        mobilenet_config,
        "train_config.freeze_variables=_feature_extractor/classification_backbone",
        "train_config.optimizer.adam_optimizer={learning_rate { constant_learning_rate { learning_rate: 0.01 } }}",
        "train_config.freeze_stage={until_step: 2 variables: 'neck'}",
    )
    moved: list[set[str]] = []
    for _ in range(3):
        before = {n: p.detach().clone() for n, p in one.state.detector.network.named_parameters()}
        one.step(batch)
        after = dict(one.state.detector.network.named_parameters())
        moved.append({n.split(".")[0] for n in before if not torch.equal(before[n], after[n])})
    assert moved == [{"head"}, {"head"}, {"head", "neck"}]
    assert "backbone" in one.trainable.report(0)
    assert one.trainable.changes() == [2]


@pytest.mark.slow_except("train_config.freeze_stage={until_step: 5 variables: '.'}-nothing learns at step 0")
@pytest.mark.parametrize(
    ("override", "wanted"),
    [
        ("train_config.freeze_variables=nowhere", "'nowhere' hits none of the .* variables; names are ours, such as"),
        ("train_config.update_trainable_variables=(", "not a regular expression"),
        ("train_config.freeze_stage={until_step: 5 variables: '.'}", "nothing learns at step 0"),
        ("train_config.freeze_stage={until_step: 5 variables: 'x^'}", r"freeze_stage\[0\].variables: 'x\^' hits none"),
    ],
)
def test_bad_patterns(mobilenet_config: Path, override: str, wanted: str) -> None:
    with pytest.raises(bw.ConfigError, match=wanted):
        learner(mobilenet_config, override)


@pytest.mark.slow_except("^FeatureExtractor/-part0")
@pytest.mark.parametrize(
    ("pattern", "part"),
    [
        ("^FeatureExtractor/", {"backbone", "neck"}),
        ("BoxPredictor", {"head"}),
        ("_box_predictor", {"head"}),
        ("model/_feature_extractor", {"backbone", "neck"}),
        ("^neck\\.", {"neck"}),
    ],
)
def test_names_of_tf_and_ours(mobilenet_config: Path, pattern: str, part: set[str]) -> None:
    one, _ = learner(mobilenet_config, f"train_config.freeze_variables={pattern}")
    frozen = {n for n, _ in one.state.detector.network.named_parameters()} - set(one.trainable.at(0))
    assert {name.split(".")[0] for name in frozen if "norm" not in name} == part


def test_total_is_the_sum(mobilenet_config: Path) -> None:
    one, batch = learner(mobilenet_config)
    losses = one.step(batch).losses
    assert losses[TOTAL] == pytest.approx(sum(value for name, value in losses.items() if name != TOTAL))


def test_drop_path_follows_the_step(mobilenet_config: Path) -> None:
    first, batch = learner(mobilenet_config)
    paths = DropPath(most=0.5, steps=10)
    first.state.detector.network.add_module("paths", paths)
    one = Learner(first.state, first.plan, ALONE)
    shares = []
    for _ in range(3):
        one.step(batch)
        shares.append(float(paths.share))
    assert shares == pytest.approx([0.0, 0.05, 0.1])
    one.state.step = 400
    one.step(batch)
    assert float(paths.share) == 0.5
