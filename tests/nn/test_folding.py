"""Normalization folded into convolutions: every family gives the same predictions; what cannot be folded stays."""

from __future__ import annotations

import copy
from dataclasses import fields, is_dataclass
from typing import Any
from weakref import ReferenceType, ref

import numpy as np
import pytest
import torch
from torch import Tensor, nn

import boxwright as bw
from boxwright.base.errors import ConfigError
from boxwright.nn import folding
from boxwright.nn.batch_norm import BatchNorm2d
from boxwright.nn.folding import fold_batch_norms
from boxwright.types.packing import collect_tensors
from tests.exporters.small_detectors import FAMILIES, build, pictures, very_few_first


def norms(module: nn.Module) -> int:
    return sum(isinstance(one, nn.BatchNorm2d) for one in module.modules())


def random_norm(channels: int) -> BatchNorm2d:
    norm = BatchNorm2d(channels).eval()
    for value, low in ((norm.running_mean, -1.0), (norm.running_var, 0.1), (norm.weight, -2.0), (norm.bias, -1.0)):
        assert value is not None
        nn.init.uniform_(value, low, 2.0)
    return norm


class Branches(nn.Module):
    """Four uses of a convolution: followed alone, run twice, looked at by another too, and followed by something else."""

    def __init__(self) -> None:
        super().__init__()
        self.alone, self.twice, self.seen, self.last = (nn.Conv2d(4, 4, 1) for _ in range(4))
        self.norms = nn.ModuleList([random_norm(4) for _ in range(5)])

    def forward(self, x: Tensor) -> Tensor:
        x = self.norms[0](self.alone(x))
        x = self.norms[1](self.twice(x)) + self.norms[2](self.twice(x + 1))
        seen = self.seen(x)
        x = self.norms[3](seen) + self.norms[4](seen)
        return self.last(x).relu()


def test_only_what_is_followed_alone_is_folded() -> None:
    torch.manual_seed(0)
    network, x = Branches().eval(), torch.randn(1, 4, 5, 5)
    with torch.no_grad():
        wanted = network(x)
        assert fold_batch_norms(network, lambda: network(x)) == 1
        assert isinstance(network.norms[0], nn.Identity)
        assert norms(network) == 4
        torch.testing.assert_close(network(x), wanted)


def test_maps_are_freed_while_the_network_runs() -> None:
    """All layers' maps together take hundreds of megabytes."""
    layers = [nn.Sequential(nn.Conv2d(4, 4, 1), random_norm(4)) for _ in range(12)]
    network, x = nn.Sequential(*layers).eval(), torch.randn(1, 4, 5, 5)
    made: list[ReferenceType[Tensor]] = []
    most = 0

    def noted(_: nn.Module, __: object, output: Tensor) -> None:
        nonlocal most
        made.append(ref(output))
        most = max(most, sum(one() is not None for one in made))

    for layer in layers:
        layer[0].register_forward_hook(noted)
    with torch.no_grad():
        assert fold_batch_norms(network, lambda: network(x)) == 12
    assert len(made) >= 24
    assert most <= 3


class LooksTwice(nn.Module):
    """A convolution whose output something else than the normalization looks at too."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.norm, self.second, self.after = (
            nn.Conv2d(4, 4, 1),
            random_norm(4),
            nn.Conv2d(4, 4, 1),
            random_norm(4),
        )

    def forward(self, x: Tensor) -> Tensor:
        x = self.first(x)
        return self.after(self.second(self.norm(x) + x))


def test_what_something_else_looks_at_is_noticed() -> None:
    torch.manual_seed(0)
    network, x = LooksTwice().eval(), torch.randn(1, 4, 9, 9)
    with (
        pytest.raises(ConfigError, match="before second cannot be folded: other layers also use its output"),
        torch.no_grad(),
    ):
        fold_batch_norms(network, lambda: network(x))


def test_a_fold_that_differs_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    torch.manual_seed(0)
    network, x = Branches().eval(), torch.randn(1, 4, 5, 5)
    wanted = network(x)
    real = folding._folded

    def wrong(conv: nn.Conv2d, norm: nn.BatchNorm2d) -> nn.Conv2d:
        norm.eps += 0.1
        return real(conv, norm)

    monkeypatch.setattr(folding, "_folded", wrong)
    folded = network.norms[0].eps
    with pytest.raises(ConfigError, match="alone cannot be folded: it differs by"), torch.no_grad():
        fold_batch_norms(network, lambda: (setattr(network.norms[0], "eps", folded), network(x)))
    with torch.no_grad():
        torch.testing.assert_close(network(x), wanted)


def test_weights_that_are_not_numbers_are_folded_too() -> None:
    """A run that diverged can be looked at; it finds nothing, as before."""
    torch.manual_seed(0)
    network, x = Branches().eval(), torch.randn(1, 4, 5, 5)
    with torch.no_grad():
        network.alone.weight[0] = torch.nan
        assert fold_batch_norms(network, lambda: network(x)) == 1
        assert network(x).isnan().any()


def numbers(predictions: Any) -> list[Tensor]:
    if isinstance(predictions, Tensor):
        return [predictions.float()] if predictions.is_floating_point() else []
    if isinstance(predictions, tuple | list):
        return [tensor for part in predictions for tensor in numbers(part)]
    return (
        numbers([getattr(predictions, field.name) for field in fields(predictions)])
        if is_dataclass(predictions)
        else []
    )


# Of regions the sets may differ by a tie: their first stage is compared.
@pytest.mark.slow_except("ssd")
@pytest.mark.parametrize("family", very_few_first(FAMILIES))
def test_every_family_gives_the_same_predictions(family: str) -> None:
    detector, plain = build(FAMILIES[family]), build(FAMILIES[family])
    assert detector.optimize() is detector
    assert norms(detector) < norms(plain)
    assert detector.regularization().item() == plain.regularization().detach().item()
    image = pictures()[0]
    inputs, sizes = plain.preprocess(torch.from_numpy(image)[None])
    with torch.no_grad():
        found, wanted = (one.predict(inputs, sizes) for one in (detector, plain))
    if hasattr(found, "first"):
        found, wanted = found.first, wanted.first
    compared = list(zip(numbers(found), numbers(wanted), strict=True))
    assert len(compared) >= 3
    for ours, theirs in compared:
        torch.testing.assert_close(ours, theirs, atol=1e-4 * max(float(theirs.abs().max()), 1.0), rtol=1e-4)
    assert len(detector.detect([image])[0]) > 0


def test_an_optimized_detector_cannot_be_trained() -> None:
    detector = build(FAMILIES["ssd"]).optimize()
    with pytest.raises(ConfigError, match="cannot be trained"):
        detector.train()
    detector.eval().detect([np.zeros((20, 30, 3), np.uint8)])
    assert not any(parameter.requires_grad for parameter in detector.parameters())


def test_bfloat16_finds_about_the_same() -> None:
    image = pictures()[0]
    (plain,) = build(FAMILIES["ssd"]).detect([image])
    (found,) = build(FAMILIES["ssd"]).optimize(dtype=torch.bfloat16).detect([image])
    assert found.scores.dtype == torch.float32
    assert isinstance(found, bw.Detections)
    assert abs(float(found.scores[0] - plain.scores[0])) < 0.05


@pytest.mark.slow_except("ssd")
@pytest.mark.parametrize("family", FAMILIES)
def test_weights_that_are_cast_once_are_those_that_autocast_casts(family: str) -> None:
    """Rounding once or at each call is the same, where a layer's weights are read by that layer alone."""
    detector = build(FAMILIES[family]).optimize(dtype=torch.bfloat16)
    channels = detector.preprocessor.resizer.channels
    inputs = torch.linspace(-1, 1, channels * 128 * 128).view(1, channels, 128, 128)
    rounded = copy.deepcopy(detector)
    for module in detector.network.modules():
        if isinstance(module, nn.Conv2d | nn.ConvTranspose2d | nn.Linear):
            module.float()  # a float32 that holds what was rounded is cast to the same again
    with torch.no_grad():
        ours, theirs = (collect_tensors(each.predict(inputs)) for each in (rounded, detector))
    assert len(ours) == len(theirs) > 0
    for one, other in zip(ours, theirs, strict=True):
        assert torch.equal(one.float().nan_to_num(), other.float().nan_to_num())


class OnNoRows(nn.Module):
    """Applies two layers: one to its input and to none of it, as a second stage does without boxes, one to none."""

    def __init__(self) -> None:
        super().__init__()
        self.seen = nn.Sequential(nn.Conv2d(3, 4, 3), random_norm(4))
        self.unseen = nn.Sequential(nn.Conv2d(3, 4, 3), random_norm(4))

    def forward(self, inputs: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        return self.seen(inputs), self.seen(inputs[:0]), self.unseen(inputs[:0])


def test_runs_on_no_rows_verify_nothing() -> None:
    module = OnNoRows().eval()
    inputs = torch.randn(2, 3, 6, 6)
    expected, unseen = module.seen(inputs), module.unseen(inputs)
    with torch.no_grad():
        assert fold_batch_norms(module, lambda: module(inputs)) == 1
        assert norms(module.seen) == 0
        assert norms(module.unseen) == 1
        torch.testing.assert_close(module.seen(inputs), expected, rtol=1e-4, atol=1e-5)
        torch.testing.assert_close(module.unseen(inputs), unseen)
