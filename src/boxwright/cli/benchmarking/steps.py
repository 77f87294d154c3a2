"""Training steps of Boxwright's and torchvision's detectors, on synthetic ground truth.

Dimensions: B batch, H W image.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from boxwright.nn.criteria.criterion import LossTerm
from boxwright.nn.detector import Detector
from boxwright.types import Targets

Pictures = Sequence[NDArray[np.uint8]]
Run = Callable[[], Any]
_OBJECTS = 8
# Weights must hardly change: a step is slower when values leave the usual range.
_RATE = 1e-12


def our_step(detector: Detector, pictures: Pictures) -> Run:
    """Return a training step of a Boxwright detector, put in training mode: forward, losses, backward, update.

    Resizing the pictures, uint8 [H, W, 3] of one size, is not part of the step.
    """
    detector.train().to(memory_format=torch.channels_last)
    device = next(detector.parameters()).device
    with torch.no_grad():
        inputs, sizes = detector.preprocess(torch.from_numpy(np.stack(pictures)))
    ones = torch.ones(len(pictures), _OBJECTS)
    labels = torch.zeros(ones.shape, dtype=torch.int64)
    targets = Targets(_boxes(len(pictures), *inputs.shape[-2:]), labels, ones, ones > 0).to(device)
    update = _update(detector)
    return lambda: update(lambda: LossTerm.sum(detector.criterion(detector.predict(inputs, sizes, targets), targets)))


def their_step(model: nn.Module, pictures: Pictures) -> Run:
    """Return a training step of a torchvision detector on the same objects, including its own transform."""
    device = next(model.parameters()).device
    images = [torch.from_numpy(one).to(device).permute(2, 0, 1).float() / 255 for one in pictures]
    boxes = _boxes(len(images), *images[0].shape[-2:]).to(device)
    # 0 is torchvision's background.
    targets = [{"boxes": one, "labels": torch.ones(_OBJECTS, dtype=torch.int64, device=device)} for one in boxes]
    update = _update(model.train())
    return lambda: update(lambda: torch.stack(list(model(images, targets).values())).sum())


def _boxes(count: int, height: int, width: int) -> Tensor:
    """Return synthetic boxes, float [count, 8, 4], xyxy in pixels, always the same."""
    generator = torch.Generator().manual_seed(0)
    corners = torch.rand(count, _OBJECTS, 2, 2, generator=generator).sort(dim=2).values
    # At least a twentieth of each side, and inside the image after the division below.
    corners[:, :, 1] += 0.05
    return corners.flatten(2) * torch.tensor([width, height, width, height]) / 1.05


def _update(network: nn.Module) -> Callable[[Callable[[], Tensor]], None]:
    learning = [one for one in network.parameters() if one.requires_grad]
    device = learning[0].device
    optimizer = torch.optim.SGD(learning, _RATE, momentum=0.9)

    def update(loss: Callable[[], Tensor]) -> None:
        optimizer.zero_grad(set_to_none=True)
        torch.autograd.backward(loss())
        optimizer.step()
        # A step only queues its kernels; its time ends when they have run.
        if device.type == "cuda":
            torch.cuda.synchronize(device)

    return update
