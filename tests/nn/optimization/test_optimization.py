"""Updates of weights and averages, and those that the device takes back."""

from __future__ import annotations

import copy
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from boxwright.base.errors import ConfigError
from boxwright.config.load import parse_message
from boxwright.config.support import refuse_contradictions
from boxwright.nn.optimization import undo
from boxwright.nn.optimization.moving_average import MovingAverage, average_decay
from boxwright.nn.optimization.optimizers import (
    Adam,
    AdamW,
    Momentum,
    MomentumTF1,
    Optimizer,
    RMSProp,
    RMSPropTF1,
)
from boxwright.nn.optimization.undo import Snapshot, in_parts, undone_on_error, undone_unless
from boxwright.pipeline import messages as m
from boxwright.pipeline.optimizer import build_optimizer


@pytest.mark.parametrize(
    ("decay", "wanted"),
    [
        # From 0, by min(decay, 2/11), min(decay, 3/12), min(decay, 4/13): TF's dynamic decay.
        (0.2, [9 / 11 * 2, 0.2 * 9 / 11 * 2 + 0.8 * 3, 0.2 * (0.2 * 9 / 11 * 2 + 0.8 * 3) + 0.8 * 5]),
        (0.9999, [18 / 11, 18 / 44 + 9 / 4, (18 / 44 + 9 / 4) * 4 / 13 + 45 / 13]),
        (0.0, [2, 3, 5]),
    ],
)
def test_moving_average_by_hand(decay: float, wanted: list[float]) -> None:
    layer = torch.nn.Linear(1, 1, bias=False)
    average = MovingAverage(layer, decay)
    found = []
    for count, weight in enumerate((2.0, 3.0, 5.0)):
        with torch.no_grad():
            layer.weight.fill_(weight)
        average.update(layer, count)
        found.append(average.shadow["weight"].item())
    assert found == pytest.approx(wanted)


def test_a_decay_that_rises_exponentially_by_hand() -> None:
    """0.9 · (1 − e^(−n / 4)): 0.354122 at n = 2, 0.568909 at 4; the first update copies."""
    decays = [average_decay(0.9, count, 4) for count in range(4)]
    assert decays == pytest.approx([0, 0.354122, 0.474870, 0.568909], abs=1e-6)
    assert average_decay(0.9999, 10**6, 1000) == pytest.approx(0.9999, rel=1e-12)
    layer = torch.nn.Linear(1, 1, bias=False)
    average, found = MovingAverage(layer, 0.9, ramp_steps=4), []
    for count, weight in enumerate((2.0, 3.0)):
        with torch.no_grad():
            layer.weight.fill_(weight)
        average.update(layer, count)
        found.append(average.shadow["weight"].item())
    assert found == pytest.approx([2, 3 - 0.354122], abs=1e-6)
    with pytest.raises(ConfigError, match="moving_average_ramp_steps: there is no average; set use_moving_average"):
        text = "adam_optimizer { } use_moving_average: false moving_average_ramp_steps: 9"
        refuse_contradictions(parse_message(text, m.Optimizer))


def test_statistics_are_averaged_where_they_are_named() -> None:
    network = torch.nn.Sequential(torch.nn.BatchNorm1d(1))
    average, plain = MovingAverage(network, 0.2, ["0.running_mean", "0.running_var"]), MovingAverage(network, 0.2)
    found = []
    for count, mean in enumerate((2.0, 3.0, 5.0)):
        network[0].running_mean.fill_(mean)  # type: ignore[union-attr, operator]
        average.update(network, count)
        found.append(average.shadow["0.running_mean"].item())
    first = 9 / 11 * 2
    assert found == pytest.approx([first, 0.2 * first + 0.8 * 3, 0.2 * (0.2 * first + 0.8 * 3) + 0.8 * 5])
    # It starts at its value, not at 0, and one that never changes is the same to the bit.
    assert average.shadow["0.running_var"].item() == 1.0
    assert average.shadow.keys() - plain.shadow.keys() == {"0.running_mean", "0.running_var"}


def test_adamw_is_pytorchs_with_biases_undecayed() -> None:
    torch.manual_seed(0)
    ours, theirs = (torch.nn.Linear(5, 3) for _ in range(2))
    theirs.load_state_dict(ours.state_dict())
    groups = [{"params": [theirs.weight], "weight_decay": 0.1}, {"params": [theirs.bias], "weight_decay": 0.0}]
    reference = torch.optim.AdamW(groups, lr=0.05, betas=(0.8, 0.95), eps=1e-3)
    optimizer = Optimizer(ours.parameters(), AdamW(0.1, 0.8, 0.95, 1e-3))
    optimizer.param_groups[0]["lr"] = 0.05
    for _ in range(7):
        x = torch.randn(4, 5)
        for layer, one in ((ours, optimizer), (theirs, reference)):
            one.zero_grad()
            torch.autograd.backward(layer(x).square().sum())
            one.step()
    assert torch.allclose(ours.weight, theirs.weight, rtol=1e-5, atol=1e-6)
    assert torch.allclose(ours.bias, theirs.bias, rtol=1e-5, atol=1e-6)


def test_average_is_kept_unless_told_otherwise() -> None:
    text = "momentum_optimizer { learning_rate { constant_learning_rate { } } }"
    assert build_optimizer(parse_message(text, m.Optimizer)).average_decay == 0.9999
    assert build_optimizer(parse_message(text + " use_moving_average: false", m.Optimizer)).average_decay is None


@pytest.mark.parametrize(
    ("text", "wanted"),
    [
        ("", "Optimizer: empty"),
        ("adam_optimizer { }", "adam_optimizer.learning_rate: missing"),
        ("adam_optimizer { learning_rate { } }", "adam_optimizer.learning_rate: empty"),
        (
            "adam_optimizer { learning_rate { constant_learning_rate { learning_rate: -1 } } }",
            ":1:.*greater than or equal to 0",
        ),
        ("adam_optimizer { learning_rate { manual_step_learning_rate { } } }", "no schedule"),
        (
            "adam_optimizer { learning_rate { manual_step_learning_rate { schedule { step: 5 } schedule { step: 5 } } } }",
            "expected rising steps",
        ),
        (
            "adam_optimizer { learning_rate { cosine_decay_learning_rate { total_steps: 5 warmup_steps: 9 } } }",
            "total_steps: 5 is less than warmup_steps 9",
        ),
        (
            "adam_optimizer { learning_rate { exponential_decay_learning_rate { decay_steps: 0 } } }",
            "decay_steps: .*or equal to 1",
        ),
        (
            "adamw_optimizer { learning_rate { cosine_decay_learning_rate { learning_rate_base: -0.1 warmup_steps: 0 } } }",
            r"learning_rate_base: should be greater than or equal to 0, found -0.1",
        ),
        (
            "adam_optimizer { learning_rate { constant_learning_rate { } } } moving_average_decay: 1.5",
            ":1:.*moving_average_decay: should be less than or equal to 1, found 1.5",
        ),
    ],
)
def test_bad_configurations(text: str, wanted: str) -> None:
    with pytest.raises(ConfigError, match=wanted):
        build_optimizer(parse_message(text, m.Optimizer))


RULES = [Momentum(), MomentumTF1(), RMSProp(), RMSPropTF1(), Adam(), AdamW()]
YES, NO = torch.tensor(True), torch.tensor(False)


def network() -> nn.Module:
    torch.manual_seed(3)
    layers = nn.Sequential(nn.Conv2d(3, 8, 3), nn.Conv2d(8, 8, 3, groups=8), nn.Conv2d(8, 4, 1), nn.Linear(4, 1))
    layers[0].to(memory_format=torch.channels_last)
    layers[1].weight.data = layers[1].weight.data.transpose(2, 3)
    return layers


def gradients_of(weights: list[Tensor], spoilt: bool) -> None:
    generator = torch.Generator().manual_seed(4)
    for weight in weights:
        weight.grad = torch.randn(weight.shape, generator=generator)
    if spoilt:
        weights[2].grad = torch.full_like(weights[2], torch.nan)


@pytest.mark.parametrize("at_once", [1, 600, 2**27])
@pytest.mark.parametrize("rule", RULES, ids=lambda rule: type(rule).__name__)
def test_an_update_is_whole_or_none(rule: Any, at_once: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """In any number of parts: with a flag that says yes as without a flag; with one that says no as if there was none."""
    monkeypatch.setattr(undo, "_AT_ONCE", at_once)
    plain, flagged = network(), network()
    learns, left_out = (Optimizer(one.parameters(), rule) for one in (plain, flagged))
    for optimizer in (learns, left_out):
        optimizer.param_groups[0]["lr"] = 0.1
    for spoilt in (True, False, True, False):
        if not spoilt:
            gradients_of(list(plain.parameters()), spoilt=False)
            learns.step()
        gradients_of(list(flagged.parameters()), spoilt)
        left_out.step(finite=NO if spoilt else YES)
        left_out.param_groups[0]["count"] -= spoilt
    for one, other in zip(plain.parameters(), flagged.parameters(), strict=True):
        assert torch.equal(one, other)
        assert learns.state[one].keys() == left_out.state[other].keys() == rule.slots.keys()
        assert all(torch.equal(learns.state[one][name], left_out.state[other][name]) for name in rule.slots)
    first = next(plain.parameters())
    assert not torch.equal(first, next(network().parameters()))


def test_an_average_follows_or_stays(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(undo, "_AT_ONCE", 600)
    followed = network()
    plain, flagged = MovingAverage(followed, 0.9), MovingAverage(followed, 0.9)
    for count, flag in enumerate((YES, NO, YES)):
        flagged.update(followed, count, finite=flag)
        if flag:
            plain.update(followed, count)
    assert all(torch.equal(value, flagged.shadow[name]) for name, value in plain.shadow.items())
    assert all(value.any() for value in plain.shadow.values())


def test_what_was_kept_comes_back_as_often_as_asked_for() -> None:
    values = [torch.arange(6.0).reshape(2, 3), torch.tensor(7.0), torch.zeros(0, 4)]
    before = copy.deepcopy(values)
    snapshot = Snapshot(values)
    for _ in range(2):
        for value in values:
            value.fill_(torch.nan)
        snapshot.restore(unless=YES)
        assert values[0].isnan().all()
        snapshot.restore(unless=NO)
        assert all(torch.equal(*both) for both in zip(before, values, strict=True))
    Snapshot([]).restore()
    Snapshot([]).restore(unless=NO)


@pytest.mark.parametrize("error", [RuntimeError, KeyboardInterrupt])
def test_an_error_undoes_the_block(error: type[BaseException]) -> None:
    values = [torch.arange(6.0).reshape(2, 3), torch.tensor(7.0)]
    before = copy.deepcopy(values)
    with pytest.raises(error), undone_on_error(values):
        values[0].fill_(torch.nan)
        raise error
    assert all(torch.equal(*both) for both in zip(before, values, strict=True))
    with undone_on_error(values) as snapshot:
        values[0].zero_()
    assert not values[0].any()
    snapshot.restore()
    assert torch.equal(before[0], values[0])


def test_memory_with_gaps_is_refused_before_anything_changes() -> None:
    gaps = torch.zeros(4, 6)[:, :4]
    with pytest.raises(RuntimeError, match="view"), undone_unless(NO, [gaps]):
        raise AssertionError("not reached")


def test_parts_are_small_and_nothing_is_left_out(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(undo, "_AT_ONCE", 4 * 100)
    sizes = [10, 20, 5, 300, 1, 1, 0, 49, 2]
    tensors = [torch.zeros(size) for size in sizes]
    parts = list(in_parts(tensors, others_of_each=1))
    # Of 50 numbers at a time.
    assert [sizes[part] for part in parts] == [[10, 20, 5], [300], [1, 1, 0], [49], [2]]
    assert list(in_parts([], 3)) == []
