"""Updates that the device takes back."""

from __future__ import annotations

import copy
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from boxwright.nn.optimization import undo
from boxwright.nn.optimization.moving_average import MovingAverage
from boxwright.nn.optimization.optimizers import Adam, AdamW, Momentum, MomentumTF1, Optimizer, RMSProp, RMSPropTF1
from boxwright.nn.optimization.undo import Snapshot, in_parts, undone_on_error, undone_unless

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
