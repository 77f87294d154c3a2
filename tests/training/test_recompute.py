"""Maps computed again: the same numbers from less memory."""

from __future__ import annotations

import copy
from pathlib import Path

import pytest
import torch
from torch import Tensor, nn

import boxwright as bw
from boxwright.training.losses import recompute_blocks
from boxwright.weights.store import read_checkpoint
from tests.exporters.small_detectors import FAMILIES, build, some_first
from tests.training.test_step import learner


def learnt(network: nn.Module, inputs: Tensor) -> tuple[dict[str, Tensor], dict[str, Tensor]]:
    """Return gradients and statistics after one pass through a backbone."""
    torch.manual_seed(2)
    maps = network(inputs)
    torch.autograd.backward([(one * torch.linspace(-1, 1, one.numel()).view(one.shape)).sum() for one in maps])
    gradients = {name: p.grad for name, p in network.named_parameters() if p.grad is not None}
    return gradients, dict(network.named_buffers())


@pytest.mark.slow_except("align_det")
@pytest.mark.parametrize("family", some_first(FAMILIES))
def test_gradients_and_statistics_are_the_same_to_the_last_bit(family: str) -> None:
    plain = build(FAMILIES[family]).train().network.backbone
    again = copy.deepcopy(plain)
    assert recompute_blocks(again) >= 3
    assert list(again.state_dict()) == list(plain.state_dict())
    channels = next(one.in_channels for one in plain.modules() if isinstance(one, nn.Conv2d))
    inputs = torch.randn(2, channels, 128, 128, generator=torch.Generator().manual_seed(1))
    first, second = learnt(plain, inputs), learnt(again, inputs)
    for expected, found in zip(first, second, strict=True):
        assert expected.keys() == found.keys()
        assert expected
        for name, value in expected.items():
            assert torch.equal(value, found[name]), name


def test_statistics_move_once(mobilenet_config: Path) -> None:
    one, batch = learner(mobilenet_config)
    network = one.state.detector.network
    given: dict[str, list[torch.Tensor]] = {}
    norms = {name: part for name, part in network.backbone.named_modules() if isinstance(part, nn.BatchNorm2d)}
    for name, norm in norms.items():
        norm.register_forward_hook(
            lambda _, inputs, __, name=name: given.setdefault(name, []).append(inputs[0].detach().clone())
        )
    recompute_blocks(network.backbone)
    before = {name: norm.running_mean.clone() for name, norm in norms.items() if norm.running_mean is not None}
    one.step(batch)
    assert sum(len(of_norm) == 2 for of_norm in given.values()) > 15
    for name, norm in norms.items():
        assert norm.momentum is not None
        moved = before[name].lerp(given[name][0].mean((0, 2, 3)), norm.momentum)
        torch.testing.assert_close(norm.running_mean, moved, msg=name)


def test_less_is_kept(mobilenet_config: Path) -> None:
    """What the backbone keeps for its backward pass is what its blocks are given."""

    def kept(network: nn.Module) -> int:
        bytes_of: dict[int, int] = {}

        def pack(value: Tensor) -> Tensor:
            bytes_of[value.untyped_storage().data_ptr()] = value.untyped_storage().nbytes()
            return value

        with torch.autograd.graph.saved_tensors_hooks(pack, lambda value: value):
            maps = network(torch.randn(2, 3, 128, 128))
        assert maps
        return sum(bytes_of.values())

    plain = learner(mobilenet_config)[0].state.detector.network.backbone
    again = copy.deepcopy(plain)
    recompute_blocks(again)
    assert kept(again) < 0.5 * kept(plain)


def test_evaluation_computes_once(mobilenet_config: Path) -> None:
    backbone = learner(mobilenet_config)[0].state.detector.network.backbone
    recompute_blocks(backbone)
    inputs = torch.randn(1, 3, 64, 64)
    backbone.eval()
    calls: list[nn.Module] = []
    with backbone.blocks[3].register_forward_pre_hook(lambda module, _: calls.append(module)):
        sum(one.sum() for one in backbone(inputs)).backward()
    assert len(calls) == 1


def test_a_run_is_the_same(mobilenet_config: Path, tmp_path: Path) -> None:
    config = bw.load_config(mobilenet_config, ["train_config.num_steps=2"])
    for name in ("plain", "again"):
        bw.train(
            config,
            tmp_path / name,
            bw.RunSettings(workers=0, preflight=False, device="cpu", evaluate=False, recompute=name == "again"),
        )
    plain, again = (read_checkpoint(tmp_path / name / "ckpt-2.pt")["network"] for name in ("plain", "again"))
    assert plain.keys() == again.keys()
    for name, value in plain.items():
        assert torch.equal(value, again[name]), name


def test_compiled_networks_choose_for_themselves(mobilenet_config: Path, tmp_path: Path) -> None:
    with pytest.raises(bw.TrainingError, match="--recompute"):
        bw.train(bw.load_config(mobilenet_config), tmp_path, bw.RunSettings(recompute=True, compile=True, device="cpu"))
