"""PyTorch networks as contenders: plain, compiled, in another precision; for inference or training."""

from __future__ import annotations

from functools import partial
from pathlib import Path

import torch

from boxwright.base.device import set_tf32, usable_device
from boxwright.cli.benchmarking.contender import Contender, Prepare
from boxwright.cli.benchmarking.settings import BenchmarkSettings
from boxwright.cli.benchmarking.steps import our_step, their_step
from boxwright.cli.benchmarking.torchvision_detectors import their_detection, torchvision_detector
from boxwright.config.preset import referred
from boxwright.nn.detector import Detector
from boxwright.pipeline.detector import build_detector
from boxwright.pipeline.load import load_config
from boxwright.weights.open_model import open_model

_TORCHVISION = "torchvision:"


def open_network(name: str, settings: BenchmarkSettings) -> dict[str, Contender]:
    """Return the contenders of a PyTorch model by name; the names of compiled and of bfloat16 ones show it.

    Args:
        name: A run's folder, a checkpoint, a configuration, `preset:NAME`, or torchvision's as `torchvision:NAME`.
    """
    set_tf32(allowed=settings.tf32)
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
    if path.suffix == ".config" or referred(path) is not None:
        detector = build_detector(load_config(path)).eval()
    else:
        return open_model(path, device=settings.device).detector
    return detector.to(_device(settings))


def _device(settings: BenchmarkSettings) -> torch.device:
    device = usable_device(settings.device)
    if device.type == "cuda":
        torch.cuda.set_device(device)  # the memory of the current one is measured
    return device
