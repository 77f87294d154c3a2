"""What a benchmark calls: inference and training steps of a detector, ours or torchvision's, on made-up groundtruth.

Dimensions: B batch, H W image.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
import torchvision
from numpy.typing import NDArray
from torch import Tensor, nn
from torch.utils.flop_counter import FlopCounterMode

from boxwright.criteria.terms import LossTerm
from boxwright.errors import ConfigError
from boxwright.models.detector import Detector
from boxwright.types import Targets

__all__ = ["Facts", "channels_first", "facts", "our_step", "their_detection", "their_step", "torchvision_detector"]

Pictures = Sequence[NDArray[np.uint8]]
Run = Callable[[], Any]
_OBJECTS = 8
# Weights must stay as they are: a step whose numbers leave the usual range is slower.
_RATE = 1e-12


@dataclass(frozen=True)
class Facts:
    """What a run costs, whatever the machine.

    Attributes:
        parameters: Numbers that are learnt.
        gflops: Multiplications and additions of convolutions and matrix products in one inference, in 10⁹ operations:
            two for each pair.
        peak_mib: The most memory that the tensors made in one run held at once.
    """

    parameters: int
    gflops: float
    peak_mib: float


def facts(network: nn.Module, run: Run, look: Run) -> Facts:
    """Count a network's parameters, the memory of one run, and the operations of one inference.

    Operations are those of the definition: with channels first no convolution takes a shorter way.

    Args:
        network: As it was built, not optimized.
        run: Whose memory is measured.
        look: An inference by the network.

    Returns:
        The three.
    """
    peak = _peak_mib(run)
    with ExitStack() as hooks, FlopCounterMode(display=False) as counter:
        for module in network.modules():
            if isinstance(module, nn.Conv2d):
                hooks.enter_context(module.register_forward_pre_hook(channels_first))
        look()
    return Facts(sum(parameter.numel() for parameter in network.parameters()), counter.get_total_flops() / 1e9, peak)


def channels_first(_: nn.Module, inputs: tuple[Any, ...]) -> tuple[Any, ...]:
    """Return inputs in PyTorch's usual layout, which layers then keep; a forward pre-hook."""
    return (inputs[0].contiguous(), *inputs[1:])


def _peak_mib(run: Run) -> float:
    """Return the largest sum of allocations that one run holds at a time, in MiB."""
    if torch.cuda.is_available():
        torch.cuda.reset_peak_memory_stats()
        before = torch.cuda.memory_allocated()
        run()
        if (most := torch.cuda.max_memory_allocated() - before) > 0:
            return most / 2**20
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU], profile_memory=True) as profile:
        run()
    events = profile.profiler.kineto_results.events() if profile.profiler and profile.profiler.kineto_results else []
    held = most = 0
    for event in sorted((one for one in events if one.name() == "[memory]"), key=lambda one: one.start_ns()):
        held += event.nbytes()
        most = max(most, held)
    return most / 2**20


def _boxes(count: int, height: int, width: int) -> Tensor:
    """Return made-up boxes of objects, float [count, 8, 4], xyxy in pixels, always the same."""
    generator = torch.Generator().manual_seed(0)
    corners = torch.rand(count, _OBJECTS, 2, 2, generator=generator).sort(dim=2).values
    corners[:, :, 1] += 0.05
    return corners.flatten(2) * torch.tensor([width, height, width, height]) / 1.05


def our_step(detector: Detector, pictures: Pictures) -> Run:
    """Return a training step of one of ours: forward, losses, backward, update; the pictures are resized already.

    Args:
        detector: Is put into training mode, and its weights do not change to speak of.
        pictures: uint8 [H, W, 3], of one size.

    Returns:
        What takes a step.
    """
    detector.train().to(memory_format=torch.channels_last)
    with torch.no_grad():
        inputs, sizes = detector.preprocess(torch.from_numpy(np.stack(pictures)))
    ones = torch.ones(len(pictures), _OBJECTS)
    labels = torch.zeros(ones.shape, dtype=torch.int64)
    device = next(detector.parameters()).device
    targets = Targets(_boxes(len(pictures), *inputs.shape[-2:]), labels, ones, ones > 0).to(device)
    inputs, sizes = inputs.to(device), sizes.to(device)
    update = _update(detector)
    return lambda: update(lambda: LossTerm.sum(detector.criterion(detector.predict(inputs, sizes, targets), targets)))


def _update(network: nn.Module) -> Callable[[Callable[[], Tensor]], None]:
    optimizer = torch.optim.SGD([one for one in network.parameters() if one.requires_grad], _RATE, momentum=0.9)

    def update(loss: Callable[[], Tensor]) -> None:
        optimizer.zero_grad(set_to_none=True)
        torch.autograd.backward(loss())
        optimizer.step()
        if torch.cuda.is_available():
            torch.cuda.synchronize()

    return update


def torchvision_detector(name: str) -> nn.Module:
    """Build a detector of torchvision's with fresh weights.

    Args:
        name: As torchvision calls it; with `@640` behind it, at inputs of that side.

    Returns:
        The detector, in evaluation mode, for 91 classes.

    Raises:
        ConfigError: For a name that it has not.
    """
    kind, _, side = name.partition("@")
    known = torchvision.models.list_models(module=torchvision.models.detection)
    if kind not in known or (side and not side.isdecimal()):
        raise ConfigError(f"torchvision:{name}: expected NAME or NAME@SIDE, with a name of: {', '.join(known)}")
    sides = {"min_size": int(side), "max_size": int(side)} if side else {}
    try:
        model = torchvision.models.get_model(kind, weights=None, weights_backbone=None, num_classes=91, **sides)
    except (TypeError, ValueError) as error:
        raise ConfigError(f"torchvision:{name}: cannot be built so: {error}") from None
    return model.eval().to(memory_format=torch.channels_last)  # type: ignore[no-any-return]


def their_detection(model: nn.Module, pictures: Pictures) -> Run:
    """Return what finds objects in pictures by one of torchvision's, and brings them back."""
    device = next(model.parameters()).device

    def run() -> Any:
        with torch.inference_mode():
            found = model.eval()([torch.from_numpy(one).to(device).permute(2, 0, 1).float() / 255 for one in pictures])
            return [{name: value.cpu() for name, value in one.items()} for one in found]

    return run


def their_step(model: nn.Module, pictures: Pictures) -> Run:
    """Return a training step of one of torchvision's on the same objects; its own transform is part of it."""
    device = next(model.parameters()).device
    images = [torch.from_numpy(one).to(device).permute(2, 0, 1).float() / 255 for one in pictures]
    boxes = _boxes(len(images), *images[0].shape[-2:]).to(device)
    targets = [{"boxes": one, "labels": torch.ones(_OBJECTS, dtype=torch.int64, device=device)} for one in boxes]
    update = _update(model.train())
    return lambda: update(lambda: torch.stack(list(model(images, targets).values())).sum())
