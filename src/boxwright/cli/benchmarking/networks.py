"""PyTorch networks as contenders: plain, compiled, in another precision, torchvision's; for inference or training.

Training steps are on synthetic ground truth.

Dimensions: B batch, H W image.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
import torchvision
from torch import Tensor, nn

from boxwright.base.device import set_tf32, usable_device
from boxwright.base.errors import ConfigError
from boxwright.base.text import is_count
from boxwright.cli.benchmarking.contenders import Contender, Pictures, Prepare
from boxwright.cli.benchmarking.settings import BenchmarkSettings
from boxwright.config.preset import referred
from boxwright.nn.criteria.criterion import LossTerm
from boxwright.nn.detector import Detector
from boxwright.pipeline.detector import build_detector
from boxwright.pipeline.load import load_config
from boxwright.types import Targets
from boxwright.weights.open_model import open_model

Run = Callable[[], Any]
_TORCHVISION = "torchvision:"


def open_network(name: str, settings: BenchmarkSettings) -> dict[str, Contender]:
    """Return the contenders of a PyTorch model by name; the names of compiled and of bfloat16 ones show it.

    Args:
        name: A run's folder, a checkpoint, a configuration, `preset:NAME`, or torchvision's as `torchvision:NAME`.
    """
    set_tf32(products=settings.tf32)
    if settings.threads:
        torch.set_num_threads(settings.threads)
    if name.startswith(_TORCHVISION):
        return {name: _torchvision(name, settings)}
    return _training_steps(name, settings) if settings.train else _inferences(name, settings)


def _torchvision(name: str, settings: BenchmarkSettings) -> Contender:
    model = torchvision_detector(name.removeprefix(_TORCHVISION)).to(_device(settings))
    look = partial(their_detection, model)
    return Contender(partial(their_step, model) if settings.train else look, model, look)


def _inferences(name: str, settings: BenchmarkSettings) -> dict[str, Contender]:
    """Return inferences of a Boxwright detector; operations are counted in the network that is not optimized."""
    plain = _detector(name, settings)
    # Each contender opens a detector of its own: optimizing changes it, and operations are counted before that.
    contenders = {name: Contender(_inference(_detector(name, settings).optimize()), plain, _inference(plain))}
    if settings.compile:
        contenders[f"{name}, compiled"] = Contender(_inference(_detector(name, settings).optimize(compile=True)))
    if settings.precision == "bfloat16":
        rounded = _detector(name, settings).optimize(dtype=torch.bfloat16)
        contenders[f"{name}, bfloat16"] = Contender(_inference(rounded), plain, _inference(plain))
    return contenders


def _training_steps(name: str, settings: BenchmarkSettings) -> dict[str, Contender]:
    """Return training steps of a Boxwright detector."""
    plain = _detector(name, settings)
    contenders = {name: Contender(partial(our_step, plain), plain, _inference(plain))}
    if settings.compile:
        compiled = _detector(name, settings)
        compiled.network.compile(dynamic=False)
        contenders[f"{name}, compiled"] = Contender(partial(our_step, compiled))
    if settings.precision == "bfloat16":
        rounded = _detector(name, settings)
        rounded.dtype = torch.bfloat16
        contenders[f"{name}, bfloat16"] = Contender(partial(our_step, rounded))
    return contenders


def _inference(detector: Detector) -> Prepare:
    return lambda given: lambda: detector.detect(list(given))


def _detector(name: str, settings: BenchmarkSettings) -> Detector:
    path = Path(name)
    if path.suffix.lower() == ".config" or referred(path) is not None:
        detector = build_detector(load_config(path)).eval()
    else:
        return open_model(path, device=settings.device).detector
    return detector.to(_device(settings))


def _device(settings: BenchmarkSettings) -> torch.device:
    device = usable_device(settings.device)
    if device.type == "cuda":
        torch.cuda.set_device(device)  # the memory of the current one is measured
    return device


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
    images = _to_unit_tensors(pictures, device)
    boxes = _boxes(len(images), *images[0].shape[-2:]).to(device)
    # 0 is torchvision's background.
    labels = torch.ones(_OBJECTS, dtype=torch.int64, device=device)
    targets = [{"boxes": image_boxes, "labels": labels} for image_boxes in boxes]
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
    learning = [parameter for parameter in network.parameters() if parameter.requires_grad]
    device = learning[0].device
    optimizer = torch.optim.SGD(learning, _RATE, momentum=0.9)

    def update(loss: Callable[[], Tensor]) -> None:
        optimizer.zero_grad(set_to_none=True)
        torch.autograd.backward(loss())
        optimizer.step()
        # A step only queues its kernels; its time ends when they have run.
        if device.type != "cpu":
            torch.accelerator.synchronize(device)

    return update


def torchvision_detector(name: str) -> nn.Module:
    """Return a torchvision detector for 91 classes with random weights, in evaluation mode.

    Args:
        name: Torchvision's name; with `@640` appended, for inputs of that side.
    """
    kind, _, side = name.partition("@")
    known = torchvision.models.list_models(module=torchvision.models.detection)
    if kind not in known or (side and not is_count(side)):
        raise ConfigError(f"torchvision:{name}: expected NAME or NAME@SIDE, with a name of: {', '.join(known)}")
    sides = {"min_size": int(side), "max_size": int(side)} if side else {}
    try:
        # 91 is the number of torchvision's published detectors: COCO's largest id, 90, and the background.
        model: nn.Module = torchvision.models.get_model(
            kind, weights=None, weights_backbone=None, num_classes=91, **sides
        )
    except (TypeError, ValueError) as error:
        raise ConfigError(f"torchvision:{name}: cannot be built: {error}") from None
    return model.eval().to(memory_format=torch.channels_last)


def their_detection(model: nn.Module, pictures: Pictures) -> Run:
    """Return a function that detects objects in pictures and copies the detections to the CPU."""
    device = next(model.parameters()).device

    def run() -> Any:
        with torch.inference_mode():
            detections = model.eval()(_to_unit_tensors(pictures, device))
            return [{name: value.cpu() for name, value in objects.items()} for objects in detections]

    return run


def _to_unit_tensors(pictures: Pictures, device: torch.device) -> list[Tensor]:
    """Return pictures as torchvision takes them: float [3, H, W] in 0..1."""
    return [torch.from_numpy(picture).to(device).permute(2, 0, 1).float() / 255 for picture in pictures]
