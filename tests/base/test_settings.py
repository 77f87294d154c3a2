"""Devices as callers name them, in every settings class and function that takes one."""

from __future__ import annotations

import dataclasses
import importlib
import inspect
import pkgutil
from typing import Any

import pytest
import torch

import boxwright
from boxwright.base.device import usable_device
from boxwright.base.errors import ConfigError
from boxwright.base.settings import device_name, with_options
from boxwright.training.settings import RunSettings


@pytest.mark.parametrize(
    ("device", "name"),
    [
        (0, "cuda:0"),
        (3, "cuda:3"),
        ("0", "cuda:0"),
        ("cpu", "cpu"),
        ("tensorrt", "tensorrt"),
        (torch.device("cpu"), "cpu"),
        (torch.device("cuda", 1), "cuda:1"),
    ],
)
def test_a_device_has_one_name(device: str | int | torch.device, name: str) -> None:
    assert device_name(device) == name
    assert RunSettings(device=device).device == name  # type: ignore[arg-type]
    assert with_options(RunSettings(), {"device": device}, "train").device == name


@pytest.mark.parametrize("wrong", [True, -1, 1.0, None, ["cpu"]])
def test_what_names_no_device_is_refused(wrong: object) -> None:
    with pytest.raises(ConfigError, match="expected cpu, cuda, auto, a GPU as 0 or cuda:0, or a torch.device"):
        device_name(wrong)  # type: ignore[arg-type]


def test_a_torch_device_is_usable() -> None:
    assert usable_device(torch.device("cpu")) == torch.device("cpu")
    with pytest.raises(ConfigError, match="'cuda:99' cannot be used"):
        usable_device(99)


def test_every_settings_class_with_a_device_names_it() -> None:
    modules = [name for _, name, _ in pkgutil.walk_packages(boxwright.__path__, "boxwright.") if "settings" in name]
    modules += ["boxwright.training.autoconfig.choices", "boxwright.cli.doctor"]
    kinds: set[Any] = {
        kind
        for name in modules
        for kind in vars(importlib.import_module(name)).values()
        if inspect.isclass(kind) and dataclasses.is_dataclass(kind) and "device" in getattr(kind, "__annotations__", {})
    }
    assert len(kinds) >= 8
    for kind in kinds:
        assert vars(kind(device=1))["device"] == "cuda:1", kind
