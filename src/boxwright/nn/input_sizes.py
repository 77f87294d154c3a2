"""Sizes of the maps that a network's convolutions are given, by which faster ways of computing them are chosen."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import ExitStack
from typing import Any

import torch
from torch import nn


@torch.no_grad()
def input_sizes(network: nn.Module, run: Callable[[], object]) -> dict[nn.Module, torch.Size]:
    """Return, for each convolution that a run calls, the size [B, C, H, W] of its largest map.

    Those that are called on no rows alone, as a second stage is without boxes, are not among them.

    Args:
        network: In evaluation mode.
        run: Runs the network on inputs of the usual size.
    """
    sizes: dict[nn.Module, torch.Size] = {}

    def sees(conv: nn.Module, inputs: tuple[Any, ...]) -> None:
        if not inputs:  # called by name
            return
        size = inputs[0].shape
        if size.numel() > (sizes[conv].numel() if conv in sizes else 0):
            sizes[conv] = size

    with ExitStack() as hooks:
        for module in network.modules():
            if isinstance(module, nn.Conv2d):
                hooks.enter_context(module.register_forward_pre_hook(sees))
        run()
    return sizes
