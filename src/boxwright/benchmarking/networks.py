"""PyTorch's networks as contenders: as they are, compiled, in another precision; looking or learning."""

from __future__ import annotations

from functools import partial
from pathlib import Path

import torch

from boxwright.benchmarking.contender import Contender, Prepare
from boxwright.benchmarking.settings import BenchmarkSettings
from boxwright.benchmarking.steps import our_step, their_step
from boxwright.benchmarking.torchvision_detectors import their_detection, torchvision_detector
from boxwright.builders.detector import build_detector
from boxwright.config.load import load_config
from boxwright.config.preset import referred
from boxwright.device import open_device
from boxwright.loading.open_model import open_model
from boxwright.models.detector import Detector

_TORCHVISION = "torchvision:"


def open_network(name: str, settings: BenchmarkSettings) -> dict[str, Contender]:
    """Open a model that PyTorch runs.

    Args:
        name: A run's folder, a checkpoint, a configuration, `preset:NAME`, or torchvision's as `torchvision:NAME`.

    Returns:
        Contenders by name; a compiled one, and one in bfloat16, has that in its name.

    Raises:
        BoxwrightError: Where it cannot be opened.
    """
    if settings.threads:
        torch.set_num_threads(settings.threads)
    if name.startswith(_TORCHVISION):
        return {name: _torchvision(name, settings)}
    return _learning(name, settings) if settings.train else _looking(name, settings)


def _torchvision(name: str, settings: BenchmarkSettings) -> Contender:
    model = torchvision_detector(name.removeprefix(_TORCHVISION)).to(open_device(settings.device, tf32=settings.tf32))
    look = partial(their_detection, model)
    return Contender(partial(their_step, model) if settings.train else look, model, look)


def _looking(name: str, settings: BenchmarkSettings) -> dict[str, Contender]:
    """Return inferences of ours, from pictures to detections; operations are counted in the plain network."""
    plain = _detector(name, settings)
    found = {name: Contender(_look(_detector(name, settings).optimize()), plain, _look(plain))}
    if settings.compile:
        found[f"{name}, compiled"] = Contender(_look(_detector(name, settings).optimize(compile=True)))
    if settings.precision == "bfloat16":
        rounded = _detector(name, settings).optimize(dtype=torch.bfloat16)
        found[f"{name}, bfloat16"] = Contender(_look(rounded), plain, _look(plain))
    return found


def _learning(name: str, settings: BenchmarkSettings) -> dict[str, Contender]:
    """Return training steps of ours."""
    plain = _detector(name, settings)
    found = {name: Contender(partial(our_step, plain), plain, _look(plain))}
    if settings.compile:
        compiled = _detector(name, settings)
        compiled.network.compile(dynamic=False)
        found[f"{name}, compiled"] = Contender(partial(our_step, compiled))
    if settings.precision == "bfloat16":
        rounded = _detector(name, settings)
        rounded.dtype = torch.bfloat16
        found[f"{name}, bfloat16"] = Contender(partial(our_step, rounded))
    return found


def _look(detector: Detector) -> Prepare:
    return lambda given: lambda: detector.detect(list(given))


def _detector(name: str, settings: BenchmarkSettings) -> Detector:
    path = Path(name)
    if path.suffix == ".config" or referred(path) is not None:
        detector = build_detector(load_config(path)).eval()
    else:
        return open_model(path, device=settings.device, tf32=settings.tf32).detector
    return detector.to(open_device(settings.device, tf32=settings.tf32))
